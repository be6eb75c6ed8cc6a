"""Clips gradients in a pipeline. Each group of parameters has a limit of its own and may be spread over the stages."""

import torch
import torch.distributed as dist


def pipeline_norm(group, members):
    """The norm of the gradients of a group in the whole pipeline; `members` are its parameters in this stage."""
    square = torch.zeros(())
    for parameter in members:
        square += parameter.grad.square().sum()
    dist.all_reduce(square)
    return square.sqrt()


@torch.no_grad()
def clip_groups(stage, limits):
    """Scale the gradients of each group so that their norm is at most the limit of the group."""
    for group, limit in limits.items():
        members = stage.members(group)
        if not members:
            continue
        norm = pipeline_norm(group, members)
        scale = torch.clamp(limit / (norm + 1e-6), max=1.0)
        for parameter in members:
            parameter.grad.mul_(scale)
