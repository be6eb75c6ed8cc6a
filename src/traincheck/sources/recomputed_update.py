"""Recomputing an update: the step of an optimizer of torch's on copies of all that it reads, to be compared with what
the real one leaves."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import LBFGS, Optimizer

from traincheck.sources.as_it_was import RandomStates
from traincheck.sources.recomputed import CannotRepeat, Executed
from traincheck.sources.tensors import unseen


class CapturedUpdate:
    """An update that is about to be made, with copies of what it reads; `name_of` names a parameter.

    Raises CannotRepeat where it cannot be repeated: of an optimizer that is not torch's, that calls a closure, or whose
    parameters are sharded.
    """

    def __init__(self, name: str, optimizer: Optimizer, name_of: Callable[[torch.Tensor], str]) -> None:
        _refuse(optimizer)
        self.name = name
        self._optimizer = optimizer
        self._names = [[name_of(parameter) for parameter in group["params"]] for group in optimizer.param_groups]
        self._random = RandomStates()
        self._before = _copy_of(optimizer)

    def execute(self) -> Executed:
        """Make the update on copies; the optimizer and its parameters are not touched. Raises CannotRepeat."""
        now, taken = RandomStates(), _copy_of(self._before)
        self._random.put()
        try:
            function: Any = type(taken).step
            while getattr(function, "hooked", False):  # it is what calls the hooks
                function = function.__wrapped__
            function(taken)
        except Exception as error:
            raise CannotRepeat(f"{type(error).__name__}: {error}") from error
        finally:
            now.put()
        return self._printed(taken)

    def is_of(self, optimizer: Optimizer) -> bool:
        """Whether it is an update of this one."""
        return optimizer is self._optimizer

    def left(self) -> Executed:
        """What the real update has left."""
        return self._printed(self._optimizer)

    def _printed(self, optimizer: Optimizer) -> Executed:
        found = Executed()
        for names, group in zip(self._names, optimizer.param_groups, strict=True):
            for name, parameter in zip(names, group["params"], strict=True):
                found.updates.add(name, parameter)
                for key, value in optimizer.state.get(parameter, {}).items():
                    if isinstance(value, torch.Tensor):
                        found.updates.add(f"{key} of {name}", value)
        return found


def _copy_of(optimizer: Optimizer) -> Optimizer:
    """An optimizer that holds copies of parameters, gradients and state, and calls no hooks of its own."""
    found: Optimizer = object.__new__(type(optimizer))  # to copy it in Python's way would convert the state
    vars(found).update(vars(optimizer))
    for name in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"):
        setattr(found, name, OrderedDict())
    vars(found).pop("step", None)  # what a scheduler has put there counts the calls
    copies = {each: _parameter(each) for group in optimizer.param_groups for each in group["params"]}
    found.param_groups = [
        {**_copied(group), "params": [copies[each] for each in group["params"]]} for group in optimizer.param_groups
    ]
    found.state = defaultdict(dict, {copies.get(key, key): _copied(value) for key, value in optimizer.state.items()})
    return found


def _parameter(parameter: torch.Tensor) -> torch.Tensor:
    with unseen():
        found = parameter.detach().clone()
        grad = None if parameter.grad is None else parameter.grad.detach().clone()
    found.requires_grad_(parameter.requires_grad)
    found.grad = grad
    return found


def _copied(value: Any) -> Any:
    """Tensors as copies, dicts and lists with copies inside, anything else as it is."""
    if isinstance(value, torch.Tensor):
        with unseen():
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
    for group in optimizer.param_groups:
        for each in group["params"]:
            if type(each) not in (torch.Tensor, torch.nn.Parameter) or (each.grad is not None and each.grad.is_sparse):
                raise CannotRepeat("its parameters or gradients are sharded or sparse")
