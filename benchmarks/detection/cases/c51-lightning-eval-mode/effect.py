"""Modules that a forward with gradients runs in eval mode."""

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook


def watch(record):
    updates = [0]

    def entered(module, inputs):
        if torch.is_grad_enabled() and not module.training:
            record(step=updates[0] + 1, module=type(module).__name__)

    def stepped(optimizer, args, kwargs):
        updates[0] += 1

    register_module_forward_pre_hook(entered)
    register_optimizer_step_post_hook(stepped)


def first_bad_step(ranks):
    return min((seen["step"] for seen in ranks[0]), default=None)
