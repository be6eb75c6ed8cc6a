"""The learning rates that the updates use: in a warm-up the second is above the first."""

from torch.optim.optimizer import register_optimizer_step_pre_hook


def watch(record):
    updates = [0]

    def used(optimizer, args, kwargs):
        updates[0] += 1
        record(step=updates[0], rates=[float(group["lr"]) for group in optimizer.param_groups])

    register_optimizer_step_pre_hook(used)


def first_bad_step(ranks):
    first, second = ranks[0][:2]
    drops = any(before > after for before, after in zip(first["rates"], second["rates"], strict=True))
    return first["step"] if drops else None
