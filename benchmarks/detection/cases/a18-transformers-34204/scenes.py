"""Scenes with one coloured shape on each side, and questions about them."""

import random

import numpy as np
from torch.utils.data import Dataset

SIZE = 12
COLOURS = {"red": (0.9, 0.1, 0.1), "green": (0.1, 0.8, 0.2), "blue": (0.1, 0.2, 0.9), "yellow": (0.9, 0.9, 0.1)}
SIDES = ("left", "right")
ANSWERS = list(COLOURS)
WORDS = ["which", "colour", "is", "the", "shape", "on", *SIDES]


def paint(picture, colour, round_shape, centre):
    y, x = np.mgrid[0:SIZE, 0:SIZE]
    dy, dx = np.abs(y - centre[0]), np.abs(x - centre[1])
    inside = np.hypot(dy, dx) < 2.6 if round_shape else np.maximum(dy, dx) < 2.2
    picture[inside] = COLOURS[colour]


class SceneQuestions(Dataset):
    """Items (image, question, index of the answer)."""

    def __init__(self, count, seed):
        rng = random.Random(seed)
        self.items = [self.scene(rng) for _ in range(count)]

    @staticmethod
    def scene(rng):
        picture = np.full((SIZE, SIZE, 3), rng.uniform(0.4, 0.7))
        colours = rng.sample(ANSWERS, 2)
        for side, colour in enumerate(colours):
            centre = (rng.uniform(3, 8), 2.7 + 5.6 * side + rng.uniform(-0.4, 0.4))
            paint(picture, colour, rng.random() < 0.5, centre)
        picture += np.random.default_rng(rng.randrange(10**6)).normal(0, 0.03, picture.shape)
        asked = rng.randrange(2)
        return picture, f"Which colour is the shape on the {SIDES[asked]}", ANSWERS.index(colours[asked])

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]
