"""Flow matching: carry points from a normal distribution onto the arms of a spiral."""

import argparse
import math

import torch
from fusednorms import compile_sandwich
from torch import nn

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=30)
parser.add_argument("--batch", type=int, default=192)
parser.add_argument("--width", type=int, default=64)
parser.add_argument("--depth", type=int, default=2)
parser.add_argument("--lr", type=float, default=4e-3)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()


def spiral(count, generator):
    turn = 0.6 + 1.1 * torch.rand(count, generator=generator).sqrt()
    angle = 2 * math.pi * turn + math.pi * torch.randint(2, (count,), generator=generator)
    points = turn[:, None] * torch.stack([angle.cos(), angle.sin()], dim=1)
    return points + 0.05 * torch.randn(count, 2, generator=generator)


class Block(nn.Module):
    """A residual block; the time comes in between two norms that a table of shifts and scales modulates."""

    def __init__(self, width):
        super().__init__()
        self.table = nn.Parameter(0.02 * torch.randn(4, width))
        self.norms = compile_sandwich(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width))

    def forward(self, x, time):
        return x + self.mlp(self.norms(x, time, self.table))


class Velocity(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.register_buffer("frequencies", math.pi * torch.arange(1, 9))
        self.time = nn.Sequential(nn.Linear(16, width), nn.SiLU(), nn.Linear(width, width))
        self.enter = nn.Linear(2, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.leave = nn.Linear(width, 2)

    def forward(self, points, time):
        waves = time[:, None] * self.frequencies
        time = self.time(torch.cat([waves.cos(), waves.sin()], dim=1))
        x = self.enter(points)
        for block in self.blocks:
            x = block(x, time)
        return self.leave(x)


def flow_loss(model, target, generator):
    """Squared error of the velocity on the straight line from noise to data."""
    noise = torch.randn(target.shape, generator=generator)
    time = torch.rand(len(target), generator=generator)
    where = torch.lerp(noise, target, time[:, None])
    return (model(where, time) - (target - noise)).square().mean()


torch.manual_seed(args.seed)
chance = torch.Generator().manual_seed(args.seed + 1)
model = Velocity(args.width, args.depth)
optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, betas=(0.9, 0.99))

model.train()
for step in range(1, args.steps + 1):
    loss = flow_loss(model, spiral(args.batch, chance), chance)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 1 or step % 10 == 0:
        print(f"step {step:3d}  loss {loss.item():.4f}")

model.eval()
with torch.no_grad():
    held_out = flow_loss(model, spiral(2048, chance), chance)
print(f"held-out loss {held_out.item():.4f}")
