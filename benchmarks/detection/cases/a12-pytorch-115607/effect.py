"""Parameters with a gradient that is not zero, and how many of them an optimizer step changes."""

from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook


def watch(record):
    before, updates = [], [0]

    def starting(optimizer, args, kwargs):
        held = [p for group in optimizer.param_groups for p in group["params"]]
        before[:] = [(p, p.detach().clone()) for p in held if p.grad is not None and bool(p.grad.any())]

    def ended(optimizer, args, kwargs):
        updates[0] += 1
        changed = sum(not p.detach().equal(old) for p, old in before)
        record(step=updates[0], with_gradient=len(before), changed=changed)

    register_optimizer_step_pre_hook(starting)
    register_optimizer_step_post_hook(ended)


def first_bad_step(ranks):
    return next((seen["step"] for seen in ranks[0] if seen["changed"] < seen["with_gradient"]), None)
