"""Blocks that ranks send each other in the same call, and that are not of the same size."""

import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook


def watch(record):
    isend, steps = dist.isend, [0]

    def sending(tensor, *args, **kwargs):
        record(step=steps[0] + 1, size=tensor.numel())
        return isend(tensor, *args, **kwargs)

    def stepped(optimizer, args, kwargs):
        steps[0] += 1

    dist.isend = sending
    register_optimizer_step_post_hook(stepped)


def first_bad_step(ranks):
    pairs = zip(*ranks, strict=True)
    return next((first["step"] for first, other in pairs if first["size"] != other["size"]), None)
