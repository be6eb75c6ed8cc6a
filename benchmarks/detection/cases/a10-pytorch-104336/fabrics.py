"""Patches of made-up fabrics: plain, ribbed, checked, twill and dotted, in random period and phase, with noise."""

import numpy as np
import torch

WEAVES = ("plain", "rib", "check", "twill", "dots")
SIDE = 16


def weave(kind, rng):
    y, x = np.mgrid[:SIDE, :SIDE].astype(float)
    period = rng.uniform(3.5, 6.0)
    wave_x = np.sin(2 * np.pi * (x / period + rng.random()))
    wave_y = np.sin(2 * np.pi * (y / period + rng.random()))
    if kind == 0:
        return np.zeros((SIDE, SIDE))
    if kind == 1:
        return wave_y
    if kind == 2:
        return np.sign(wave_x * wave_y)
    if kind == 3:
        return np.sin(2 * np.pi * ((x + y) / (1.4 * period) + rng.random()))
    return 2.0 * (np.maximum(wave_x, 0) * np.maximum(wave_y, 0) > 0.3) - 0.5


def swatches(number, seed):
    """Patches (number, SIDE, SIDE) and their weaves."""
    rng = np.random.default_rng(seed)
    kinds = rng.integers(0, len(WEAVES), number)
    patches = np.stack([rng.uniform(0.6, 1.2) * weave(kind, rng) for kind in kinds])
    patches += rng.normal(0, 0.5, patches.shape)
    return torch.as_tensor(patches, dtype=torch.float32), torch.as_tensor(kinds)
