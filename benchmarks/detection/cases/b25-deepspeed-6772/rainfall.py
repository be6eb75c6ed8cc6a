"""A made-up country of four climates, and the rain that falls at a place and season."""

import math

import torch

CLIMATES = 4


def climate_of(places):
    """Quadrants of the map, numbered."""
    return 2 * (places[:, 0] > 0).long() + (places[:, 1] > 0).long()


class RainStations:
    """Places on [-1, 1]^2 with a season in [0, 1); what a rank draws is its own."""

    def __init__(self, seed, rank=0):
        self.generator = torch.Generator().manual_seed(1000 * seed + rank)
        self.tilt = torch.tensor([[2.0, 0.5], [-1.0, 1.5], [0.5, -2.0], [-1.5, -1.0]])
        self.peak = torch.tensor([0.1, 0.35, 0.6, 0.85])

    def sample(self, count):
        """Features (count, 4): the place, and the season as a direction; rain (count,)."""
        places = 2 * torch.rand(count, 2, generator=self.generator) - 1
        season = 2 * math.pi * torch.rand(count, generator=self.generator)
        climate = climate_of(places)
        slope = (places * self.tilt[climate]).sum(1)
        rain = slope + torch.cos(season - 2 * math.pi * self.peak[climate])
        rain = rain + 0.05 * torch.randn(count, generator=self.generator)
        return torch.cat([places, season.cos()[:, None], season.sin()[:, None]], 1), rain
