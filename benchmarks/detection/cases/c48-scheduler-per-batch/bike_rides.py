"""Hourly rides of a made-up bike rental: rush hours on working days, afternoons at weekends, and the weather."""

import numpy as np
import torch
from torch.utils.data import TensorDataset


def rides(days, seed):
    """Hour, weekday and weather (temperature, rain, wind) of each hour, and the logarithm of the rides."""
    rng = np.random.default_rng(seed)
    hour = np.tile(np.arange(24), days)
    weekday = np.repeat(np.arange(days) % 7, 24)
    season = np.repeat(rng.uniform(0, 25, days), 24)
    temperature = season + 5 * np.sin((hour - 9) / 24 * 2 * np.pi)
    rain = (rng.random(len(hour)) < 0.2) * rng.exponential(1.0, len(hour))
    wind = rng.gamma(2.0, 2.0, len(hour))
    rush = np.exp(-0.3 * (hour - 8) ** 2) + np.exp(-0.2 * (hour - 17) ** 2)
    leisure = np.exp(-0.05 * (hour - 15) ** 2)
    log_rides = 1 + np.where(weekday < 5, 3 * rush + leisure, 2.5 * leisure)
    log_rides += 0.06 * temperature - 0.002 * (temperature - 18) ** 2 - 0.6 * np.minimum(rain, 2) - 0.04 * wind
    log_rides += rng.normal(0, 0.15, len(hour))
    weather = np.stack([temperature / 10 - 1.2, rain, wind / 4 - 1], axis=1)
    return TensorDataset(
        torch.as_tensor(hour),
        torch.as_tensor(weekday),
        torch.as_tensor(weather, dtype=torch.float32),
        torch.as_tensor(log_rides, dtype=torch.float32),
    )
