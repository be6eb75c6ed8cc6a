"""Points on the surfaces of turned solids: spheres, boxes, tubes and rings."""

import math

import torch
from torch.utils.data import TensorDataset

SOLIDS = ("sphere", "box", "tube", "ring")


def surface(kind, count, generator):
    """`count` points on the surface of a solid of that kind."""
    u, v = torch.rand(2, count, generator=generator)
    around, height = 2 * math.pi * u, 2 * v - 1
    if kind == "sphere":
        radius = (1 - height**2).sqrt()
        return torch.stack([radius * around.cos(), radius * around.sin(), height], 1)
    if kind == "box":
        points = 2 * torch.rand(count, 3, generator=generator) - 1
        side = torch.randint(3, (count,), generator=generator)
        points[torch.arange(count), side] = points[torch.arange(count), side].sign()
        return 0.8 * points
    if kind == "tube":
        return torch.stack([0.5 * around.cos(), 0.5 * around.sin(), 1.3 * height], 1)
    radius = 1 + 0.3 * torch.cos(math.pi * height)
    return torch.stack([radius * around.cos(), radius * around.sin(), 0.3 * torch.sin(math.pi * height)], 1)


def make_clouds(count, points, seed):
    """A dataset of clouds (points, 3), and the number of the solid of each."""
    generator = torch.Generator().manual_seed(seed)
    kinds = torch.arange(count) % len(SOLIDS)
    clouds = []
    for kind in kinds.tolist():
        turn, _ = torch.linalg.qr(torch.randn(3, 3, generator=generator))
        cloud = surface(SOLIDS[kind], points, generator) @ turn
        clouds.append(cloud + 0.02 * torch.randn(cloud.shape, generator=generator))
    return TensorDataset(torch.stack(clouds), kinds)
