"""Compares a process before and after it was observed: hooks, patches, threads, files, random states.

For the tests of a package that brings its own source::

    from traincheck.testing.leftovers import differences, object_state, process_state

    def test_no_leftovers() -> None:
        before = process_state()
        with observing_with(MySource()):
            train()
        assert differences(before, process_state()) == {}

Imports nothing that is not imported already, torch included.
"""

from __future__ import annotations

import atexit
import builtins
import gc
import logging
import os
import random
import signal
import sys
import threading
import types
import warnings
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

State = dict[str, object]

LIBRARIES = ("torch", "safetensors", "builtins", "multiprocessing", "threading", "pickle", "copy", "logging")
"""Packages whose functions and classes are compared."""

_HOOKS = ("_global_", "_extra_state", "_builtin_table")
"""Prefixes of dicts in torch's modules that hold registered hooks."""


def process_state(also: Iterable[str] = ()) -> State:
    """Everything in the process that observing could change, by name; compare values with `==`.

    Functions and classes are compared by identity, those of the packages `also` as well. Known limitations: callbacks
    of `os.register_at_fork` cannot be listed.
    """
    return {
        **_functions((*LIBRARIES, *also)),
        **_registered(),
        **_torch(),
        **_interpreter(),
        **_signals(),
        **_system(),
        **_random(),
    }


def differences(before: Mapping[str, object], after: Mapping[str, object]) -> dict[str, tuple[object, object]]:
    """The entries that differ. A module that was imported in between is no difference."""
    changed = {}
    for name in sorted({*before, *after}):
        old, new = before.get(name, _MISSING), after.get(name, _MISSING)
        if old != new and not (old is _MISSING and name.partition(":")[0] not in _modules_of(before)):
            changed[name] = (old, new)
    return changed


class _Missing:
    def __repr__(self) -> str:
        return "nothing"


_MISSING = _Missing()


def _modules_of(state: Mapping[str, object]) -> frozenset[str]:
    names = state.get("modules looked at", frozenset())
    return names if isinstance(names, frozenset) else frozenset()


# -- functions and classes -------------------------------------------------------------------------------------------


def _modules(libraries: Collection[str] = LIBRARIES) -> Iterator[tuple[str, types.ModuleType]]:
    for name, module in list(sys.modules.items()):
        if name.split(".", 1)[0] in libraries and isinstance(module, types.ModuleType):
            yield name, module


def _functions(libraries: Collection[str]) -> State:
    """The functions of modules and the members of their classes, by identity."""
    state: State = {}
    names = set()
    seen: set[int] = set()
    for name, module in _modules(libraries):
        names.add(name)
        for attribute, value in list(vars(module).items()):
            if issubclass(type(value), type):  # not by `isinstance`, of which some objects of torch complain
                state[f"{name}:{attribute}"] = id(value)
                if id(value) not in seen and str(value.__module__).split(".", 1)[0] in libraries:
                    seen.add(id(value))
                    state.update(_members(f"{name}:{attribute}", value))
            elif callable(value):
                state[f"{name}:{attribute}"] = id(value)
    state["modules looked at"] = _Growing(names)
    return state


def _members(name: str, cls: type) -> Iterator[tuple[str, object]]:
    for attribute, value in list(vars(cls).items()):
        if callable(value) or isinstance(value, (property, classmethod, staticmethod)):
            yield f"{name}.{attribute}", id(value)


class _Growing(frozenset[str]):
    """Names of modules; additional names are no difference."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, frozenset)

    def __ne__(self, other: object) -> bool:  # a frozenset has its own, which does not call __eq__
        return not self == other

    __hash__ = frozenset.__hash__


def _registered() -> State:
    """The entries in dicts of torch's modules that hold registered hooks."""
    state: State = {}
    for name, module in _modules():
        for attribute, value in list(vars(module).items()):
            if attribute.startswith(_HOOKS) and isinstance(value, dict):
                state[f"{name}:{attribute} holds"] = {key: id(entry) for key, entry in value.items()}
    return state


# -- states ----------------------------------------------------------------------------------------------------------


def _torch() -> State:
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return {}
    dispatch: Any = sys.modules.get("torch.utils._python_dispatch")
    state: State = {
        "function modes": list(map(id, torch.overrides._get_current_function_mode_stack())),
        "torch functions": str(getattr(torch._C, "_get_torch_function_state", torch._C._is_torch_function_enabled)()),
        "gradients": (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_anomaly_enabled()),
        "autocast": (torch.is_autocast_enabled("cpu"), str(torch.get_autocast_dtype("cpu"))),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "default dtype": str(torch.get_default_dtype()),
        "threads of torch": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "always warns": torch.is_warn_always_enabled(),
        "fused attention": torch.backends.mha.get_fastpath_enabled(),
    }
    if dispatch is not None:
        state["dispatch modes"] = list(map(id, dispatch._get_current_dispatch_mode_stack()))
    return state


