"""Finds the custom `autograd.Function`s whose forward runs, from the frames of this thread.

The frame of a forward shows its function. That of `Function.apply` would do so as well, but torch 2.15 wrote `apply` in
C++. Decorated forwards are known by the function inside, so what a decorator computes first does not belong to them.
"""

from __future__ import annotations

from types import CodeType, FrameType
from typing import NamedTuple

import torch

from traincheck.sources.recording.frames import code_of, local_values, variadic_names


class CustomCall(NamedTuple):
    """A call of the forward of a custom function: its frame and the function."""

    frame: FrameType
    cls: type

    def tensors(self) -> list[torch.Tensor]:
        """The tensors among its arguments, in their order."""
        code = self.frame.f_code
        names, variadic = code.co_varnames[: code.co_argcount], variadic_names(code)
        values = local_values(self.frame, names + variadic)
        arguments = [values.get(name) for name in names]
        for name in variadic:
            arguments += () if isinstance(values.get(name), dict) else values.get(name, ())
        return [argument for argument in arguments if isinstance(argument, torch.Tensor)]


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
        found, functions = [], self._functions
        while frame is not None:
            function = functions.get(id(frame.f_code))
            if function is not None:
                found.append(CustomCall(frame, function[1]))
            frame = frame.f_back
        return found
