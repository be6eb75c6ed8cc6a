"""Layers for networks that are 1-Lipschitz: spectral normalisation by a hook, and an activation that keeps norms."""

import torch
import torch.nn.functional as F
from torch import nn


class SpectralNorm:
    """A forward pre-hook that divides a weight by its largest singular value, estimated by power iteration."""

    def __init__(self, name, iterations, eps):
        self.name, self.iterations, self.eps = name, iterations, eps

    def iterate(self, module, times):
        matrix = getattr(module, f"{self.name}_orig").detach().flatten(1)
        u, v = getattr(module, f"{self.name}_u"), getattr(module, f"{self.name}_v")
        for _ in range(times):
            v.copy_(F.normalize(matrix.t() @ u, dim=0, eps=self.eps))
            u.copy_(F.normalize(matrix @ v, dim=0, eps=self.eps))

    def normalised(self, module):
        weight = getattr(module, f"{self.name}_orig")
        u, v = getattr(module, f"{self.name}_u").clone(), getattr(module, f"{self.name}_v").clone()
        return weight / torch.dot(u, weight.flatten(1) @ v)

    def __call__(self, module, inputs):
        if module.training:
            self.iterate(module, self.iterations)
        setattr(module, self.name, self.normalised(module))


def spectral_norm(module, name="weight", iterations=1, eps=1e-12):
    """Give a module a weight of spectral norm one; its parameter is called `<name>_orig` from then on."""
    weight = module._parameters.pop(name)
    rows, columns = weight.flatten(1).shape
    module.register_parameter(f"{name}_orig", weight)
    module.register_buffer(f"{name}_u", F.normalize(torch.randn(rows), dim=0))
    module.register_buffer(f"{name}_v", F.normalize(torch.randn(columns), dim=0))
    setattr(module, name, weight.detach())
    hook = SpectralNorm(name, iterations, eps)
    hook.iterate(module, 15)
    module.register_forward_pre_hook(hook)
    return module


class SortPairs(nn.Module):
    """Sorts neighbouring channels: nonlinear, and the gradient keeps its norm."""

    def forward(self, x):
        return x.unflatten(-1, (-1, 2)).sort(dim=-1).values.flatten(-2)
