"""Reads from the graph of a loss how much each of its elements weighs in it.

The last operations of a loss reduce its elements (tokens, pixels) to one number, and scale it: a mean over n elements,
divided by k micro-batches, gives each element the weight 1 / (k n).

Known limitations: sums of several losses, reductions over some dimensions, and compiled losses are not read.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch

from traincheck.sources.tensors.autograd_operations import DIVISION, MULTIPLICATION, RESHAPES, SAME_FORM
from traincheck.sources.tensors.reading import hidden_from_modes
from traincheck.sources.verification.saved_tensors import saved_tensor

MAX_OPERATIONS = 20
_SCALE = _MULTIPLICATION, _DIVISION = (f"{MULTIPLICATION}0", f"{DIVISION}0")
_SAME_VALUE = frozenset(f"{name}0" for name in (*SAME_FORM, *RESHAPES))
_MEAN, _SUM = 1, 2


class LossWeights(NamedTuple):
    """How a loss weighs its elements: how many it has, the weight of each, and the operation that reduces them."""

    elements: float
    weight: float
    reduction: str


def weights_of(loss: torch.Tensor) -> LossWeights | None:
    """Return the weights of the elements of a loss before its backward; None where the graph does not show them."""
    try:
        return _weights_of(loss)
    except RuntimeError:  # an earlier backward freed the graph
        return None


def _weights_of(loss: torch.Tensor) -> LossWeights | None:
    function, factor = loss.grad_fn, 1.0
    with hidden_from_modes():
        for _ in range(MAX_OPERATIONS):
            if function is None:
                return None
            name = type(function).__name__
            if name in _SCALE:
                inputs = [index for index, (inner, _) in enumerate(function.next_functions) if inner is not None]
                number = _saved_number(function, "other" if inputs == [0] else "self") if len(inputs) == 1 else None
                if number is None or (name == _DIVISION and inputs != [0]):
                    return None
                factor = factor * number if name == _MULTIPLICATION else factor / number if number else math.inf
                function = function.next_functions[inputs[0]][0]
            elif name in _SAME_VALUE:
                function = function.next_functions[0][0]
            else:
                elements, divisor = _reduced(function, name)
                return LossWeights(elements, factor / divisor, name) if elements and divisor else None
    return None


def _reduced(function: Any, name: str) -> tuple[float, float]:
    """Return the number of elements that an operation reduces, and by what it divides their sum; zeros if unknown."""
    if name in ("MeanBackward0", "SumBackward0"):
        count = float(math.prod(function._saved_self_sym_sizes))
        return count, count if name == "MeanBackward0" else 1.0
    reduction = getattr(function, "_saved_reduction", None)
    if reduction not in (_MEAN, _SUM):
        return 0.0, 0.0
    if name.startswith("NllLoss"):
        count = _saved_number(function, "total_weight") or 0.0
    else:
        tensor = saved_tensor(function, "self")
        count = 0.0 if tensor is None else float(tensor.numel())
    return count, count if reduction == _MEAN else 1.0


def _saved_number(function: Any, name: str) -> float | None:
    tensor = saved_tensor(function, name)
    return float(tensor) if tensor is not None and tensor.numel() == 1 else None
