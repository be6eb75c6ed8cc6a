"""Source `functions`: public torch functions and tensor methods, seen through a `TorchFunctionMode`."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import Any

import torch
from torch.compiler import is_compiling
from torch.overrides import TorchFunctionMode

from traincheck.sources.circumstances import circumstances, result_facts
from traincheck.sources.names import function_name
from traincheck.sources.recorder import Recorder
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import FUNCTION
from traincheck.vocab.facts import Facts

TORCH_PREFIX = "torch."


class FunctionSource:
    """Observes torch functions called by the thread it is attached from.

    Known limitations: other threads and the inside of compiled regions are not seen; of a function that calls others
    only the outermost is.
    """

    name = "functions"

    def offers(self) -> str | None:
        return None

    def attach(self, demand: Demand, recorder: Recorder) -> ExitStack:
        undo = ExitStack()
        if demand.everything or any(_is_function(api) for api in demand.apis):
            mode = _Mode(demand, recorder, self.name)
            mode.__enter__()
            undo.callback(_leave, mode)
        return undo


def _is_function(api: str) -> bool:
    """Whether a demanded name is that of a torch function (classes have their method's name after a capital)."""
    return api.startswith(TORCH_PREFIX) and api.rsplit(".", 2)[-2] in (
        "torch",
        "functional",
        "Tensor",
        "linalg",
        "fft",
        "special",
    )


def _leave(mode: _Mode) -> None:
    """Take the mode off the stack; one that lies below a mode of the program's own is only switched off."""
    mode.off = True
    stack = torch.overrides._get_current_function_mode_stack()
    if stack and stack[-1] is mode:
        mode.__exit__(None, None, None)


_FLAGS = (bool, str)
_args_told: dict[tuple[Any, ...], Facts] = {}


class _Mode(TorchFunctionMode):  # type: ignore[misc]  # torch is not typed here
    """Records each torch function as a call.

    The path of a call is kept short: nothing is built for functions that nobody demanded, and equal summaries are one
    object.
    """

    def __init__(self, demand: Demand, recorder: Recorder, name: str) -> None:
        super().__init__()
        self.off = False
        self._demand = demand
        self._recorder = recorder
        self._name = name
        self._levels: dict[Any, tuple[str, ...] | None] = {}
        self._thread = threading.get_ident()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if is_compiling():
            return func(*args, **kwargs) if kwargs else func(*args)
        levels = self._levels.get(func, ())
        if levels == ():
            levels = self._learn(func)
        recorder = self._recorder
        if levels is None or self.off or not recorder.active or recorder.updating:
            return func(*args, **kwargs) if kwargs else func(*args)
        try:
            call = recorder.enter(FUNCTION, levels, "", circumstances(), _arguments(kwargs))
        except Exception as error:
            self._fails(error)
            return func(*args, **kwargs) if kwargs else func(*args)
        try:
            result = func(*args, **kwargs) if kwargs else func(*args)
        except BaseException:
            recorder.abandon(call)
            raise
        try:
            recorder.leave(call, result_facts(result))
        except Exception as error:
            self._fails(error)
        return result

    def _learn(self, func: Any) -> tuple[str, ...] | None:
        try:
            name = function_name(func)
        except Exception as error:
            self._fails(error)
            name = None
        levels = (name,) if name is not None and self._demand.wants_call((name,)) else None
        self._levels[func] = levels
        return levels

    def _fails(self, error: Exception) -> None:
        self.off = True
        self._recorder.fault(self._name, error)


def _arguments(kwargs: dict[str, Any] | None) -> Facts:
    """Flags and names among the keyword arguments."""
    if not kwargs:
        return ()
    told = tuple((key, value) for key, value in kwargs.items() if type(value) in _FLAGS)
    found = _args_told.get(told)
    if found is None:
        found = _args_told[told] = tuple(sorted(told))
    return found
