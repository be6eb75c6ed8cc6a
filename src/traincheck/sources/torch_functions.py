"""Source `functions`: public torch functions and tensor methods, seen through a `TorchFunctionMode`."""

from __future__ import annotations

import functools
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from torch.compiler import is_compiling
from torch.overrides import TorchFunctionMode

from traincheck.sources.base import replace_everywhere, wrapping
from traincheck.sources.circumstances import Surroundings, circumstances_amid, result_facts
from traincheck.sources.names import PACKED, RECURRENT, function_name, parameter_names, torch_parameter_names
from traincheck.sources.recorder import OpenCall, Recorder
from traincheck.sources.summaries import Asked, Before, Summaries, asked
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import FUNCTION

TORCH_PREFIX = "torch."

INIT = "torch.nn.init"

ENGINE = ("torch.autograd.graph", "_engine_run_backward")
"""What `backward` and `grad` come down to; below it no mode is asked about the call itself any more."""


class FunctionSource:
    """Observes torch functions called by the thread it is attached from.

    Known limitations: other threads and the inside of compiled regions are not seen; of a function that calls others
    only the outermost is (but for the functions of `torch.nn.init` that a mode does not see, which are wrapped, and for
    what a backward runs: recomputed forwards, hooks, functions of the program's own).
    """

    name = "functions"

    def __init__(self, summaries: Summaries, surroundings: Surroundings) -> None:
        self._summaries = summaries
        self._surroundings = surroundings

    def offers(self) -> str | None:
        return None

    def attach(self, demand: Demand, recorder: Recorder) -> ExitStack:
        undo = ExitStack()
        if demand.everything or any(_is_function(api) for api in demand.apis):
            self._wrap_init(demand, recorder, undo)
            mode = _Mode(demand, recorder, self._summaries, self._surroundings, self.name)
            mode.__enter__()
            undo.callback(_leave, mode)
            replace_everywhere(undo, *ENGINE, lambda function: _amid(mode, function))
        return undo

    def _wrap_init(self, demand: Demand, recorder: Recorder, undo: ExitStack) -> None:
        """Wrap the functions that fill a tensor and that no mode is asked about."""
        seen_by_modes = torch.overrides.get_testing_overrides()
        for name, function in vars(torch.nn.init).items():
            levels = (f"{INIT}.{name}",)
            public = name.endswith("_") and not name.startswith("_") and callable(function)
            if public and function not in seen_by_modes and demand.wants_call(levels):
                what = asked(demand, levels, parameter_names(function))
                replace_everywhere(undo, INIT, name, self._watching(recorder, levels, what))

    def _watching(self, recorder: Recorder, levels: tuple[str, ...], what: Asked | None) -> Any:
        summaries, surroundings = self._summaries, self._surroundings

        def begins(*args: Any, **kwargs: Any) -> tuple[OpenCall, Before | None]:
            call = recorder.enter(FUNCTION, levels, "", circumstances_amid(surroundings))
            return call, summaries.begins(call, what, args, kwargs) if what else None

        def ends(token: tuple[OpenCall, Before | None], result: Any) -> None:
            call, before = token
            recorder.leave(call, summaries.ends(call, what, before, result) if what else result_facts(result))

        def failed(token: tuple[OpenCall, Before | None]) -> None:
            recorder.abandon(token[0])

        guarded = recorder.guarded
        return wrapping(guarded(self.name, begins), guarded(self.name, ends), guarded(self.name, failed))


