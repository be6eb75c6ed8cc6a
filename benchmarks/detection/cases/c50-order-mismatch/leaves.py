"""Outlines of made-up leaves, filled, a little turned: round, pointed, lobed and heart-shaped ones."""

import numpy as np

KINDS = ("round", "pointed", "lobed", "heart")
SIZE = 20


def radius_of(kind, angle):
    """How far the edge is from the middle, in each direction."""
    if kind == "round":
        return 0.62 + 0.04 * np.cos(2 * angle)
    if kind == "pointed":
        return 0.3 + 0.5 * np.abs(np.cos(angle)) ** 3
    if kind == "lobed":
        return 0.55 + 0.2 * np.cos(5 * angle)
    return 0.7 - 0.35 * np.exp(-3 * np.minimum(angle % (2 * np.pi), -angle % (2 * np.pi)))


def press_leaves(count, seed):
    """Pictures, [count, 1, SIZE, SIZE] between 0 and 1, and the number of the kind of each, [count]."""
    rng = np.random.default_rng(seed)
    axis = np.linspace(-1, 1, SIZE)
    kinds = rng.integers(len(KINDS), size=count)
    pictures = np.empty((count, 1, SIZE, SIZE), dtype=np.float32)
    for picture, kind in zip(pictures, kinds, strict=True):
        right, down = np.meshgrid(axis - rng.normal(0, 0.06), axis - rng.normal(0, 0.06))
        angle = np.arctan2(down, right) + rng.normal(0, 0.25)
        size = rng.uniform(0.8, 1.15)
        inside = size * radius_of(KINDS[kind], angle) - np.hypot(right, down)
        picture[0] = 1 / (1 + np.exp(-inside / 0.05)) + rng.normal(0, 0.08, (SIZE, SIZE))
    return pictures.clip(0, 1), kinds
