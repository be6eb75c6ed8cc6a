"""Parameters of the frozen stages that an update moved."""

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook


def watch(record):
    import stagenet

    init = stagenet.StageNet.__init__
    backbones, before, updates = [], [], [0]

    def built(self, *args, **kwargs):
        init(self, *args, **kwargs)
        backbones.append(self)

    def frozen():
        parts = [part for net in backbones for part in [net.stem, *net.stages[: net.frozen_stages]]]
        return [p.detach() for part in parts for p in part.parameters()]

    def starting(optimizer, args, kwargs):
        before[:] = [p.clone() for p in frozen()]

    def stepped(optimizer, args, kwargs):
        updates[0] += 1
        moved = sum(not torch.equal(old, new) for old, new in zip(before, frozen(), strict=True))
        record(step=updates[0], moved=moved, parameters=len(before))

    stagenet.StageNet.__init__ = built
    register_optimizer_step_pre_hook(starting)
    register_optimizer_step_post_hook(stepped)


def first_bad_step(ranks):
    return next((seen["step"] for seen in ranks[0] if seen["moved"]), None)
