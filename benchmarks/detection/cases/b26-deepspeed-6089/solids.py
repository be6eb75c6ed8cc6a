"""Scans of solid bodies: clouds of points on a sphere, box, cylinder or cone, each of as many as were hit."""

import numpy as np
import torch

SOLIDS = ("sphere", "box", "cylinder", "cone")
FEWEST, MOST = 10, 30
FEATURES = 6


def surface(solid, number, rng):
    """`number` points on a body within the unit cube around the origin."""
    direction = rng.normal(size=(number, 3))
    turn = rng.uniform(0, 2 * np.pi, number)
    height = rng.uniform(-1, 1, number)
    if solid == "sphere":
        return direction / np.linalg.norm(direction, axis=1, keepdims=True)
    if solid == "box":
        return direction / np.abs(direction).max(axis=1, keepdims=True)
    radius = np.ones(number) if solid == "cylinder" else (1 - height) / 2
    return np.stack([radius * np.cos(turn), radius * np.sin(turn), height], axis=1)


def scan(bodies, rng):
    """The points of some bodies one after the other, the body that each is from, and what the bodies are.

    A point has FEATURES: x, y, z, and its distances from the origin, from the upright axis, and to the outermost face,
    the distances less 1 and times 4.
    """
    kinds = rng.integers(0, len(SOLIDS), bodies)
    counts = rng.integers(FEWEST, MOST + 1, bodies)
    clouds = []
    for kind, count in zip(kinds, counts, strict=True):
        cloud = rng.uniform(0.9, 1.1) * surface(SOLIDS[kind], count, rng)
        clouds.append(cloud + rng.normal(0, 0.04, cloud.shape))
    points = np.concatenate(clouds)
    distances = [np.linalg.norm(points, axis=1), np.hypot(points[:, 0], points[:, 1]), np.abs(points).max(axis=1)]
    features = torch.as_tensor(np.column_stack([points, 4 * np.column_stack(distances) - 4]), dtype=torch.float32)
    return features, torch.as_tensor(np.repeat(np.arange(bodies), counts)), torch.as_tensor(kinds)
