"""Records without TrainCheck what a run computes: evidence that a mutant is not equivalent, and from which step on.

`watch` hooks a process before its script starts. It records, in order: the value of each root of a backward, the
parameters of an optimizer after each of its steps, the content of what `torch.save` writes, and the losses and scores
that are printed. Two runs of a deterministic program with the same seed give the same record.
"""

from __future__ import annotations

import builtins
import functools
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RELATIVE, ABSOLUTE = 1e-5, 1e-8
"""Differences up to these are rounding: float32 has seven digits, and sums of a few thousand terms lose two."""

PLAUSIBLE = 10.0
"""A loss this many times larger than any of the clean run would be noticed by anybody who looks at it."""

NUMBERS = re.compile(
    r"\b(loss|score|acc\w*|reward|return|perplexity|error)\b[\s:=,|]*(-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)", re.IGNORECASE
)

BACKWARD, STEP, SAVE, PRINT = "backward", "step", "save", "print"


@dataclass(frozen=True)
class Effect:
    """Something that a run computed. `step` is the training step, from 1, as a person would count."""

    kind: str
    step: int
    values: tuple[float, ...]
    text: str = ""

    def equals(self, other: Effect) -> bool:
        """Whether both are the same but for rounding."""
        return (self.kind, self.text, len(self.values)) == (other.kind, other.text, len(other.values)) and all(
            map(_close, self.values, other.values)
        )


def _close(first: float, second: float) -> bool:
    return math.isclose(first, second, rel_tol=RELATIVE, abs_tol=ABSOLUTE) or (first != first and second != second)


def first_difference(clean: Iterable[Effect], mutant: Iterable[Effect]) -> int | None:
    """The step from which on the runs differ beyond rounding; None if they are equivalent."""
    clean, mutant = list(clean), list(mutant)
    for one, other in zip(clean, mutant, strict=False):
        if not one.equals(other):
            return min(one.step, other.step)
    if len(clean) != len(mutant):
        longer = max(clean, mutant, key=len)
        return longer[min(len(clean), len(mutant))].step
    return None


def is_plausible(clean: Iterable[Effect], mutant: Iterable[Effect]) -> bool:
    """Whether the losses of the mutant are finite, and not `PLAUSIBLE` times larger than all of the clean run."""
    most = max((abs(value) for effect in clean if effect.kind == BACKWARD for value in effect.values), default=0.0)
    losses = [value for effect in mutant if effect.kind == BACKWARD for value in effect.values]
    return all(math.isfinite(value) and abs(value) <= PLAUSIBLE * most + 1.0 for value in losses)


def watch(out: Path) -> None:
    """Record the effects of this process into a file of the folder `out`. Called before the script starts."""
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    file = (out / f"{os.environ.get('RANK', '0')}.jsonl").open("a", buffering=1)
    parent = os.getpid()
    stepped: set[int] = set()
    rounds = 0

    def record(kind: str, step: int, values: Iterable[float], text: str = "") -> None:
        if os.getpid() == parent:
            file.write(json.dumps([kind, step, list(values), text]) + "\n")

    def after_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        nonlocal rounds
        if not rounds or id(optimizer) in stepped:
            rounds += 1
            stepped.clear()
        stepped.add(id(optimizer))
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        record(STEP, rounds, _summary(parameters))

    register_optimizer_step_post_hook(after_step)

    def recording_backward(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            roots = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
            record(BACKWARD, rounds + 1, [float(root.detach().double().sum()) for root in roots])
            return original(tensors, *args, **kwargs)

        return backward

    torch.autograd.backward = recording_backward(torch.autograd.backward)  # Tensor.backward calls it by this name
    original_save = torch.save

    @functools.wraps(original_save)
    def save(obj: Any, *args: Any, **kwargs: Any) -> Any:
        tensors: list[torch.Tensor] = []
        names: list[str] = []
        _collect(obj, "", tensors, names)
        record(SAVE, max(1, rounds), _summary(tensors), " ".join(names))
        return original_save(obj, *args, **kwargs)

    torch.save = save
    original_print = builtins.print

    @functools.wraps(original_print)
    def print_(*args: Any, **kwargs: Any) -> None:
        numbers = NUMBERS.findall(" ".join(map(str, args)))
        if numbers:
            record(PRINT, max(1, rounds), [float(value) for _, value in numbers])
        original_print(*args, **kwargs)

    builtins.print = print_


def _summary(tensors: Iterable[Any]) -> list[float]:
    """Numbers that change when an element of a tensor does: its norm and a weighted sum, for each tensor."""
    import torch

    values: list[float] = []
    with torch.no_grad():
        for tensor in tensors:
            flat = getattr(tensor, "to_local", lambda tensor=tensor: tensor)().detach()
            if flat.is_sparse or flat.is_complex():
                continue
            flat = flat.reshape(-1).double()
            weights = torch.linspace(1.0, 2.0, flat.numel(), dtype=torch.float64)
            values += [float(flat.norm()), float((flat * weights).abs().sum())]
    return values


def _collect(obj: Any, name: str, tensors: list[Any], names: list[str]) -> None:
    """The tensors in what is saved, and the keys and plain values around them."""
    import torch

    if isinstance(obj, torch.Tensor):
        tensors.append(obj)
        names.append(f"{name}:{tuple(obj.shape)}")
    elif isinstance(obj, torch.nn.Module):
        _collect(obj.state_dict(), name, tensors, names)
    elif isinstance(obj, Mapping):
        for key, value in obj.items():
            _collect(value, f"{name}.{key}", tensors, names)
    elif isinstance(obj, list | tuple):
        for index, value in enumerate(obj):
            _collect(value, f"{name}[{index}]", tensors, names)
    else:
        shown = f"{obj:.6g}" if isinstance(obj, float) else repr(obj)[:40] if isinstance(obj, int | str | bool) else ""
        names.append(f"{name}={shown}")


def read_effects(out: Path) -> dict[int, list[Effect]]:
    """The effects of each rank."""
    return {
        int(file.stem): [
            Effect(kind, step, tuple(values), text) for kind, step, values, text in map(json.loads, file.open())
        ]
        for file in sorted(out.glob("*.jsonl"))
    }
