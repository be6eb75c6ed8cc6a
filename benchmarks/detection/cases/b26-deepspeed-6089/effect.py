"""Capacities that ranks use in the same forward, and that are not the same."""

from torch.optim.optimizer import register_optimizer_step_post_hook


def watch(record):
    import gating

    capacity_of, steps = gating.capacity_of, [0]

    def watched(*args, **kwargs):
        capacity = capacity_of(*args, **kwargs)
        record(step=steps[0] + 1, capacity=int(capacity))
        return capacity

    def stepped(optimizer, args, kwargs):
        steps[0] += 1

    gating.capacity_of = watched
    register_optimizer_step_post_hook(stepped)


def first_bad_step(ranks):
    pairs = zip(*ranks, strict=True)
    return next((first["step"] for first, other in pairs if first["capacity"] != other["capacity"]), None)
