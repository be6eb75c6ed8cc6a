"""Recomputing an update: the step of an optimizer of torch's on copies of what it reads, to be compared with what the
real one leaves. Optimizers of torch's draw nothing, and update each parameter on its own, so that those of a large
model can take turns."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.optim import LBFGS, Optimizer

from traincheck.sources.replay.fingerprints import CannotRepeat, Executed
from traincheck.sources.tensors.reading import is_copyable, unseen

SHARE, LEAST, LARGEST = 32, 2 << 20, 1 << 30
"""One execution copies a 32nd of the parameters, gradients and state, about, but not less and not more than so many
bytes: the rest is for the next ones. Copying all would take as much memory again, and a multiple of the time of the
step where batches are small."""


class CapturedUpdate:
    """An update that is about to be made, with copies of what it reads; `name_of` names a parameter.

    It is of some of the parameters, those from the place `begin` on; `next` is where they end, for the next time.
    Raises CannotRepeat where it cannot be repeated: of an optimizer that is not torch's, that calls a closure, or whose
    parameters are sharded or too large.
    """

    def __init__(self, name: str, optimizer: Optimizer, name_of: Callable[[torch.Tensor], str], begin: int = 0) -> None:
        _refuse(optimizer)
        self.name, self.site = name, ""
        self._optimizer = optimizer
        self._parameters, self.next = _some_of(optimizer, begin)
        self._names = [name_of(parameter) for parameter in self._parameters]
        self._before = _copy_of(optimizer, self._parameters)

    def execute(self) -> Executed:
        """Make the update on copies; the optimizer and its parameters are not touched. Raises CannotRepeat."""
        taken = _copy_of(self._before, _parameters_of(self._before))
        try:
            function: Any = type(taken).step
            while getattr(function, "hooked", False):  # it is what calls the hooks
                function = function.__wrapped__
            function(taken)
        except Exception as error:
            raise CannotRepeat(f"{type(error).__name__}: {error}") from error
        return self._left(taken, _parameters_of(taken))

    def is_of(self, optimizer: Optimizer) -> bool:
        """Whether it is an update of this one."""
        return optimizer is self._optimizer

    def left(self) -> Executed:
        """What the real update has left."""
        return self._left(self._optimizer, self._parameters)

    def _left(self, optimizer: Optimizer, parameters: Sequence[torch.Tensor]) -> Executed:
        found = Executed()
        for name, parameter in zip(self._names, parameters, strict=True):
            found.updates.hold(name, parameter)
            for key, value in optimizer.state.get(parameter, {}).items():
                if isinstance(value, torch.Tensor):
                    found.updates.hold(f"{key} of {name}", value)
        return found


def _parameters_of(optimizer: Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _some_of(optimizer: Optimizer, begin: int) -> tuple[list[torch.Tensor], int]:
    """Parameters for one execution, in their order, and the place after them. Raises CannotRepeat."""
    every = _parameters_of(optimizer)
    sizes = [_size_of(optimizer, each) for each in every]
    most = min(max(sum(sizes) // SHARE, LEAST), LARGEST)
    chosen: list[int] = []
    total = place = 0
    for place in range(begin, begin + len(every)):
        size = sizes[place % len(every)]
        if size > LARGEST:
            continue
        if chosen and total + size > most:
            break
        chosen.append(place % len(every))
        total += size
    else:
        place += 1
    if not chosen:
        raise CannotRepeat("its parameters are too large to be copied")
    return [every[each] for each in sorted(chosen)], place % len(every)


def _size_of(optimizer: Optimizer, parameter: torch.Tensor) -> int:
    state = optimizer.state.get(parameter, {}).values()
    held = [parameter, parameter.grad, *(value for value in state if isinstance(value, torch.Tensor))]
    return sum(each.numel() * each.element_size() for each in held if each is not None)


def _copy_of(optimizer: Optimizer, parameters: Iterable[torch.Tensor]) -> Optimizer:
    """An optimizer that holds copies of these parameters, their gradients and state, and calls no hooks of its own."""
    found: Optimizer = object.__new__(type(optimizer))  # to copy it in Python's way would convert the state
    vars(found).update(vars(optimizer))
    for name in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"):
        setattr(found, name, OrderedDict())
    vars(found).pop("step", None)  # what a scheduler has put there counts the calls
    with unseen():
        copies = {each: _parameter(each) for each in parameters}
        found.param_groups = [
            {**_copied(group), "params": [copies[each] for each in group["params"] if each in copies]}
            for group in optimizer.param_groups
        ]
        state = {copies[each]: _copied(optimizer.state[each]) for each in copies if each in optimizer.state}
    found.state = defaultdict(dict, state)
    return found


def _parameter(parameter: torch.Tensor) -> torch.Tensor:
    found = parameter.detach().clone().requires_grad_(parameter.requires_grad)
    found.grad = None if parameter.grad is None else parameter.grad.detach().clone()
    return found


def _copied(value: Any) -> Any:
    """Tensors as copies, dicts and lists with copies inside, anything else as it is. Call under `unseen`."""
    if isinstance(value, torch.Tensor):
        if not is_copyable(value):
            raise CannotRepeat(f"it keeps a {type(value).__name__} that cannot be copied")
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: _copied(each) for key, each in value.items() if key != "params"}
    if isinstance(value, list):
        return [_copied(each) for each in value]
    return value


def _refuse(optimizer: Optimizer) -> None:
    if not type(optimizer).__module__.startswith("torch.optim."):
        raise CannotRepeat("it is not an optimizer of torch's")
    if isinstance(optimizer, LBFGS):
        raise CannotRepeat("it calls a closure")
    with unseen():
        for each in _parameters_of(optimizer):
            kept = [value for value in optimizer.state.get(each, {}).values() if isinstance(value, torch.Tensor)]
            if not all(map(is_copyable, [each, *kept, *(() if each.grad is None else (each.grad,))])):
                raise CannotRepeat("its parameters, their gradients or its state are sharded, sparse or not in memory")