def _is_function(api: str) -> bool:
    """Whether a demanded name is that of a torch function (classes have their method's name after a capital)."""
    return api.startswith(TORCH_PREFIX) and api.rsplit(".", 2)[-2] in (
        "torch",
        "functional",
        "Tensor",
        "init",
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


def _amid(mode: _Mode, backward: Any) -> Any:
    """`backward` with the mode on. A mode is off while it is asked about a function, as it is about `Tensor.backward`;
    but what runs in a backward is part of the training, and not of how a function is made."""

    @functools.wraps(backward)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if is_compiling() or mode.off or mode in torch.overrides._get_current_function_mode_stack():
            return backward(*args, **kwargs)
        with mode:
            return backward(*args, **kwargs)

    return wrapper


class _Known(NamedTuple):
    """A function that is recorded: its name, and what is told of its calls.

    `packed` is asked of the calls of a recurrent function that are given a packed sequence: there the second argument
    is a tensor, and all of them have other names.
    """

    levels: tuple[str, ...]
    asked: Asked | None
    packed: Asked | None = None


class _Mode(TorchFunctionMode):  # type: ignore[misc]  # torch is not typed here
    """Records each torch function as a call.

    The path of a call is kept short: nothing is built for functions that nobody demanded, and equal summaries are one
    object.
    """

    def __init__(
        self, demand: Demand, recorder: Recorder, summaries: Summaries, surroundings: Surroundings, name: str
    ) -> None:
        super().__init__()
        self.off = False
        self._demand = demand
        self._recorder = recorder
        self._profiler = recorder.profiler
        self._updates = recorder.steps.updates
        self._summaries = summaries
        self._surroundings = surroundings
        self._name = name
        self._known: dict[Any, _Known | None] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if is_compiling() or self._profiler.aside:
            return func(*args, **kwargs) if kwargs else func(*args)
        try:
            known = self._known[func]
        except KeyError:
            known = self._learn(func)
        recorder = self._recorder
        # Of an update only what the closure's modules compute is recorded; the rest is the optimizer's own affair. So
        # it is with a helper of the project that was told of often enough.
        aside = (self._updates or self._profiler.helpers) and not recorder.amid_module()
        if known is None or self.off or not recorder.active or aside:
            return func(*args, **kwargs) if kwargs else func(*args)
        call, before = self._begins(known, args, kwargs)
        if call is None:
            return func(*args, **kwargs) if kwargs else func(*args)
        try:
            result = func(*args, **kwargs) if kwargs else func(*args)
        except BaseException:
            recorder.abandon(call)
            raise
        self._ends(known, call, before, result)
        return result

    def _begins(self, known: _Known, args: Any, kwargs: Any) -> tuple[OpenCall | None, Before | None]:
        recorder = self._recorder
        paused = recorder.profiler.pause()
        call = before = None
        try:
            levels, what, packed = known
            site = recorder.sites.here()
            if site == recorder.fetching:
                return None, None
            if packed is not None and len(args) > 1 and isinstance(args[1], torch.Tensor):
                what = packed
            call = recorder.enter(FUNCTION, levels, "", circumstances_amid(self._surroundings), site=site)
            if what is not None:
                before = self._summaries.begins(call, what, args, kwargs)
        except Exception as error:
            self._fails(error)
        finally:
            if paused:
                recorder.profiler.resume()
        return call, before

    def _ends(self, known: _Known, call: OpenCall, before: Before | None, result: Any) -> None:
        recorder = self._recorder
        paused = recorder.profiler.pause()
        try:
            what = known.asked
            told = result_facts(result) if what is None else self._summaries.ends(call, what, before, result)
            recorder.leave(call, told)
        except Exception as error:
            self._fails(error)
        finally:
            if paused:
                recorder.profiler.resume()

    def _learn(self, func: Any) -> _Known | None:
        known = None
        try:
            name = function_name(func)
            if name is not None and self._demand.wants_call((name,)):
                what = asked(self._demand, (name,), torch_parameter_names(func, name))
                packed = what._replace(names=PACKED) if what is not None and name in RECURRENT else None
                known = _Known((name,), what, packed)
        except Exception as error:
            self._fails(error)
        self._known[func] = known
        return known

    def _fails(self, error: Exception) -> None:
        self.off = True
        self._recorder.fault(self._name, error)
