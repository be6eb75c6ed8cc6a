"""Peak rates of the parameter groups, and the rates used, against the schedule that the first updates followed."""

import math

from torch.optim.optimizer import register_optimizer_step_pre_hook


def watch(record):
    updates = [0]

    def used(optimizer, args, kwargs):
        updates[0] += 1
        groups = optimizer.param_groups
        record(
            step=updates[0],
            peaks=[group["initial_lr"] for group in groups],
            rates=[group["lr"] for group in groups],
        )

    register_optimizer_step_pre_hook(used)


def first_bad_step(ranks):
    first = ranks[0][0]["peaks"]
    total = len(ranks[0])

    def share(step, warmup=4, floor=0.1):
        done = (step - 1 - warmup) / (total - warmup)
        return step / warmup if step <= warmup else floor + (1 - floor) * (1 + math.cos(math.pi * done)) / 2

    for seen in ranks[0]:
        expected = [peak * share(seen["step"]) for peak in first]
        if seen["peaks"] != first or any(abs(r / w - 1) > 1e-6 for r, w in zip(seen["rates"], expected, strict=True)):
            return seen["step"]
    return None
