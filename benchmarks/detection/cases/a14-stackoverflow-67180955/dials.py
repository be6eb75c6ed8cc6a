"""Drawn photographs of pressure dials: a ring, a needle, and the angle that it points to."""

import numpy as np
import torch
from torch.utils.data import Dataset

SIDE = 20


def draw(angle):
    """A dial as an image with values in [0, 1]."""
    y, x = np.mgrid[-1 : 1 : SIDE * 1j, -1 : 1 : SIDE * 1j]
    ring = np.exp(-(((np.hypot(x, y) - 0.85) / 0.1) ** 2))
    along = x * np.cos(angle) + y * np.sin(angle)
    across = -x * np.sin(angle) + y * np.cos(angle)
    needle = np.exp(-((across / 0.12) ** 2)) * (along > 0) * (along < 0.7)
    return np.maximum(0.5 * ring, needle).astype(np.float32)


def augment(image):
    """The image shifted a little, under other light, with the noise of a cheap camera."""
    shift = np.random.randint(-2, 3, size=2)
    light = np.random.uniform(0.6, 1.4)
    grain = np.random.normal(0, 0.08, image.shape)
    return light * np.roll(image, shift, axis=(0, 1)) + grain


class DialPhotos(Dataset):
    """Photographs and, as target, the direction of the needle."""

    def __init__(self, count, seed, augmented):
        angles = np.random.default_rng(seed).uniform(-np.pi, np.pi, count)
        self.images = [draw(angle) for angle in angles]
        self.directions = torch.tensor(np.stack([np.cos(angles), np.sin(angles)], 1), dtype=torch.float32)
        self.augmented = augmented

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = augment(self.images[index]) if self.augmented else self.images[index]
        return torch.as_tensor(image, dtype=torch.float32)[None], self.directions[index]
