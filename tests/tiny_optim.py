"""A library with an optimizer independent of `torch.optim`, for tests of sources that packages add."""

from __future__ import annotations

from collections.abc import Iterable

import torch


class SignSGD:
    """Moves each parameter by the sign of its gradient."""

    def __init__(self, parameters: Iterable[torch.Tensor], lr: float = 0.01) -> None:
        self.parameters = list(parameters)
        self.lr = lr

    @torch.no_grad()
    def step(self) -> None:
        for parameter in self.parameters:
            if parameter.grad is not None:
                parameter -= self.lr * parameter.grad.sign()

    def zero_grad(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None
