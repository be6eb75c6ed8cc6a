"""Made-up electrocardiograms: a few bumps for each beat, a drifting baseline, and noise of the mains."""

import math

import torch

SAMPLES = 256
FULL_SCALE = 20.0
"""Of the converter, in mV; recordings are fractions of it."""
BUMPS = ((-0.20, 0.12, 0.030), (-0.03, -0.15, 0.010), (0.0, 1.1, 0.012), (0.03, -0.25, 0.012), (0.28, 0.3, 0.045))
"""Place in the beat (s), height (mV) and width (s) of the waves P, Q, R, S and T."""


def record_beats(count, generator):
    """Noisy recordings and what they were without noise, [count, SAMPLES] each; one second each."""
    time = torch.linspace(-0.5, 0.5, SAMPLES)
    clean = torch.zeros(count, SAMPLES)
    shift = 0.08 * torch.randn(count, 1, generator=generator)
    for place, height, width in BUMPS:
        heights = height * (1 + 0.25 * torch.randn(count, 1, generator=generator))
        clean += heights * torch.exp(-(((time - place - shift) / width) ** 2) / 2)
    phase = 2 * math.pi * torch.rand(count, 1, generator=generator)
    mains = 0.15 * torch.sin(2 * math.pi * 50 * time + phase)
    drift = 0.2 * torch.randn(count, 1, generator=generator) * time
    noisy = clean + mains + drift + 0.05 * torch.randn(count, SAMPLES, generator=generator)
    return noisy / FULL_SCALE, clean / FULL_SCALE
