"""The norm of the gradients that an update uses, against what clipping their true norm would give."""

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook


def watch(record):
    scalers, true_norm, limit, updates = [], [], [], [0]
    backward = torch.Tensor.backward
    clip = torch.nn.utils.clip_grad_norm_

    def norm_of(gradients):
        return torch.stack([grad.double().norm() for grad in gradients]).norm().item()

    def built(self, *args, **kwargs):
        init(self, *args, **kwargs)
        scalers.append(self)

    def optimizer_built(self, *args, **kwargs):
        optimizer_init(self, *args, **kwargs)
        optimizers.append(self)

    def measured(self, *args, **kwargs):
        result = backward(self, *args, **kwargs)
        held = [p.grad for o in optimizers for group in o.param_groups for p in group["params"] if p.grad is not None]
        true_norm[:] = [norm_of(held) / scalers[-1].get_scale()]
        return result

    def clipped(parameters, max_norm, *args, **kwargs):
        limit[:] = [max_norm]
        return clip(parameters, max_norm, *args, **kwargs)

    def used(optimizer, args, kwargs):
        updates[0] += 1
        held = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        record(step=updates[0], used=norm_of(held), wanted=min(true_norm[0], limit[0]))

    optimizers = []
    init, torch.amp.GradScaler.__init__ = torch.amp.GradScaler.__init__, built
    optimizer_init, torch.optim.Optimizer.__init__ = torch.optim.Optimizer.__init__, optimizer_built
    torch.Tensor.backward = measured
    torch.nn.utils.clip_grad_norm_ = clipped
    register_optimizer_step_pre_hook(used)


def first_bad_step(ranks):
    return next((seen["step"] for seen in ranks[0] if not 0.9 < seen["used"] / seen["wanted"] < 1.1), None)
