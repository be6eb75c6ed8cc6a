"""Grey textures of five kinds, drawn with random scale, direction and noise."""

import numpy as np
import torch
from torch.utils.data import TensorDataset

KINDS = ("stripes", "checks", "dots", "weave", "clouds")
SIZE = 20


def draw(kind: str, rng: np.random.Generator) -> np.ndarray:
    """One texture of the kind, with values around zero."""
    angle, period = rng.uniform(0, np.pi), rng.uniform(4.0, 7.0)
    y, x = np.mgrid[0:SIZE, 0:SIZE] * (2 * np.pi / period)
    u = x * np.cos(angle) + y * np.sin(angle) + rng.uniform(0, 6)
    v = y * np.cos(angle) - x * np.sin(angle) + rng.uniform(0, 6)
    if kind == "stripes":
        image = np.sin(u)
    elif kind == "checks":
        image = np.sign(np.sin(u) * np.sin(v))
    elif kind == "dots":
        image = 2.0 * (np.cos(u) + np.cos(v) > 1.1) - 0.5
    elif kind == "weave":
        image = np.maximum(np.sin(u), np.sin(v))
    else:
        spectrum = np.fft.rfft2(rng.normal(size=(SIZE, SIZE)))
        radius = np.hypot(np.fft.fftfreq(SIZE)[:, None], np.fft.rfftfreq(SIZE)[None])
        image = np.fft.irfft2(spectrum / (0.05 + radius), s=(SIZE, SIZE))
        image = image / image.std()
    return image + rng.normal(0, 0.3, image.shape)


def texture_set(per_class: int, seed: int) -> TensorDataset:
    """Images (N, 1, SIZE, SIZE) and the index of their kind."""
    rng = np.random.default_rng(seed)
    images = [draw(kind, rng) for kind in KINDS for _ in range(per_class)]
    labels = torch.arange(len(KINDS)).repeat_interleave(per_class)
    return TensorDataset(torch.as_tensor(np.stack(images), dtype=torch.float32)[:, None], labels)
