"""Hourly rain over made-up catchments and the level of the river below: soils that fill in rain and drain slowly."""

import numpy as np
import torch

HOURS = 48
SOILS = ((0.6, 8.0), (0.9, 25.0))
"""How much of the rain a soil takes, and in how many hours it drains to a third."""


def simulate(catchments, rng):
    """Rain, [catchments, HOURS, 2] with what falls on the hills and in the valley, and levels, [catchments, HOURS]."""
    wet = rng.random((catchments, HOURS, 2)) < 0.12
    rain = wet * rng.gamma(1.5, 0.8, (catchments, HOURS, 2))
    stored = np.zeros((catchments, len(SOILS)))
    levels = np.empty((catchments, HOURS))
    takes, drains = (np.array(column) for column in zip(*SOILS, strict=True))
    for hour in range(HOURS):
        falls = rain[:, hour] @ np.array([0.7, 0.3])
        stored += takes * falls[:, None] - stored / drains
        levels[:, hour] = (stored / drains).sum(axis=1)
    levels = 5 * levels + rng.normal(0, 0.02, levels.shape)
    return torch.as_tensor(rain, dtype=torch.float32), torch.as_tensor(levels, dtype=torch.float32)
