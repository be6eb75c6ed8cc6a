"""Rows of gradients that are exactly zero or, bit for bit, those of the update before."""

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook


def watch(record):
    before, updates = {}, [0]

    def used(optimizer, args, kwargs):
        updates[0] += 1
        unwritten = 0
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                rows = parameter.grad.detach().reshape(len(parameter), -1)
                old = before.get(parameter, torch.zeros_like(rows))
                unwritten += int(((rows == 0) | (rows == old)).all(dim=1).sum())
                before[parameter] = rows.clone()
        record(step=updates[0], unwritten=unwritten)

    register_optimizer_step_pre_hook(used)


def first_bad_step(ranks):
    return next((seen["step"] for seen in ranks[0] if seen["unwritten"]), None)
