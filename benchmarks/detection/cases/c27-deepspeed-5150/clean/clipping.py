"""Gradient clipping by the norm of all gradients together."""

import torch


def global_norm(gradients):
    """The Euclidean norm of all gradients as one vector."""
    return torch.stack([gradient.norm() for gradient in gradients]).norm()


@torch.no_grad()
def clip_gradients(parameters, max_norm, eps=1e-6):
    """Scale gradients such that their norm is at most `max_norm`; the norm that they had."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = global_norm(gradients)
    coefficient = torch.clamp(max_norm / (norm + eps), max=1.0)
    for gradient in gradients:
        gradient.mul_(coefficient)
    return norm
