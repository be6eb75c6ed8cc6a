"""Gradients that a backward finds not cleared, though an update used them."""

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook


def watch(record):
    backward = torch.Tensor.backward
    optimizers, updates = [], [0]

    def built(self, *args, **kwargs):
        init(self, *args, **kwargs)
        optimizers.append(self)

    def stepped(optimizer, args, kwargs):
        updates[0] += 1

    def counted(self, *args, **kwargs):
        held = [p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]]
        left = sum(p.grad is not None and bool(p.grad.any()) for p in held)
        record(step=updates[0] + 1, left_over=left, parameters=len(held))
        return backward(self, *args, **kwargs)

    init = torch.optim.Optimizer.__init__
    torch.optim.Optimizer.__init__ = built
    torch.Tensor.backward = counted
    register_optimizer_step_post_hook(stepped)


def first_bad_step(ranks):
    return next((seen["step"] for seen in ranks[0] if seen["left_over"]), None)
