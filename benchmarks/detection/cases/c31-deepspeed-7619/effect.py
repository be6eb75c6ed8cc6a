"""The share of the gradients that an update uses and that are exactly zero."""

from torch.optim.optimizer import register_optimizer_step_pre_hook


def watch(record):
    updates = [0]

    def used(optimizer, args, kwargs):
        updates[0] += 1
        held = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        record(
            step=updates[0],
            zeros=sum(int((grad == 0).sum()) for grad in held),
            numbers=sum(grad.numel() for grad in held),
        )

    register_optimizer_step_pre_hook(used)


def first_bad_step(ranks):
    return next((seen["step"] for seen in ranks[0] if seen["zeros"] > 0.2 * seen["numbers"]), None)
