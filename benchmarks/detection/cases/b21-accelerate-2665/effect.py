"""Parameters of the prepared model that have a gradient, and how many of them an optimizer step changes."""

from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook


def watch(record):
    import launcher

    models, before, updates = [], [], [0]
    prepare = launcher.Launcher.prepare

    def prepared(self, *things):
        ready = prepare(self, *things)
        models.extend(value for value in ready if isinstance(value, nn.Module))
        return ready

    def starting(optimizer, args, kwargs):
        live = [p for model in models for p in model.parameters()]
        before[:] = [(p, p.detach().clone()) for p in live if p.grad is not None and bool(p.grad.any())]

    def ended(optimizer, args, kwargs):
        updates[0] += 1
        changed = sum(not p.detach().equal(old) for p, old in before)
        record(step=updates[0], with_gradient=len(before), changed=changed)

    launcher.Launcher.prepare = prepared
    register_optimizer_step_pre_hook(starting)
    register_optimizer_step_post_hook(ended)


def first_bad_step(ranks):
    return next((seen["step"] for seen in ranks[0] if seen["with_gradient"] and not seen["changed"]), None)
