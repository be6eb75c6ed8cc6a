"""Source `regions`: adds active context managers, such as `no_sync`, to the context of the calls inside them.

Autocast and gradient modes are calls of their own (see `lifecycle`); the tables below list all other managers.

Note [Observing a generator's region]
A generator function under `contextlib.contextmanager` still returns the object of the standard library. TrainCheck only
wraps the generator inside it, and so notices when the block begins and ends. The class of the standard library is not
patched: the compiler traces context managers of programs into it, and cannot trace them into TrainCheck's code.
"""

from __future__ import annotations

import functools
import importlib
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import torch

from traincheck.sources.base import around_block, replace, replace_everywhere, wrapping
from traincheck.sources.recording.context_facts import CallContext
from traincheck.sources.recording.patches import UndoStack
from traincheck.sources.recording.recorder import Recorder
from traincheck.vocab.demand import Demand

GENERATORS: tuple[tuple[str, str, str], ...] = (
    ("torch.nn.parallel.distributed", "DistributedDataParallel.no_sync", "no_sync"),
    ("torch.nn.attention", "sdpa_kernel", "sdpa_kernel"),
    ("torch.backends.cuda", "sdp_kernel", "sdpa_kernel"),
    ("torch.backends.cudnn", "flags", "cudnn.flags"),
    ("torch.backends.mkldnn", "flags", "mkldnn.flags"),
    ("torch.random", "fork_rng", "fork_rng"),
    ("torch.nn.utils.parametrize", "cached", "parametrize.cached"),
    ("torch.nn.utils.stateless", "_reparametrize_module", "functional_call"),
    ("torch.autograd.graph", "disable_saved_tensors_hooks", "disable_saved_tensors_hooks"),
)
"""Generator functions by module and name, with the names of their regions. (`functional_call` swaps the parameters of a
module.)"""

CLASSES: tuple[tuple[str, str, str], ...] = (
    ("torch.autograd.anomaly_mode", "detect_anomaly", "detect_anomaly"),
    ("torch.autograd.anomaly_mode", "set_detect_anomaly", "detect_anomaly"),
    ("torch.autograd.graph", "saved_tensors_hooks", "saved_tensors_hooks"),
)
"""Context managers that are classes, with the names of their regions."""


class _Entered(threading.local):
    def __init__(self) -> None:
        self.regions: set[int] = set()


class ContextManagerSource:
    """Observes context managers while calls inside them are observed.

    Known limitations: TrainCheck misses functions decorated with such a generator-based manager, and names that a
    program imported from torch before observation began.
    """

    name = "regions"

    def __init__(self, call_context: CallContext) -> None:
        self._call_context = call_context
        self._entered = _Entered()

    def offers(self) -> str | None:
        return None

    def attach(self, demand: Demand, recorder: Recorder) -> ExitStack:
        undo = UndoStack()
        if demand.is_empty:
            return undo
        for home, name, label in GENERATORS:
            wrap_in(undo, home, name, self._watching_generator(recorder, label))
        for home, name, label in CLASSES:
            cls = getattr(importlib.import_module(home), name, None)
            if cls is not None:
                self._watch_class(undo, recorder, cls, label)
        return undo

    def _watching_generator(self, recorder: Recorder, label: str) -> Callable[[Any], Any]:
        around = self._call_context

        def wrap_generator(manager: Any) -> None:
            inner = getattr(manager, "gen", None)
            if inner is not None:
                manager.gen = _watched(inner, around, label)

        safe_wrap = recorder.guarded(self.name, wrap_generator, always=True)  # a region may outlast its step
        watching = wrapping(lambda *args, **kwargs: True, lambda token, manager: safe_wrap(manager), lambda token: None)

        def decorate(function: Any) -> Any:
            wrapped = watching(function)
            # The compiler identifies some of these by the generator function.
            wrapped.__wrapped__ = getattr(function, "__wrapped__", function)  # type: ignore[attr-defined]
            return wrapped

        return decorate

    def _watch_class(self, undo: UndoStack, recorder: Recorder, cls: type, label: str) -> None:
        around, entered = self._call_context, self._entered

        def enters(region: Any) -> None:
            entered.regions.add(id(region))
            around.enter_region(label)

        def leaves(region: Any) -> None:
            if id(region) in entered.regions:
                entered.regions.remove(id(region))
                around.exit_region(label)

        guarded = functools.partial(recorder.guarded, self.name, always=True)
        around_block(undo, cls, guarded(enters), guarded(leaves))


def wrap_in(undo: UndoStack, home: str, name: str, make: Callable[[Any], Any]) -> None:
    """Replace the function or method `name` of the module `home`, in every torch module that holds it."""
    module: Any = importlib.import_module(home)
    owner, _, attribute = name.rpartition(".")
    if owner:
        cls = getattr(module, owner, None)
        if cls is not None:
            replace(undo, cls, attribute, make)
    elif isinstance(module, torch.backends.PropModule):  # a proxy; the real module holds the functions
        replace(undo, module.m, name, make)
    else:
        replace_everywhere(undo, home, name, make)


def _watched(inner: Iterator[Any], around: CallContext, label: str) -> Iterator[Any]:
    around.enter_region(label)
    try:
        yield from inner
    finally:
        around.exit_region(label)
