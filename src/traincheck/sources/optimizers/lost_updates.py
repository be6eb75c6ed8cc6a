"""Says whether an update that left a parameter unchanged may have been lost in rounding.

Note [Unchanged by chance]
The step of an adaptive optimizer is a random share of the learning rate, for it divides an average of gradients by
their size. Where that average passes through zero, the step is too small to change an element. So an element keeps its
value with a chance of about the distance to the next number, divided by the rate. A bias of one element (the head of a
value network) does so once in some 10,000 updates, without any error in the program. Several updates in a row
separate chance from error. They are not independent: with the usual momentum the average moves by a tenth of its
size. In half precision they show nothing more, because all updates of a parameter may be too small.

Nor are elements independent: the gradients of the scores of a softmax sum to zero. So the two elements of a bias for
two classes stay together, and one element of each parameter does not count.
"""

from __future__ import annotations

import math

import torch

from traincheck.sources.modules.variables import Variable
from traincheck.sources.tensors.deferred_values import DeferredValue
from traincheck.sources.tensors.reading import local_tensor
from traincheck.sources.tensors.storages import version_of

HALF_PRECISION = (torch.bfloat16, torch.float16)

SMALLEST_CHANCE = 1e-6
"""How unlikely it must be that a parameter stays by chance, for an error."""

MOVED_BY_AN_UPDATE = 0.1
"""The share of its size by which an average of gradients moves in an update."""


def lost_in_rounding(
    variable: Variable, rate: float | None, state: str | DeferredValue, version: int | None = None
) -> bool:
    """Whether no element of the parameter could change by learning rate times gradient, or may have stayed by chance
    in all of its `unchanged_updates`. Call inside `hidden_from_modes()`.

    Callers check this only for unchanged parameters, because it is costly. If the answer comes late, the gradient may
    be gone, or no longer have its `version` of that time. Then the largest gradient element, from which its `state` was
    computed, is compared with the largest element of the parameter.
    """
    tensor = variable.tensor()
    if tensor is None or rate is None or not tensor.is_floating_point():
        return False
    dense = local_tensor(tensor)
    if dense is None:
        return False
    if rate and _may_stay_by_chance(dense, rate, variable.unchanged_updates):
        return True
    if type(state) is DeferredValue and (tensor.grad is None or version_of(tensor.grad) != version):
        largest = float(state.numbers[0]) * rate
        return bool(largest <= torch.finfo(dense.dtype).eps * float(torch.linalg.vector_norm(dense, math.inf)))
    gradient = None if tensor.grad is None else local_tensor(tensor.grad)
    if gradient is None or gradient.shape != dense.shape:
        return False
    limits = torch.finfo(dense.dtype)
    smallest = (limits.eps * dense.abs()).clamp(min=limits.tiny)  # subnormal numbers have fewer digits
    return bool(((gradient.to(dense.dtype) * rate).abs() <= smallest).all())


def _may_stay_by_chance(tensor: torch.Tensor, rate: float, updates: int) -> bool:
    """Whether the elements of a parameter may all keep their values in so many updates, see Note [Unchanged by
    chance]."""
    moved, updates = (1.0, 1) if tensor.dtype in HALF_PRECISION else (MOVED_BY_AN_UPDATE, updates)
    chances = torch.finfo(tensor.dtype).eps * tensor.abs().float() / (rate * moved)
    logarithms = chances.clamp(max=1).log().flatten()
    if len(logarithms) > 1:
        logarithms[logarithms.argmin()] = 0.0
    return bool(logarithms.sum() * updates > math.log(SMALLEST_CHANCE))
