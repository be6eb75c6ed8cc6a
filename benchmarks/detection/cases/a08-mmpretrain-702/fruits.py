"""Pictures of round fruits that turn from green to red as they ripen, some of them with brown spots."""

import numpy as np
import torch
from torch.utils.data import Dataset

SIZE = 16
GREEN, RED, BROWN = np.array([0.2, 0.7, 0.1]), np.array([0.8, 0.15, 0.1]), np.array([0.3, 0.2, 0.1])


class FruitPictures(Dataset):
    """A picture (3, SIZE, SIZE) and its grade: ripe fruit grades high, each spot takes a tenth."""

    def __init__(self, count, seed):
        rng = np.random.default_rng(seed)
        self.items = [self.fruit(rng) for _ in range(count)]

    @staticmethod
    def fruit(rng):
        ripe, spots = rng.uniform(0, 1), rng.integers(0, 4)
        y, x = np.mgrid[0:SIZE, 0:SIZE]
        centre = SIZE / 2 + rng.uniform(-1.5, 1.5, 2)
        radius = rng.uniform(5, 7)
        picture = np.full((SIZE, SIZE, 3), rng.uniform(0.5, 0.9))
        picture[np.hypot(y - centre[0], x - centre[1]) < radius] = ripe * RED + (1 - ripe) * GREEN
        for _ in range(spots):
            spot = centre + rng.uniform(-0.5, 0.5, 2) * radius
            picture[np.hypot(y - spot[0], x - spot[1]) < 1.5] = BROWN
        picture = picture + rng.normal(0, 0.03, picture.shape)
        pixels = torch.as_tensor(picture.transpose(2, 0, 1) - 0.5, dtype=torch.float32)
        return pixels, torch.tensor(ripe - 0.1 * spots, dtype=torch.float32)

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]
