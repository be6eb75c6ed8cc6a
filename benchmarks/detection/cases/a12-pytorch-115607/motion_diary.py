"""Windows of a made-up wrist accelerometer, day by day, labelled by its wearer, who is away on one day."""

import math

import torch

ACTIVITIES = ("rest", "walk", "run", "stairs")
DAYS = 9
AWAY = 4
UNKNOWN = -1


def windows(count, generator, length=48):
    """`count` windows (axes, time) and the activity in each."""
    kinds = torch.randint(len(ACTIVITIES), (count,), generator=generator)
    tempo = torch.tensor([0.0, 1.8, 2.9, 1.5])[kinds] + 0.1 * torch.randn(count, generator=generator)
    force = torch.tensor([0.0, 0.6, 1.4, 0.7])[kinds]
    lift = torch.tensor([0.0, 0.0, 0.2, 0.6])[kinds]
    time = torch.linspace(0, 3, length)
    phase = 2 * math.pi * (tempo[:, None] * time + torch.rand(count, 1, generator=generator))
    swing = torch.stack([torch.sin(phase), torch.cos(phase), lift[:, None] * torch.sin(2 * phase)], dim=1)
    noise = 0.3 * torch.randn(count, 3, length, generator=generator)
    return force[:, None, None] * swing + noise, kinds


class MotionDiary:
    """The days in the order in which they were recorded; the labels of the day away are unknown."""

    def __init__(self, per_day, seed):
        generator = torch.Generator().manual_seed(seed)
        self.days = []
        for day in range(DAYS):
            signal, kinds = windows(per_day, generator)
            self.days.append((signal, torch.full_like(kinds, UNKNOWN) if day == AWAY else kinds))

    def __iter__(self):
        return iter(self.days)
