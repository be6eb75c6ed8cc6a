"""Map the rain of a country with a mixture of experts, spread over ranks: torchrun with two processes."""

import argparse
import time

import torch
import torch.distributed as dist
from expert_parallel import ExpertParallel
from moe_engine import initialize
from rainfall import CLIMATES, RainStations, climate_of
from torch import nn


class Expert(nn.Sequential):
    """A small network for one climate; `id` is the index of the expert."""

    def __init__(self, index, width, hidden):
        super().__init__(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))
        self.id = index


class RainModel(nn.Module):
    def __init__(self, width=16, hidden=32):
        super().__init__()
        self.embed = nn.Linear(4, width)
        self.gate = nn.Linear(4, CLIMATES)
        self.experts = ExpertParallel(Expert(index, width, hidden) for index in range(CLIMATES))
        self.rain = nn.Linear(width, 1)

    def forward(self, features):
        """Rain, and the logits of the gate."""
        tokens = torch.tanh(self.embed(features))
        logits = self.gate(features)
        weight, chosen = logits.softmax(-1).max(-1)
        tokens = tokens + weight[:, None] * self.experts(tokens, chosen)
        return self.rain(tokens).squeeze(-1), logits


def loss_of(model, features, rain):
    predicted, logits = model(features)
    routing = nn.functional.cross_entropy(logits, climate_of(features[:, :2]))
    return nn.functional.mse_loss(predicted, rain) + 0.3 * routing


@torch.no_grad()
def validation_error(model, features, rain):
    model.eval()
    error = (model(features)[0] - rain).square().mean()
    model.train()
    dist.all_reduce(error)
    return (error / dist.get_world_size()).sqrt().item()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--batch", type=int, default=48)
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--lr", type=float, default=0.03)
    parser.add_argument("--seed", type=int, default=70)
    args = parser.parse_args()

    rank = dist.get_rank()
    torch.manual_seed(args.seed + rank)
    stations = RainStations(args.seed, rank)
    test = RainStations(args.seed + 1, rank).sample(200)
    model = RainModel(hidden=args.hidden)
    engine = initialize(model)
    engine.distribute(lambda parameters: torch.optim.Adam(parameters, lr=args.lr))
    model.train()
    for step in range(1, args.steps + 1):
        loss = loss_of(model, *stations.sample(args.batch))
        engine.backward(loss)
        engine.step()
        if step % 10 == 0:
            error = validation_error(model, *test)
            if rank == 0:
                print(f"step {step}: loss {loss.item():.3f}, validation error {error:.3f}", flush=True)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main()
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.5)