def _interpreter() -> State:
    monitoring = getattr(sys, "monitoring", None)
    return {
        "trace": (id(sys.gettrace()), id(sys.getprofile())),
        "trace of threads": (
            id(getattr(threading, "_trace_hook", None)),
            id(getattr(threading, "_profile_hook", None)),
        ),
        "monitoring": [monitoring.get_tool(tool) for tool in range(6)] if monitoring is not None else [],
        "finders": list(map(id, sys.meta_path)),
        "search path": list(sys.path),
        "path hooks": list(map(id, sys.path_hooks)),
        "hooks": [id(getattr(sys, name)) for name in ("excepthook", "unraisablehook", "displayhook", "breakpointhook")],
        "hook of threads": id(threading.excepthook),
        "streams": [id(getattr(sys, name)) for name in ("stdin", "stdout", "stderr")],
        "limits": (sys.getrecursionlimit(), sys.getswitchinterval()),
        "built in": {name: id(value) for name, value in vars(builtins).items() if name != "_"},
        "at exit": atexit._ncallbacks(),
        "warnings": (list(warnings.filters), id(warnings.showwarning)),
        "collector": (gc.isenabled(), gc.get_threshold(), list(map(id, gc.callbacks))),
        "root logger": (logging.root.level, list(map(id, logging.root.handlers)), logging.root.disabled),
        "finalizers": sum(not _is_of_compiler(part.func) for part in _finalizers()),
    }


def _signals() -> State:
    if threading.current_thread() is not threading.main_thread():
        return {}
    numbers = sorted(signal.valid_signals())
    return {
        "signal handlers": {int(number): id(signal.getsignal(number)) for number in numbers},
        "signal mask": sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, ()))),
    }


def _system() -> State:
    mask = os.umask(0o077)
    os.umask(mask)
    return {
        "environment": dict(os.environ),
        "working directory": str(Path.cwd()),
        "umask": mask,
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "descriptors": _descriptors(),
    }


def _descriptors() -> dict[str, str]:
    """The target of each open descriptor."""
    targets = {}
    table = Path("/proc/self/fd")
    for end in table.iterdir() if table.is_dir() else ():
        try:
            targets[end.name] = str(end.readlink())
        except OSError:  # the descriptor of this listing
            continue
    return targets


def _random() -> State:
    torch: Any = sys.modules.get("torch")
    numpy: Any = sys.modules.get("numpy")
    state: State = {"random of Python": random.getstate()}
    if torch is not None:
        state["random of torch"] = bytes(torch.get_rng_state().tolist())
    if numpy is not None and "numpy.random" in sys.modules:
        state["random of numpy"] = repr(numpy.random.get_state())
    return state


# -- objects of the program ------------------------------------------------------------------------------------------


def object_state(*objects: Any) -> State:
    """Everything on modules, optimizers and other objects that observing could change.

    That is attributes, hooks and weak references; for a module, also those of its modules and parameters.
    """
    state: State = {}
    for index, root in enumerate(objects):
        for name, part in _parts(f"{index}", root):
            state[f"{name} is"] = (id(type(part)), weakref.getweakrefcount(part))
            attributes = getattr(part, "__dict__", {})
            state[f"{name} has"] = {key: _identity(value) for key, value in attributes.items()}
            for hooks in ("_backward_hooks", "_post_accumulate_grad_hooks"):
                if hasattr(type(part), hooks):
                    state[f"{name}.{hooks}"] = _identity(getattr(part, hooks))
    return state


def _parts(name: str, root: Any) -> Iterable[tuple[str, Any]]:
    yield name, root
    if hasattr(root, "named_modules"):
        yield from ((f"{name}.{inner}", module) for inner, module in root.named_modules() if inner)
        yield from ((f"{name}.{inner}", parameter) for inner, parameter in root.named_parameters())


def _identity(value: Any) -> object:
    if isinstance(value, (str, int, float, bool, type(None))):
        return value
    if isinstance(value, dict):
        return {str(key) if isinstance(key, str) else id(key): id(entry) for key, entry in value.items()}
    return id(value)


def _finalizers() -> list[Any]:
    return list(getattr(weakref.finalize, "_registry", {}).values())


def _is_of_compiler(function: Any) -> bool:
    """Whether a finalizer belongs to torch's compiler, which adds more over time."""
    function = getattr(function, "func", function)  # of a `functools.partial`
    return str(getattr(function, "__module__", "")).startswith("torch._dynamo")
