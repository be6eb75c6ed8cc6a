"""Replays an optimizer step on copies of its inputs, for comparison with the real step.

torch optimizers draw no random numbers and update each parameter separately, so parameters of a large model take turns.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.optim import LBFGS, Optimizer

from traincheck.sources.replay.fingerprints import CannotReplay, ExecutionResult
from traincheck.sources.tensors.reading import hidden_from_modes, is_copyable, kind_of

SHARE, MIN_BYTES, MAX_BYTES = 32, 2 << 20, 1 << 30
"""One replay copies about a 32nd of the parameters, gradients and state, within these bounds in bytes; the next replays
copy the rest. Copying everything would double the memory, and slow down steps with small batches several times."""


class CapturedUpdate:
    """An update about to be made, with copies of its inputs; `name_of` names a parameter.

    It covers some parameters, from the index `begin` on; `next` is where the following one begins. Raises CannotReplay
    for optimizers that do not belong to torch, that call a closure, or whose parameters are sharded or too large.
    """

    def __init__(self, name: str, optimizer: Optimizer, name_of: Callable[[torch.Tensor], str], begin: int = 0) -> None:
        _check_replayable(optimizer)
        self.name, self.site = name, ""
        self._optimizer = optimizer
        self._parameters, self.next = _some_of(optimizer, begin)
        self._names = [name_of(parameter) for parameter in self._parameters]
        self._before = _copy_of(optimizer, self._parameters)

    def execute(self) -> ExecutionResult:
        """Make the update on copies; the optimizer and its parameters stay unmodified. Raises CannotReplay."""
        copied = _copy_of(self._before, _parameters_of(self._before))
        try:
            function: Any = type(copied).step
            while getattr(function, "hooked", False):  # the wrapper that calls the hooks
                function = function.__wrapped__
            function(copied)
        except Exception as error:
            raise CannotReplay(f"{type(error).__name__}: {error}") from error
        return self._result_of(copied, _parameters_of(copied))

    def is_of(self, optimizer: Optimizer) -> bool:
        """Return whether this is an update of `optimizer`."""
        return optimizer is self._optimizer

    def real_result(self) -> ExecutionResult:
        """Return the result of the real update."""
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
    """Return the parameters for one replay, in their order, and the index after them. Raises CannotReplay."""
    parameters = _parameters_of(optimizer)
    sizes = [_size_of(optimizer, parameter) for parameter in parameters]
    most = min(max(sum(sizes) // SHARE, MIN_BYTES), MAX_BYTES)
    chosen: list[int] = []
    total = position = 0
    for position in range(begin, begin + len(parameters)):
        size = sizes[position % len(parameters)]
        if size > MAX_BYTES:
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
    """Return an optimizer with copies of these parameters, their gradients and state, and without hooks."""
    replica: Optimizer = object.__new__(type(optimizer))  # copy.copy would convert the state
    vars(replica).update(vars(optimizer))
    for name in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"):
        setattr(replica, name, OrderedDict())
    vars(replica).pop("step", None)  # the wrapper of a scheduler counts calls
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
    """Copy tensors, also inside dicts and lists; return other values as they are. Call under `hidden_from_modes`."""
    if isinstance(value, torch.Tensor):
        if not is_copyable(value):
            raise CannotReplay(f"it keeps a {kind_of(value)}, which TrainCheck does not copy")
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
