"""FullyShardedDataParallel with flat parameters: a gated network forecasts the next values of noisy waves."""

# torchrun --standalone --nproc-per-node 2 fsdp_flat.py

import argparse
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

PAST, AHEAD = 32, 8


class GatedUnit(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x):
        value, gate = self.up(self.norm(x)).chunk(2, dim=-1)
        return x + self.down(value * nn.functional.silu(gate))


def build_model(args):
    torch.manual_seed(args.seed)  # alike on all ranks: each keeps its part of the same weights
    units = [GatedUnit(args.width) for _ in range(3)]
    model = nn.Sequential(nn.Linear(PAST, args.width), *units, nn.Linear(args.width, AHEAD))
    # one flat parameter for each unit and one for the rest, cut into as many parts as there are ranks
    policy = ModuleWrapPolicy({GatedUnit})
    return FSDP(model, auto_wrap_policy=policy, use_orig_params=True, device_id=torch.device("cpu"))


def waves(n, generator):
    phase = 6.3 * torch.rand(n, 1, generator=generator)
    pace = 0.2 + 0.3 * torch.rand(n, 1, generator=generator)
    x = torch.sin(phase + pace * torch.arange(PAST + AHEAD)) + 0.05 * torch.randn(n, PAST + AHEAD, generator=generator)
    return x.split([PAST, AHEAD], dim=1)


@torch.no_grad()
def validate(model, past, ahead):
    model.eval()
    error = nn.functional.mse_loss(model(past), ahead)
    dist.all_reduce(error)
    model.train()
    return error.item() / dist.get_world_size()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--width", type=int, default=48)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    rank = dist.get_rank()
    model = build_model(args)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.05)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=5)
    draws = torch.Generator().manual_seed(args.seed * 100 + rank)
    held_out = waves(128, torch.Generator().manual_seed(args.seed * 100 + 50 + rank))

    for step in range(1, args.steps + 1):
        past, ahead = waves(args.batch_size, draws)
        loss = nn.functional.mse_loss(model(past), ahead)
        optimizer.zero_grad()
        loss.backward()
        model.clip_grad_norm_(1.0)
        optimizer.step()
        scheduler.step()
        if step % 20 == 0:
            error = validate(model, *held_out)
            if rank == 0:
                print(f"step {step:3d}: loss {loss.item():.4f}, held out {error:.4f}")

    # the whole state, gathered on every rank, and given to a new model
    whole = StateDictOptions(full_state_dict=True)
    kept = get_model_state_dict(model, options=whole)
    args.seed += 1  # other weights, to be replaced
    restored = build_model(args)
    set_model_state_dict(restored, kept, options=whole)
    error = validate(restored, *held_out)
    if rank == 0:
        print(f"restored: {error:.4f}")


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main()
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.5)
