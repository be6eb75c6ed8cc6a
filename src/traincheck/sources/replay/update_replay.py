"""Recomputing an update: the step of an optimizer of torch's on copies of what it reads, to be compared with what the
real one leaves. Optimizers of torch's draw nothing, and update each parameter on its own, so that those of a large
model can take turns."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.optim import LBFGS, Optimizer

from traincheck.sources.replay.fingerprints import CannotReplay, ExecutionResult
from traincheck.sources.tensors.reading import hidden_from_modes, is_copyable

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
        _check_replayable(optimizer)
        self.name, self.site = name, ""
        self._optimizer = optimizer
        self._parameters, self.next = _some_of(optimizer, begin)
        self._names = [name_of(parameter) for parameter in self._parameters]
        self._before = _copy_of(optimizer, self._parameters)

    def execute(self) -> ExecutionResult:
        """Make the update on copies; the optimizer and its parameters are not touched. Raises CannotRepeat."""
        copied = _copy_of(self._before, _parameters_of(self._before))
        try:
            function: Any = type(copied).step
            while getattr(function, "hooked", False):  # it is what calls the hooks
                function = function.__wrapped__
            function(copied)
        except Exception as error:
            raise CannotReplay(f"{type(error).__name__}: {error}") from error
        return self._result_of(copied, _parameters_of(copied))

    def is_of(self, optimizer: Optimizer) -> bool:
        """Whether it is an update of this one."""
        return optimizer is self._optimizer

    def real_result(self) -> ExecutionResult:
        """What the real update has left."""
        return self._result_of(self._optimizer, self._parameters)

    def _result_of(self, optimizer: Optimizer, parameters: Sequence[torch.Tensor]) -> ExecutionResult:
        result = ExecutionResult()
        for name, parameter in zip(self._names, parameters, strict=True):
            result.updates.hold(name, parameter)
            for key, value in optimizer.state.get(parameter, {}).items():
                if isinstance(value, torch.Tensor):
                    result.updates.hold(f"{key} of {name}", value)
        return result


def _parameters_of(optimizer: Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _some_of(optimizer: Optimizer, begin: int) -> tuple[list[torch.Tensor], int]:
    """Parameters for one execution, in their order, and the place after them. Raises CannotRepeat."""
    parameters = _parameters_of(optimizer)
    sizes = [_size_of(optimizer, parameter) for parameter in parameters]
    most = min(max(sum(sizes) // SHARE, LEAST), LARGEST)
    chosen: list[int] = []
    total = position = 0
    for position in range(begin, begin + len(parameters)):
        size = sizes[position % len(parameters)]
        if size > LARGEST:
            continue
        if chosen and total + size > most:
            break
        chosen.append(position % len(parameters))
        total += size
    else:
        position += 1
    if not chosen:
        raise CannotReplay("its parameters are too large to be copied")
    return [parameters[index] for index in sorted(chosen)], position % len(parameters)


def _size_of(optimizer: Optimizer, parameter: torch.Tensor) -> int:
    state = optimizer.state.get(parameter, {}).values()
    tensors = [parameter, parameter.grad, *(value for value in state if isinstance(value, torch.Tensor))]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors if tensor is not None)


def _copy_of(optimizer: Optimizer, parameters: Iterable[torch.Tensor]) -> Optimizer:
    """An optimizer that holds copies of these parameters, their gradients and state, and calls no hooks of its own."""
    replica: Optimizer = object.__new__(type(optimizer))  # to copy it in Python's way would convert the state
    vars(replica).update(vars(optimizer))
    for name in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"):
        setattr(replica, name, OrderedDict())
    vars(replica).pop("step", None)  # what a scheduler has put there counts the calls
    with hidden_from_modes():
        copies = {parameter: _copy_parameter(parameter) for parameter in parameters}
        replica.param_groups = [
            {**_copied(group), "params": [copies[parameter] for parameter in group["params"] if parameter in copies]}
            for group in optimizer.param_groups
        ]
        state = {
            copies[parameter]: _copied(optimizer.state[parameter])
            for parameter in copies
            if parameter in optimizer.state
        }
    replica.state = defaultdict(dict, state)
    return replica


def _copy_parameter(parameter: torch.Tensor) -> torch.Tensor:
    replica = parameter.detach().clone().requires_grad_(parameter.requires_grad)
    replica.grad = None if parameter.grad is None else parameter.grad.detach().clone()
    return replica


def _copied(value: Any) -> Any:
    """Tensors as copies, dicts and lists with copies inside, anything else as it is. Call under `hidden_from_modes`."""
    if isinstance(value, torch.Tensor):
        if not is_copyable(value):
            raise CannotReplay(f"it keeps a {type(value).__name__} that cannot be copied")
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: _copied(entry) for key, entry in value.items() if key != "params"}
    if isinstance(value, list):
        return [_copied(entry) for entry in value]
    return value


def _check_replayable(optimizer: Optimizer) -> None:
    if not type(optimizer).__module__.startswith("torch.optim."):
        raise CannotReplay("it is not an optimizer of torch's")
    if isinstance(optimizer, LBFGS):
        raise CannotReplay("it calls a closure")
    with hidden_from_modes():
        for parameter in _parameters_of(optimizer):
            tensors = [
                value for value in optimizer.state.get(parameter, {}).values() if isinstance(value, torch.Tensor)
            ]
            if not all(map(is_copyable, [parameter, *tensors, *(() if parameter.grad is None else (parameter.grad,))])):
                raise CannotReplay("its parameters, their gradients or its state are sharded, sparse or not in memory")
