"""Parameters to which backward has brought a gradient since the last step, and how many of them a step changes."""

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook


def watch(record):
    brought, before, updates = {}, [], [0]
    init = torch.optim.Optimizer.__init__

    def arrived(parameter):
        if bool(parameter.grad.any()):
            brought[id(parameter)] = parameter

    def built(self, *args, **kwargs):
        init(self, *args, **kwargs)
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.register_post_accumulate_grad_hook(arrived)

    def starting(optimizer, args, kwargs):
        before[:] = [(p, p.detach().clone()) for p in brought.values()]

    def ended(optimizer, args, kwargs):
        updates[0] += 1
        changed = sum(not p.detach().equal(old) for p, old in before)
        record(step=updates[0], with_gradient=len(before), changed=changed)
        brought.clear()

    torch.optim.Optimizer.__init__ = built
    register_optimizer_step_pre_hook(starting)
    register_optimizer_step_post_hook(ended)


def first_bad_step(ranks):
    return next((seen["step"] for seen in ranks[0] if seen["with_gradient"] and not seen["changed"]), None)
