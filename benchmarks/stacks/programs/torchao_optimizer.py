"""Training with the low-bit optimizers of torchao: weight decay, a schedule, checkpoints, and resuming."""

import argparse
import math
import tempfile

import torch
import torch.nn.functional as F
from tiny import digest
from torch import nn
from torchao.optim import AdamW8bit

STEPS = 30


class Regressor(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 256), nn.GELU(), nn.Linear(256, 64), nn.GELU(), nn.Linear(64, 1))

    def forward(self, inputs):
        return self.layers(inputs)


def make(seed):
    torch.manual_seed(seed)
    model = Regressor()
    optimizer = AdamW8bit(model.parameters(), lr=3e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / 5) * 0.5 * (1 + math.cos(math.pi * step / STEPS))
    )
    return model, optimizer, schedule


def train(model, optimizer, schedule, seed, steps, save=None):
    for step in steps:
        draw = torch.Generator().manual_seed(seed * 1000 + step)
        inputs = torch.randn(32, 16, generator=draw)
        targets = (inputs[:, :4].sum(dim=1, keepdim=True)).sin()
        loss = F.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 5 == 0:
            print(f"step {step} loss {loss.item():.6f} rate {float(schedule.get_last_lr()[0]):.6f}")
        if save and step == STEPS // 2 - 1:
            parts = {"model": model, "optimizer": optimizer, "schedule": schedule}
            torch.save({name: part.state_dict() for name, part in parts.items()}, save)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model, optimizer, schedule = make(args.seed)
        train(model, optimizer, schedule, args.seed, range(STEPS), f"{folder}/middle.pt")
        print("weights", digest(model))
        again, optimizer, schedule = make(args.seed)
        state = torch.load(f"{folder}/middle.pt", weights_only=False)
        again.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        schedule.load_state_dict(state["schedule"])
        train(again, optimizer, schedule, args.seed, range(STEPS // 2, STEPS))
        print("resumed weights", digest(again), "equal:", digest(again) == digest(model))


if __name__ == "__main__":
    main()
