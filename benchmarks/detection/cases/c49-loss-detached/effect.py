"""Parameters that a training forward computed with and that have no gradient when the optimizer updates."""

from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_pre_hook


def watch(record):
    computed, updates = {}, [0]

    def entered(module, inputs):
        if module.training:
            computed.update((id(parameter), True) for parameter in module.parameters(recurse=False))

    def used(optimizer, args, kwargs):
        updates[0] += 1
        held = [p for group in optimizer.param_groups for p in group["params"] if id(p) in computed]
        record(step=updates[0], held=len(held), without=sum(p.grad is None or not p.grad.any() for p in held))

    register_module_forward_pre_hook(entered)
    register_optimizer_step_pre_hook(used)


def first_bad_step(ranks):
    return next((seen["step"] for seen in ranks[0] if seen["without"]), None)
