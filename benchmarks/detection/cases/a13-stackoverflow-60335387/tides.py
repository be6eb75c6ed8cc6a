"""Hourly water levels of made-up tide gauges: two tidal waves, a surge, and noise."""

import numpy as np
import torch
from torch.utils.data import Dataset


class TideGauges(Dataset):
    """Two days of levels, and the level three hours later."""

    def __init__(self, stations, hours, seed):
        rng = np.random.default_rng(seed)
        time = np.arange(hours)
        levels = []
        for _ in range(stations):
            lunar = rng.uniform(0.5, 2.0) * np.sin(2 * np.pi * time / 12.42 + rng.uniform(0, 6))
            solar = rng.uniform(0.1, 0.6) * np.sin(2 * np.pi * time / 12.0 + rng.uniform(0, 6))
            surge = np.cumsum(rng.normal(0, 0.02, hours))
            levels.append(lunar + solar + surge + rng.normal(0, 0.03, hours))
        self.levels = torch.as_tensor(np.stack(levels), dtype=torch.float32)
        self.starts = [(s, t) for s in range(stations) for t in range(0, hours - 51, 17)]

    def __len__(self):
        return len(self.starts)

    def __getitem__(self, index):
        station, start = self.starts[index]
        window = self.levels[station, start : start + 48]
        return window[:, None], self.levels[station, start + 50]
