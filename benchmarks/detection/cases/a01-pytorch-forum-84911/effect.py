"""Parameters of the optimizer that an update moved, and how many of them had a gradient."""

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook


def watch(record):
    before, updates = [], [0]

    def held(optimizer):
        return [p for group in optimizer.param_groups for p in group["params"]]

    def starting(optimizer, args, kwargs):
        before[:] = [p.detach().clone() for p in held(optimizer)]

    def stepped(optimizer, args, kwargs):
        updates[0] += 1
        now = held(optimizer)
        moved = sum(not torch.equal(old, new) for old, new in zip(before, now, strict=True))
        record(step=updates[0], moved=moved, with_gradient=sum(p.grad is not None for p in now), parameters=len(now))

    register_optimizer_step_pre_hook(starting)
    register_optimizer_step_post_hook(stepped)


def first_bad_step(ranks):
    return next((seen["step"] for seen in ranks[0] if seen["moved"] == seen["with_gradient"] == 0), None)
