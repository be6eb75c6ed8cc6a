"""The true spectral norm of each weight that a forward used."""

import torch
from torch.nn.modules.module import register_module_forward_hook
from torch.optim.optimizer import register_optimizer_step_post_hook


def watch(record):
    updates = [0]

    def stepped(optimizer, args, kwargs):
        updates[0] += 1

    def used(module, inputs, output):
        if hasattr(module, "weight_orig"):
            norm = torch.linalg.matrix_norm(module.weight.detach().flatten(1), ord=2).item()
            record(step=updates[0] + module.training, norm=norm)

    register_optimizer_step_post_hook(stepped)
    register_module_forward_hook(used)


def first_bad_step(ranks):
    return next((seen["step"] for seen in ranks[0] if not 0.5 < seen["norm"] < 2), None)
