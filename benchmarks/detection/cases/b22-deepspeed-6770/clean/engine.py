"""An engine that trains a model in bfloat16, with master weights in float32 for the client's optimizer."""

from functools import partial

import torch
from torch import nn


def cast(model, dtype):
    """Replace the parameters of a model by ones of that dtype."""
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            setattr(module, name, nn.Parameter(parameter.detach().to(dtype), parameter.requires_grad))


def hand_over(master, parameter):
    """Move a gradient from a low-precision parameter to its master, where it is summed in float32."""
    gradient = parameter.grad.float()
    master.grad = gradient if master.grad is None else master.grad + gradient
    parameter.grad = None


class Engine:
    """Owns the loop's backward and step; `module` is what to call."""

    def __init__(self, model, optimizer, dtype=torch.bfloat16, clip=1.0):
        self.module = model
        self.optimizer = optimizer
        self.clip = clip
        names = {parameter: name for name, parameter in model.named_parameters()}
        cast(model, dtype)
        current = dict(model.named_parameters())
        self.masters, self.copies = [], []
        for group in optimizer.param_groups:
            held = group["params"]
            group["params"] = [parameter.detach().float().clone().requires_grad_() for parameter in held]
            for parameter, master in zip(held, group["params"], strict=True):
                current[names[parameter]].register_post_accumulate_grad_hook(partial(hand_over, master))
            self.masters += group["params"]
            self.copies += [current[names[parameter]] for parameter in held]

    def __call__(self, *inputs):
        return self.module(*inputs)

    def backward(self, loss):
        loss.backward()

    def step(self):
        norm = nn.utils.clip_grad_norm_(self.masters, self.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.write_back()
        return norm

    @torch.no_grad()
    def write_back(self):
        for copy, master in zip(self.copies, self.masters, strict=True):
            copy.copy_(master)


def initialize(model, optimizer, **options):
    """The engine for a model, and the optimizer, which from now on holds the masters."""
    engine = Engine(model, optimizer, **options)
    return engine, engine.optimizer
