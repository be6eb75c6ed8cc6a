"""The norm of the gradients that an optimizer step uses, against the bound that clipping was asked for."""

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook


def watch(record):
    import clipping

    clip, requested, updates = clipping.clip_gradients, [None], [0]

    def clipped(parameters, max_norm, *args, **kwargs):
        requested[0] = max_norm
        return clip(parameters, max_norm, *args, **kwargs)

    def starting(optimizer, args, kwargs):
        updates[0] += 1
        held = [p for group in optimizer.param_groups for p in group["params"]]
        used = torch.cat([p.grad.flatten() for p in held if p.grad is not None]).norm().item()
        record(step=updates[0], asked=requested[0], used=used)

    clipping.clip_gradients = clipped
    register_optimizer_step_pre_hook(starting)


def first_bad_step(ranks):
    return next((seen["step"] for seen in ranks[0] if seen["used"] > 1.001 * seen["asked"]), None)
