"""Made-up wines of two countries: grape, soil, age, six readings of the laboratory, and the price on a log scale."""

import numpy as np
import torch
from torch.utils.data import TensorDataset

GRAPES, SOILS, READINGS = 12, 5, 6


def bottle(country, count, seed):
    """Wines of a country. Its taste decides what the same wine costs."""
    taste = np.random.default_rng([71, country])
    wines = np.random.default_rng([seed, country])
    grape, soil = wines.integers(GRAPES, size=count), wines.integers(SOILS, size=count)
    age = wines.gamma(2.0, 0.5, count)
    readings = wines.normal(size=(count, READINGS))
    shared = np.random.default_rng(7)
    worth = shared.normal(size=GRAPES) + 0.5 * taste.normal(size=GRAPES)
    ground = shared.normal(size=(SOILS, READINGS)) * 0.5 + taste.normal(size=(SOILS, READINGS)) * 0.3
    peak = 1.0 + 0.8 * taste.random()
    price = worth[grape] + (ground[soil] * np.tanh(readings)).sum(axis=1) - (age - peak) ** 2 / 2
    price += wines.normal(0, 0.1, count)
    numbers = np.column_stack([age, readings])
    return TensorDataset(
        torch.from_numpy(np.column_stack([grape, soil])),
        torch.as_tensor(numbers, dtype=torch.float32),
        torch.as_tensor(price, dtype=torch.float32),
    )
