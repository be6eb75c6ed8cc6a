"""Finds the custom `autograd.Function`s whose forward runs, from the frames of this thread.

The frame of a forward shows its function. That of `Function.apply` would do so as well, but torch 2.15 wrote `apply` in
C++. Decorated forwards are known by the function inside, so what a decorator computes first does not belong to them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch
from torch.autograd.function import FunctionCtx

from traincheck.sources.recording.frames import code_of, local_values, variadic_names
from traincheck.sources.tensors.reading import hidden_from_modes


class CustomCall(NamedTuple):
    """A call of the forward of a custom function: its frame and the function."""

    frame: FrameType
    cls: type

    @property
    def key(self) -> tuple[int, int, int]:
        """What tells this call from another one under way later, whose frame may lie in the same memory: the context,
        and where the caller is. Known limitation: two calls in a loop, without a context and without another operation
        between them, have one key."""
        context = next((id(argument) for argument in self._all_arguments() if isinstance(argument, FunctionCtx)), 0)
        caller = self.frame.f_back
        while caller is not None and caller.f_globals.get("__name__") == torch.autograd.function.__name__:
            caller = caller.f_back
        return id(self.frame), context, -1 if caller is None else caller.f_lasti

    def arguments(self) -> list[Any]:
        """Its arguments in their order, without the context."""
        return [argument for argument in self._all_arguments() if not isinstance(argument, FunctionCtx)]

    def tensors(self) -> list[torch.Tensor]:
        """The tensors among its arguments, in their order."""
        return [argument for argument in self._all_arguments() if isinstance(argument, torch.Tensor)]

    def _all_arguments(self) -> list[Any]:
        code = self.frame.f_code
        names, variadic = code.co_varnames[: code.co_argcount], variadic_names(code)
        values = local_values(self.frame, names + variadic)
        arguments = [values.get(name) for name in names]
        for name in variadic:
            arguments += () if isinstance(values.get(name), dict) else values.get(name, ())
        return arguments


class CustomFunctions:
    """The custom functions that are defined at the time of construction."""

    def __init__(self) -> None:
        self._functions: dict[int, tuple[CodeType, type]] = {}  # by the identity of the code of the forward
        waiting: list[type] = [torch.autograd.Function]
        while waiting:
            subclasses: list[type] = waiting.pop().__subclasses__()
            waiting += subclasses
            for cls in subclasses:
                code = code_of(cls.__dict__.get("forward"))
                if code is not None:
                    self._functions[id(code)] = code, cls

    def calls(self, frame: FrameType | None) -> list[CustomCall]:
        """The calls on the stack of `frame`, innermost first."""
        calls, functions = [], self._functions
        while frame is not None:
            function = functions.get(id(frame.f_code))
            if function is not None:
                calls.append(CustomCall(frame, function[1]))
            frame = frame.f_back
        return calls


Gradients = tuple[torch.Tensor | None, ...]


def follow_backward(
    node: Any, keep: Callable[[Gradients, Gradients, bool, bool], None], has_room: Callable[[int], bool]
) -> list[Any]:
    """Hook a node before and after its backward; return the handles of the hooks. They `keep` the gradients that it got
    and those that it returned, in copies (this backward may write to the ones, and the next to the others), whether it
    changed those that it got, and whether it built a graph to differentiate."""
    kept: list[Gradients] = []
    number = getattr(torch.autograd, "_get_sequence_nr", int)
    begins = 0

    def copied(gradients: Sequence[torch.Tensor | None]) -> Gradients:
        with hidden_from_modes():
            return tuple(None if gradient is None else gradient.detach().clone() for gradient in gradients)

    def before(got: Sequence[torch.Tensor | None]) -> None:
        nonlocal begins
        begins = number()
        with contextlib.suppress(Exception):
            kept[:] = [copied(got)] if has_room(_bytes(got)) else []

    def after(returned: Sequence[torch.Tensor | None], got: Sequence[torch.Tensor | None]) -> None:
        with contextlib.suppress(Exception):
            if kept and has_room(_bytes(returned)):
                with hidden_from_modes():
                    changed = any(not _equal(old, new) for old, new in zip(kept[0], got, strict=True))
                keep(kept[0], copied(returned), changed, number() > begins)

    return [node.register_prehook(before), node.register_hook(after)]


def _equal(old: torch.Tensor | None, new: torch.Tensor | None) -> bool:
    return old is new or (old is not None and new is not None and torch.equal(old, new))


def _bytes(tensors: Sequence[torch.Tensor | None]) -> int:
    return sum(tensor.nbytes for tensor in tensors if tensor is not None)
