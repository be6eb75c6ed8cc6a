"""Training in bfloat16: float32 master copies of the parameters, which any optimizer of torch updates."""

import torch
import torch.distributed as dist
from tensor_parallel import is_model_parallel


class BF16Optimizer:
    """Updates bfloat16 parameters through their masters, with gradients clipped by their global norm.

    `make` gets the list of masters and returns the optimizer that is to update them.
    """

    def __init__(self, parameters, make, clip_norm):
        self.parameters = list(parameters)
        self.masters = [parameter.detach().float().clone() for parameter in self.parameters]
        self.optimizer = make(self.masters)
        self.clip_norm = clip_norm
        self.tp_rank = dist.get_rank()

    def zero_grad(self):
        for parameter, master in zip(self.parameters, self.masters, strict=True):
            parameter.grad = master.grad = None

    def gradients(self):
        return [master.grad for master in self.masters]

    def gradients_for_norm(self):
        """The gradients of which this rank adds the norm: its parts, and on rank 0 what all ranks hold."""
        pairs = zip(self.parameters, self.masters, strict=True)
        return [master.grad for parameter, master in pairs if is_model_parallel(parameter) or self.tp_rank == 0]

    def global_norm(self):
        total = sum(gradient.square().sum() for gradient in self.gradients_for_norm())
        dist.all_reduce(total)
        return total.sqrt()

    def clip(self):
        """Scale the gradients so that their norm is at most `clip_norm`; returns the norm before."""
        norm = self.global_norm()
        scale = torch.clamp(self.clip_norm / (norm + 1e-6), max=1.0)
        for gradient in self.gradients_for_norm():
            gradient.mul_(scale)
        return norm

    @torch.no_grad()
    def step(self):
        for parameter, master in zip(self.parameters, self.masters, strict=True):
            master.grad = parameter.grad.float()
        norm = self.clip()
        self.optimizer.step()
        for parameter, master in zip(self.parameters, self.masters, strict=True):
            parameter.copy_(master)
        return norm.item()
