"""Small pictures of made-up galaxies in four shapes, turned at random, under the noise of the night sky."""

import math

import torch

SHAPES = ("elliptical", "spiral", "ring", "edge-on")
SIZE = 20


def picture(shape, radius, angle):
    """Brightness at polar coordinates around the centre of a galaxy."""
    x, y = radius * torch.cos(angle), radius * torch.sin(angle)
    if shape == "elliptical":
        return torch.exp(-(x**2 + 2.0 * y**2).sqrt() / 0.35)
    if shape == "spiral":
        arms = 1 + torch.cos(2 * angle - 5 * torch.log(radius + 0.1))
        return arms * torch.exp(-radius / 0.5)
    if shape == "ring":
        return torch.exp(-(((radius - 0.6) / 0.12) ** 2)) + 0.7 * torch.exp(-radius / 0.12)
    return torch.exp(-(x**2 + 40.0 * y**2).sqrt() / 0.4)


def observe(number, seed):
    """`number` pictures (number, 1, SIZE, SIZE) and their shapes as class numbers."""
    sky = torch.Generator().manual_seed(seed)
    axis = torch.linspace(-1, 1, SIZE)
    grid_y, grid_x = torch.meshgrid(axis, axis, indexing="ij")
    labels = torch.randint(len(SHAPES), (number,), generator=sky)
    centres = 0.1 * torch.randn(number, 2, generator=sky)
    turns = 2 * math.pi * torch.rand(number, generator=sky)
    pictures = []
    for label, (cx, cy), turn in zip(labels.tolist(), centres.tolist(), turns.tolist(), strict=True):
        x, y = grid_x - cx, grid_y - cy
        pictures.append(picture(SHAPES[label], torch.hypot(x, y), torch.atan2(y, x) + turn))
    pictures = torch.stack(pictures).unsqueeze(1)
    return pictures + 0.15 * torch.randn(pictures.shape, generator=sky), labels
