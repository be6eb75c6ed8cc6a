"""Parameters that differ between the ranks after an update, though all ranks should hold the same."""

import hashlib

from torch.optim.optimizer import register_optimizer_step_post_hook


def watch(record):
    updates = [0]

    def updated(optimizer, args, kwargs):
        updates[0] += 1
        held = [p for group in optimizer.param_groups for p in group["params"]]
        record(step=updates[0], weights=[hashlib.md5(p.detach().numpy().tobytes()).hexdigest() for p in held])

    register_optimizer_step_post_hook(updated)


def first_bad_step(ranks):
    return next(
        (first["step"] for first, other in zip(*ranks, strict=True) if first["weights"] != other["weights"]), None
    )
