"""How often post_init sets each parameter by a function of torch.nn.init."""

from collections import Counter

import torch
from torch.nn import init

NAMES = [name for name in dir(init) if name.endswith("_") and not name.startswith("_")]


def watch(record):
    import pretrained_base

    post_init = pretrained_base.PreTrainedBase.post_init
    counts, running, depth = Counter(), [False], [0]

    def counted(function):
        def called(tensor, *args, **kwargs):
            if running[0] and not depth[0]:
                counts[id(tensor)] += 1
            depth[0] += 1
            try:
                return function(tensor, *args, **kwargs)
            finally:
                depth[0] -= 1

        return called

    def initialised(self):
        running[0] = True
        post_init(self)
        running[0] = False
        times = [counts[id(parameter)] for parameter in self.parameters()]
        record(step=0, most=max(times), parameters=len(times), repeated=sum(n > 1 for n in times))

    for name in NAMES:
        setattr(torch.nn.init, name, counted(getattr(init, name)))
    pretrained_base.PreTrainedBase.post_init = initialised


def first_bad_step(ranks):
    return next((seen["step"] for seen in ranks[0] if seen["repeated"]), None)
