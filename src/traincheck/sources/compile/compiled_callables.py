"""Identifies what a compiled callable is (a module, optimizer steps, another function) without running it.

Note [Only steps]
A compiled optimizer step is mostly a small function of the program: `lambda: optimizer.step()`. TrainCheck reads its
code to see that it steps and does nothing else. The code must run straight through, and may only call the `step` of one
optimizer, and of schedulers, found through its names. Each call of the function then counts as a call of these.
TrainCheck assumes nothing about other functions.
"""

from __future__ import annotations

import dis
from collections.abc import Iterator, Mapping, Sequence
from types import CodeType, FunctionType
from typing import Any, NamedTuple

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from traincheck.sources.modules.live_modules import has_parameters

_CALLS_OF_MODULE = ("__call__", "_wrapped_call_impl", "_call_impl")
_MAX_DEPTH = 4
"""Wrappers to unwrap: those of torch (for a torch layer, for a scheduler) are two deep."""


class CompiledTarget(NamedTuple):
    """A compiled module, or steps of an optimizer and of schedulers, or another function.

    `model` is a module with parameters that the function receives or refers to.
    """

    name: str
    module: nn.Module | None = None
    optimizer: Optimizer | None = None
    schedulers: tuple[Any, ...] = ()
    model: nn.Module | None = None

    @property
    def is_known(self) -> bool:
        """Whether the effect on the training state is fully known."""
        return self.module is not None or self.optimizer is not None or bool(self.schedulers)


def identify_target(function: Any, args: Sequence[Any], keywords: Mapping[str, Any]) -> CompiledTarget:
    """Identify `function`, which is about to be called with these arguments."""
    name = str(getattr(function, "__qualname__", type(function).__name__)).replace("<locals>.", "")
    for _ in range(_MAX_DEPTH):
        if isinstance(function, nn.Module):
            return CompiledTarget(type(function).__name__, function)
        owner = getattr(function, "__self__", None)
        called = getattr(function, "__name__", "")
        if isinstance(owner, nn.Module) and called in _CALLS_OF_MODULE:
            return CompiledTarget(type(owner).__name__, owner)
        if isinstance(owner, Optimizer) and called == "step" and not args and not keywords:
            return CompiledTarget(name, optimizer=owner)
        if isinstance(owner, nn.Module):
            return CompiledTarget(name, model=_model(owner))
        if isinstance(function, FunctionType):
            optimizer, schedulers = _steps(function, args)
            if optimizer is not None or schedulers:
                return CompiledTarget(name, optimizer=optimizer, schedulers=schedulers)
        inside = getattr(function, "__wrapped__", None)
        if inside is None:
            break
        function = inside
    return CompiledTarget(name, model=_model_of(function, args, keywords))


# -- models that a function uses ---------------------------------------------------------------------------------------


def _model_of(function: Any, args: Sequence[Any], keywords: Mapping[str, Any]) -> nn.Module | None:
    """Return the first model among the arguments of a function and the values it refers to."""
    function = getattr(function, "__func__", function)
    referred = _referred_to(function) if isinstance(function, FunctionType) else iter(())
    for value in (*args, *keywords.values(), *referred):
        if isinstance(value, nn.Module) and (model := _model(value)) is not None:
            return model
    return None


def _model(module: nn.Module) -> nn.Module | None:
    return module if has_parameters(module) else None


def _referred_to(function: FunctionType) -> Iterator[Any]:
    """Yield the values of free and global names in a function."""
    for name in (*function.__code__.co_freevars, *function.__code__.co_names):
        yield _value_of(name, function, ())


# -- functions that step -----------------------------------------------------------------------------------------------

_BRANCHES = ("JUMP", "FOR_", "SETUP", "BEFORE_", "YIELD", "RAISE", "SEND", "IMPORT", "STORE_", "DELETE_")
"""Prefixes of instruction names that a straight-line function does not contain."""

_CALL = ("CALL", "CALL_FUNCTION", "CALL_METHOD", "CALL_KW", "CALL_FUNCTION_KW", "CALL_FUNCTION_EX")
_READ = ("LOAD_ATTR", "LOAD_METHOD")


def _steps(function: FunctionType, args: Sequence[Any]) -> tuple[Optimizer | None, tuple[Any, ...]]:
    """Return the optimizer and the schedulers that a function steps, if it does nothing else; see Note [Only steps]."""
    if getattr(function, "_wrapped_by_lr_sched", False):  # the optimizer step wrapped by a scheduler
        held = _referring(function)
        return (held, ()) if isinstance(held, Optimizer) and not args else (None, ())
    optimizers, schedulers = [], []
    for name, *attributes, last in _called(function.__code__):
        receiver = _value_of(name, function, args)
        for attribute in attributes:
            receiver = getattr(receiver, "__dict__", {}).get(attribute)
        if last == "step" and isinstance(receiver, Optimizer) and getattr(type(receiver).step, "hooked", False):
            optimizers.append(receiver)
        elif last == "step" and isinstance(receiver, LRScheduler):
            schedulers.append(receiver)
        else:
            return None, ()
    if len(optimizers) > 1:
        return None, ()
    return (optimizers[0] if optimizers else None), tuple(schedulers)


def _referring(function: FunctionType) -> Any:
    for cell in function.__closure__ or ():
        held = cell.cell_contents
        if callable(held) and type(held).__name__ == "ReferenceType":
            return held()
    return None


_chains: dict[CodeType, tuple[tuple[str, ...], ...]] = {}


def _called(code: CodeType) -> tuple[tuple[str, ...], ...]:
    """Return the calls without arguments of a straight-line function, as names: `("self", "optimizer", "step")`.

    Returns nothing for any other function.
    """
    chains = _chains.get(code)
    if chains is None:
        chains = _chains[code] = tuple(_read_calls(code))
    return chains


def _read_calls(code: CodeType) -> list[tuple[str, ...]]:
    chains: list[tuple[str, ...]] = []
    calls = 0
    chain: tuple[str, ...] = ()
    for step in dis.get_instructions(code):
        if any(part in step.opname if part == "JUMP" else step.opname.startswith(part) for part in _BRANCHES):
            return []
        if step.opname in ("LOAD_DEREF", "LOAD_GLOBAL", "LOAD_NAME") or step.opname.startswith("LOAD_FAST"):
            chain = (str(step.argval),)
        elif step.opname in _READ:
            chain = (*chain, str(step.argval))
        elif step.opname in _CALL:
            if step.arg or len(chain) < 2:
                return []
            calls += 1
            chains.append(chain)
            chain = ()
        elif step.opname.startswith("LOAD_") and step.opname != "LOAD_CONST":
            return []
    return chains


_UNKNOWN = object()


def _value_of(name: str, function: FunctionType, args: Sequence[Any]) -> Any:
    """Return the value of a name in a function, as far as it is known from outside."""
    code = function.__code__
    if name in code.co_freevars:
        try:
            return (function.__closure__ or ())[code.co_freevars.index(name)].cell_contents
        except (ValueError, IndexError):
            return _UNKNOWN
    if name in code.co_varnames[: code.co_argcount]:
        index = code.co_varnames.index(name)
        return args[index] if index < len(args) else _UNKNOWN
    return function.__globals__.get(name, _UNKNOWN)
