"""DistributedDataParallel with activation checkpointing: a deep residual network finds where a pulse begins."""

# torchrun --standalone --nproc-per-node 2 ddp_checkpointing.py

import argparse
import shutil
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

LENGTH = 64


class Block(nn.Module):
    def __init__(self, width, dilation, p_drop=0.1):
        super().__init__()
        self.norm = nn.GroupNorm(4, width)
        self.conv = nn.Conv1d(width, 2 * width, 3, padding=dilation, dilation=dilation)
        self.mix = nn.Conv1d(width, width, 1)
        self.drop = nn.Dropout(p_drop)

    def forward(self, x):
        y = nn.functional.glu(self.conv(self.norm(x)), dim=1)
        return x + self.drop(self.mix(y))


class PulseFinder(nn.Module):
    """Activations inside the blocks are not kept: the backward computes them once more."""

    def __init__(self, width=24, depth=6):
        super().__init__()
        self.stem = nn.Conv1d(1, width, 5, padding=2)
        self.blocks = nn.ModuleList([Block(width, 2 ** (i % 4)) for i in range(depth)])
        self.head = nn.Conv1d(width, 1, 1)

    def forward(self, signal):
        x = self.stem(signal.unsqueeze(1))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.training else block(x)
        return self.head(x).squeeze(1)  # one score for each place


def pulses(n, generator):
    begin = torch.randint(4, LENGTH - 12, (n,), generator=generator)
    place = torch.arange(LENGTH) - begin.unsqueeze(1)
    shape = (place >= 0) * torch.exp(-place.clamp(min=0) / 4.0)
    return shape + 0.25 * torch.randn(n, LENGTH, generator=generator), begin


@torch.no_grad()
def hit_rate(model, signals, begins):
    """The share of pulses found to within one place, over the data of all ranks."""
    model.eval()
    hits = ((model(signals).argmax(dim=1) - begins).abs() <= 1).float().sum()
    model.train()
    told = torch.tensor([hits, len(begins)])
    dist.all_reduce(told)
    return (told[0] / told[1]).item()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    rank = dist.get_rank()
    torch.manual_seed(args.seed)
    # the same parameters take part in every step, which checkpointing asks DDP to rely on
    model = DistributedDataParallel(PulseFinder(), static_graph=True)
    torch.manual_seed(args.seed * 1000 + rank)  # dropout differs between ranks
    optimizer = torch.optim.RAdam(model.parameters(), lr=args.lr)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=args.steps)
    draws = torch.Generator().manual_seed(args.seed * 100 + rank)
    held_out = pulses(64, torch.Generator().manual_seed(args.seed * 100 + 50 + rank))

    for step in range(1, args.steps + 1):
        signals, begins = pulses(args.batch_size, draws)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(signals), begins)
        loss.backward()
        optimizer.step()
        scheduler.step()
        if step % 20 == 0:
            rate = hit_rate(model.module, *held_out)
            if rank == 0:
                print(f"step {step:3d}: loss {loss.item():.3f}, found {rate:.2f}")

    path = [str(Path(tempfile.mkdtemp()) / "pulses.pt") if rank == 0 else None]
    if rank == 0:
        torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}, path[0])
    dist.broadcast_object_list(path, src=0)
    restored = PulseFinder()
    restored.load_state_dict(torch.load(path[0], weights_only=True)["model"])
    rate = hit_rate(restored, *held_out)
    if rank == 0:
        print(f"restored: found {rate:.2f}")
    dist.barrier()
    if rank == 0:
        shutil.rmtree(Path(path[0]).parent)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main()
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.5)
