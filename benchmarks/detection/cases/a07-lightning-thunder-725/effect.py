"""Data types of the matrix products that run inside the user's autocast region."""

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._python_dispatch import TorchDispatchMode

PRODUCTS = {"aten.mm", "aten.addmm", "aten.bmm", "aten.linear"}


def watch(record):
    regions, updates = [], [0]
    enter, leave = torch.autocast.__enter__, torch.autocast.__exit__

    def entered(self):
        regions.append(self._enabled and self.fast_dtype)
        return enter(self)

    def left(self, *error):
        regions.pop()
        return leave(self, *error)

    def stepped(optimizer, args, kwargs):
        updates[0] += 1

    class Products(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            expected = next((dtype for dtype in regions if dtype), None)
            if expected and str(func.overloadpacket) in PRODUCTS:
                record(step=updates[0] + 1, wanted=str(expected), returned=str(result.dtype))
            return result

    torch.autocast.__enter__, torch.autocast.__exit__ = entered, left
    register_optimizer_step_post_hook(stepped)
    Products().__enter__()


def first_bad_step(ranks):
    assert ranks[0], "no matrix product was seen in an autocast region"
    return next((seen["step"] for seen in ranks[0] if seen["returned"] != seen["wanted"]), None)
