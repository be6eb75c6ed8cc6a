"""Fit the signed distance to a drawing of discs and bars with a 1-Lipschitz network."""

import argparse
from itertools import pairwise

import torch
from lipschitz import SortPairs, spectral_norm
from torch import nn


class Drawing:
    """Discs and rounded bars in the unit square; distances are negative inside."""

    def __init__(self, generator, discs=3, bars=2):
        self.centres = torch.rand(discs, 2, generator=generator) * 1.6 - 0.8
        self.radii = torch.rand(discs, generator=generator) * 0.2 + 0.1
        self.ends = torch.rand(2, bars, 2, generator=generator) * 1.8 - 0.9

    def distance(self, points):
        to_discs = torch.cdist(points, self.centres) - self.radii
        start, along = self.ends[0], self.ends[1] - self.ends[0]
        offset = points[:, None] - start
        part = ((offset * along).sum(-1) / along.square().sum(-1)).clamp(0, 1)
        to_bars = (offset - part[..., None] * along).norm(dim=-1) - 0.08
        return torch.cat([to_discs, to_bars], dim=1).amin(1, keepdim=True)


def lipschitz_mlp(width, depth):
    sizes = [2, *[width] * depth]
    layers = []
    for inputs, outputs in pairwise(sizes):
        layers += [spectral_norm(nn.Linear(inputs, outputs)), SortPairs()]
    return nn.Sequential(*layers, spectral_norm(nn.Linear(width, 1)))


def validate(net, points, distance):
    net.eval()
    with torch.no_grad():
        error = (net(points) - distance).abs().mean().item()
    net.train()
    return error


def main(cfg):
    torch.manual_seed(cfg.seed)
    generator = torch.Generator().manual_seed(cfg.seed)
    drawing = Drawing(generator)
    side = torch.linspace(-1, 1, 20)
    grid = torch.cartesian_prod(side, side)
    truth = drawing.distance(grid)

    net = lipschitz_mlp(cfg.width, cfg.depth)
    optimizer = torch.optim.NAdam(net.parameters(), lr=cfg.lr)
    validate(net, grid, truth)
    print(f"sanity check done, {sum(p.numel() for p in net.parameters())} parameters")

    for step in range(1, cfg.steps + 1):
        points = torch.rand(cfg.batch, 2, generator=generator) * 2 - 1
        loss = nn.functional.l1_loss(net(points), drawing.distance(points))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step}: loss {loss.item():.4f}, mean error {validate(net, grid, truth):.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--width", type=int, default=48)
    parser.add_argument("--depth", type=int, default=3)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    main(parser.parse_args())
