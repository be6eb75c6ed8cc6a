"""Launcher: takes what a training loop is made of, and prepares it to run fast on this machine."""

import torch
from torch import nn


def flatten(model):
    """Lay the parameters of a model out in one buffer; the new parameter for each old one."""
    size = sum(parameter.numel() for parameter in model.parameters())
    buffer = torch.empty(size, dtype=next(model.parameters()).dtype)
    moved, offset = {}, 0
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if parameter not in moved:
                place = buffer[offset : offset + parameter.numel()].view_as(parameter)
                offset += parameter.numel()
                place.copy_(parameter.detach())
                moved[parameter] = nn.Parameter(place, requires_grad=parameter.requires_grad)
            setattr(module, name, moved[parameter])
    return moved


class Launcher:
    """
    launcher = Launcher()
    model, optimizer, loader = launcher.prepare(model, optimizer, loader)
    """

    def __init__(self, max_grad_norm=None):
        self.max_grad_norm = max_grad_norm

    def prepare(self, *things):
        """The things ready to use, in the same order."""
        for thing in things:
            if isinstance(thing, nn.Module):
                flatten(thing)
        return things

    def backward(self, loss, model):
        loss.backward()
        if self.max_grad_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), self.max_grad_norm)
