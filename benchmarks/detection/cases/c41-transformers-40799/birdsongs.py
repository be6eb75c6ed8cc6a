"""Spectrograms of made-up birds: each species whistles its own figure at some pitch and time, over wind."""

import torch
from torch.utils.data import Dataset

SPECIES = ("riser", "faller", "triller", "double caller", "hummer")
BANDS, FRAMES = 32, 32


def sing(species, generator):
    """One spectrogram, [BANDS, FRAMES]."""

    def between(low, high):
        return low + (high - low) * torch.rand((), generator=generator)

    time = torch.linspace(0, 1, FRAMES)
    pitch, start, length = between(0.4, 0.6), between(0.1, 0.3), between(0.45, 0.6)
    inside = ((time > start) & (time < start + length)).float()
    course = (time - start) / length
    figures = {
        "riser": pitch + 0.25 * (course - 0.5),
        "faller": pitch - 0.25 * (course - 0.5),
        "triller": pitch + 0.1 * torch.sin(2 * torch.pi * 4 * course),
        "double caller": pitch + 0 * course,
        "hummer": 0.12 + 0 * course,
    }
    if species == "double caller":
        inside = inside * ((course < 0.3) | (course > 0.7)).float()
    bands = torch.linspace(0, 1, BANDS)[:, None]
    song = torch.exp(-(((bands - figures[species]) / 0.04) ** 2)) * inside
    wind = 0.25 * torch.rand(BANDS, FRAMES, generator=generator) * (1 - 0.6 * bands)
    return between(0.7, 1.2) * song + wind


class BirdSongs(Dataset):
    def __init__(self, count, seed):
        generator = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(len(SPECIES), (count,), generator=generator)
        self.songs = torch.stack([sing(SPECIES[label], generator) for label in self.labels])

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return {"spectrogram": self.songs[index], "label": self.labels[index]}
