"""How many of the parameters that an optimizer was built with still require gradients when it updates them."""

from torch.optim.optimizer import register_optimizer_step_pre_hook


def watch(record):
    updates = [0]

    def used(optimizer, args, kwargs):
        updates[0] += 1
        held = [p for group in optimizer.param_groups for p in group["params"]]
        missing = sum(p.grad is None for p in held)
        record(step=updates[0], lost=sum(not p.requires_grad for p in held), without_gradient=missing)

    register_optimizer_step_pre_hook(used)


def first_bad_step(ranks):
    return next((seen["step"] for seen in ranks[0] if seen["lost"] or seen["without_gradient"]), None)
