"""Pairs of a random smooth function, seen at sensors, and its antiderivative at query points."""

import math

import torch


class Antiderivatives:
    """Functions are short sine series on [0, 1]; an antiderivative starts at zero."""

    def __init__(self, sensors=32, queries=24, terms=4, seed=0):
        self.generator = torch.Generator().manual_seed(seed)
        self.sensors = torch.linspace(0, 1, sensors)
        self.queries = torch.linspace(0, 1, queries)
        self.rates = math.pi * torch.arange(1, terms + 1)

    def sample(self, count):
        """`count` functions at the sensors, the query points as a column, the antiderivatives at these."""
        amplitudes = torch.randn(count, len(self.rates), generator=self.generator) / len(self.rates) ** 0.5
        functions = amplitudes @ torch.sin(self.rates[:, None] * self.sensors)
        integrals = (amplitudes / self.rates) @ (1 - torch.cos(self.rates[:, None] * self.queries))
        return functions, self.queries[:, None], 4 * integrals
