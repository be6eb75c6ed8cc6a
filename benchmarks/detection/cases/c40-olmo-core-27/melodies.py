"""Melodies of a made-up tradition: a motif, its answer a few notes higher, and a cadence."""

import numpy as np
import torch

NOTES = 24
LENGTH = 33
SCALE = np.array([0, 2, 4, 5, 7, 9, 11, 12, 14, 16, 17, 19, 21, 23])


def write_melodies(count, seed):
    """Melodies as numbers of notes, [count, LENGTH]."""
    rng = np.random.default_rng(seed)
    melodies = np.empty((count, LENGTH), dtype=np.int64)
    for melody in melodies:
        degrees = [int(rng.integers(2, 7))]
        for _ in range(7):
            leap = rng.choice([-2, -1, 1, 2], p=[0.15, 0.4, 0.3, 0.15])
            degrees.append(int(np.clip(degrees[-1] + leap, 0, 9)))
        motif = np.array(degrees)
        answer = motif + rng.integers(1, 5)
        cadence = np.array([4, 3, 2, 1, 2, 1, 0, 0, 0])
        melody[:] = SCALE[np.concatenate([motif, answer, motif, cadence])]
    return torch.from_numpy(melodies)
