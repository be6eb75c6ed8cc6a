"""Reads the targets of a loss from its graph, and the scores that they are compared with.

Operations that compare scores with a target save both for the backward: losses of torch, and `gather`, with which
programs write their own. Losses that are compiled, or that a kernel of another library computes, are not read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch

from traincheck.sources.tensors.reading import hidden_from_modes
from traincheck.sources.verification.saved_tensors import saved_tensor

_ELEMENTWISE = ("Div", "Mul", "Add", "Sub", "Neg", "Exp", "LogSoftmax", "Softmax", "Clamp", "ToCopy", "T", "Transpose")
"""Operations that leave a matrix of similarities one, by the beginning of their names."""

MAX_OPERATIONS = 200
"""Operations between the loss and the scores that are looked at."""


class Target(NamedTuple):
    """The target of a loss, and which of its elements count: those that are not to be ignored."""

    values: torch.Tensor
    counted: torch.Tensor


def targets_of(loss: torch.Tensor) -> list[Target]:
    """Return the targets of a loss before its backward."""
    with hidden_from_modes():
        return [
            Target(target, target != getattr(function, "_saved_ignore_index", -100))
            for function, target in _comparisons(loss.grad_fn)
        ]


def scores_of(outputs: Iterable[torch.Tensor], samples: int, rows: int) -> list[torch.Tensor]:
    """Return what losses in the graphs of `outputs` compare with targets, in the form (samples, rows, numbers)."""
    all_scores = []
    with hidden_from_modes():
        for output in outputs:
            for function, target in _comparisons(output.grad_fn):
                scores = saved_tensor(function, "self")
                if scores is None or target.numel() % (samples * rows) or scores.numel() % (samples * rows):
                    continue
                if type(function).__name__.startswith("NllLoss2D"):
                    scores = scores.movedim(1, -1)
                all_scores.append(scores.detach().reshape(samples, rows, -1))
    return all_scores


def compared_rows(output: torch.Tensor, samples: int) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return the rows that a matrix product compared, if `output` is a matrix of similarities between all samples."""
    function = output.grad_fn
    if tuple(output.shape) != (samples, samples):
        return None
    for _ in range(MAX_OPERATIONS):
        name = "" if function is None else type(function).__name__.partition("Backward")[0]
        if name == "Mm":
            left, right = saved_tensor(function, "self"), saved_tensor(function, "mat2")
            if left is None or right is None or not left.shape[0] == samples == right.shape[1]:
                return None
            return left.detach().clone(), right.detach().t().clone()
        if name not in _ELEMENTWISE:
            return None
        function = next((inner for inner, _ in function.next_functions if inner is not None), None)
    return None


def _comparisons(function: Any) -> Iterator[tuple[Any, torch.Tensor]]:
    """Yield the operations next to the end of a graph that compare scores with a target, each with its target."""
    waiting, seen = deque([function]), {function}
    while waiting and len(seen) < MAX_OPERATIONS:
        current = waiting.popleft()
        if current is None:
            continue
        target = _target(current)
        if target is not None:
            yield current, target
            continue
        for inner, _ in current.next_functions:
            if inner not in seen:
                seen.add(inner)
                waiting.append(inner)


def _target(function: Any) -> torch.Tensor | None:
    try:
        return saved_tensor(function, "index" if type(function).__name__ == "GatherBackward0" else "target")
    except RuntimeError:  # an earlier backward freed the graph
        return None
