"""Define further workloads for `--workload MODULE:FUNCTION`."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

CLASSES, SIDE, BATCH = 4, 12, 16
NOISE, MISLABELLED = 1.5, 0.1
"""Noise relative to patterns of size 1, and the share of random labels, so that the loss falls but does not vanish."""


class Images:
    """A small convolutional network that learns which of four patterns a noisy image holds, with SGD and momentum."""

    def __init__(self, seed: int, device: torch.device) -> None:
        self.seed, self.device = seed, device
        draws = torch.Generator().manual_seed(seed)
        self._patterns = torch.randn(CLASSES, 1, SIDE, SIDE, generator=draws)

    def build_model(self) -> nn.Module:
        """Return two convolutions and a linear layer."""
        torch.manual_seed(self.seed)
        layers = (
            nn.Conv2d(1, 8, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(8, 16, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(16 * (SIDE // 2) ** 2, CLASSES),
        )
        return nn.Sequential(*layers).to(self.device)

    def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return SGD with momentum, the usual optimizer of image models."""
        return torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)

    def batch(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return images and the numbers of their patterns."""
        draws = torch.Generator().manual_seed(self.seed * 1_000_003 + step)
        labels = torch.randint(CLASSES, (BATCH,), generator=draws)
        images = self._patterns[labels] + NOISE * torch.randn(BATCH, 1, SIDE, SIDE, generator=draws)
        drawn = torch.randint(CLASSES, (BATCH,), generator=draws)
        labels = torch.where(torch.rand(BATCH, generator=draws) < MISLABELLED, drawn, labels)
        return images.to(self.device), labels.to(self.device)

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        """Return the cross entropy."""
        images, labels = batch
        return F.cross_entropy(model(images), labels)


def images(seed: int, device: torch.device) -> Images:
    """Return the workload of `--workload benchmarks.corruption.workloads:images`."""
    return Images(seed, device)
