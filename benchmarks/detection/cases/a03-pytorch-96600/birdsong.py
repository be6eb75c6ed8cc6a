"""Spectrograms of made-up bird calls: each species sings its own kind of sweep, trill or pair of notes."""

import numpy as np
import torch

SPECIES = ("riser", "faller", "triller", "two-note", "arch")
FRAMES, BANDS = 36, 14


def pitch_track(species, rng):
    """The band that is sung in each frame, with silence as NaN."""
    time = np.linspace(0, 1, FRAMES)
    low, span = rng.uniform(1, 4), rng.uniform(5, 8)
    if species == 0:
        track = low + span * time
    elif species == 1:
        track = low + span * (1 - time)
    elif species == 2:
        track = low + span / 2 * (1 + np.sin(2 * np.pi * rng.uniform(4, 6) * time))
    elif species == 3:
        track = np.where(time < 0.5, low + span, low)
    else:
        track = low + span * np.sin(np.pi * time)
    track = np.roll(track, rng.integers(-4, 5))
    track[rng.random(FRAMES) < 0.1] = np.nan
    return track


def recordings(number, seed):
    """`number` spectrograms (number, FRAMES, BANDS) and the species that is heard in each."""
    rng = np.random.default_rng(seed)
    species = rng.integers(0, len(SPECIES), number)
    bands = np.arange(BANDS)
    calls = np.stack([np.exp(-((bands - pitch_track(kind, rng)[:, None]) ** 2)) for kind in species])
    calls = np.nan_to_num(calls) + rng.gamma(1.0, 0.15, calls.shape)
    return torch.as_tensor(np.log(calls + 0.05), dtype=torch.float32), torch.as_tensor(species)
