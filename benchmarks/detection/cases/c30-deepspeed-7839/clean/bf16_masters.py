"""Trains bfloat16 parameters by float32 masters, which any optimizer of torch updates. Nothing is sharded."""

import torch
from torch import nn


class BF16Optimizer:
    """`make_inner` gets the masters; `low` are the model's own parameters, to which backward brings gradients."""

    def __init__(self, parameters, make_inner, clip=None):
        self.low = [parameter for parameter in parameters if parameter.requires_grad]
        self.high = [parameter.detach().float().clone().requires_grad_() for parameter in self.low]
        self.inner = make_inner(self.high)
        self.clip = clip
        with torch.no_grad():
            for low in self.low:
                low.data = low.data.bfloat16()

    @torch.no_grad()
    def step(self):
        """Update the masters with the gradients of the model, and the model with the masters."""
        for low, high in zip(self.low, self.high, strict=True):
            if low.grad is not None:
                high.grad = low.grad.float()
        if self.clip is not None:
            nn.utils.clip_grad_norm_(self.high, self.clip)
        self.inner.step()
        for low, high in zip(self.low, self.high, strict=True):
            low.copy_(high)

    def zero_grad(self):
        for parameter in [*self.low, *self.high]:
            parameter.grad = None

    def state_dict(self):
        return {"inner": self.inner.state_dict(), "masters": [high.detach().clone() for high in self.high]}
