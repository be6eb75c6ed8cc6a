"""The protocol of a source, and the functions with which sources patch the process and restore it."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Protocol

from traincheck.sources.recording.patches import Patch
from traincheck.sources.recording.patches import UndoStack as UndoStack

if TYPE_CHECKING:
    from traincheck.sources.recording.recorder import Recorder
    from traincheck.vocab.demand import Demand


class Source(Protocol):
    """Observes one aspect of a training process.

    `attach` observes the events in `demand`, hands them to `recorder`, and returns an undo stack that removes every
    hook. Keep that stack in a local variable `undo`: TrainCheck closes it if `attach` raises. A source never raises
    into the program, replaces one of its objects, or changes a result. It never waits for an accelerator: it defers
    conclusions from tensor values, see Note [One transfer a step] in device_transfers.py.
    """

    name: str

    def offers(self) -> str | None:
        """None if the source can observe here, otherwise the reason why it cannot."""

    def attach(self, demand: Demand, recorder: Recorder) -> ExitStack:
        """Start observing. Closing the returned stack ends it and leaves no trace."""


def replace(
    undo: UndoStack, holder: Any, attribute: str, make: Callable[[Any], Any], *, only_watched: bool = False
) -> None:
    """Replace `holder.attribute` by `make(original)` until `undo` is closed.

    With `only_watched` the replacement is suspended between watched windows, see Note [Suspended between samples].
    Does nothing if the attribute is missing (another version of torch). If the program has replaced the attribute again
    by then, its replacement stays.
    """
    namespace = vars(holder)
    if attribute not in namespace:
        return
    original = namespace[attribute]
    replacement = make(original)
    _put(undo, Patch(holder, attribute, original, replacement, only_watched))


def _put(undo: UndoStack, patch: Patch) -> None:
    holder, attribute, original, replacement, _ = patch
    undo.add_patch(patch)  # first, as an interrupt may follow
    _compile_as(undo, original, replacement)
    setattr(holder, attribute, replacement)


def _compile_as(undo: ExitStack, original: Any, replacement: Any) -> None:
    """Let TorchScript compile a replacement as its original: it recognises operators by identity."""
    builtins = sys.modules.get("torch.jit._builtins")
    operators: dict[int, str] = getattr(builtins, "_get_builtin_table", dict)()
    operator = operators.get(id(original))
    if operator is not None:
        operators[id(replacement)] = operator
        undo.callback(operators.pop, id(replacement), None)


def replace_everywhere(
    undo: UndoStack, home: str, name: str, make: Callable[[Any], Any], *, only_watched: bool = False
) -> None:
    """Replace the function `home.name` in every loaded module of its package that holds it under this name.

    `only_watched` as in `replace`. Closing `undo` also restores it in modules that were loaded later.
    """
    original = getattr(importlib.import_module(home), name, None)
    if original is None:
        return
    package = home.split(".", 1)[0]
    replacement = make(original)
    if not undo.everywhere:
        undo.callback(_put_back_in_others, undo.everywhere)
    undo.everywhere.setdefault(package, {}).setdefault(name, []).append((original, replacement))
    for module, namespace in _loaded(package):
        if namespace.get(name) is original:
            _put(undo, Patch(module, name, original, replacement, only_watched))


def _put_back_in_others(replaced: Mapping[str, Mapping[str, Sequence[tuple[Any, Any]]]]) -> None:
    """Restore functions in modules that were loaded after they were replaced. All functions in one pass, because a
    process has thousands of modules."""
    for package, functions in replaced.items():
        for module, namespace in _loaded(package):
            for name in functions.keys() & namespace.keys():
                for original, replacement in functions[name]:
                    if namespace[name] is replacement:
                        setattr(module, name, original)


_all: list[int] = []  # ids, because the program may drop a module of its own
_of_package: dict[str, list[tuple[Any, dict[str, Any]]]] = {}


def _loaded(package: str) -> list[tuple[Any, dict[str, Any]]]:
    """The loaded modules of a package, with their namespaces. (Cached, because each attachment replaces dozens of
    functions, and there are thousands of modules.)"""
    loaded = list(map(id, sys.modules.values()))
    if loaded != _all:
        _all[:] = loaded
        _of_package.clear()
    if package not in _of_package:
        _of_package[package] = [
            (module, namespace)
            for name, module in list(sys.modules.items())
            if name.split(".", 1)[0] == package and isinstance(namespace := getattr(module, "__dict__", None), dict)
        ]
    return _of_package[package]


def wrapping(
    before: Callable[..., Any],
    after: Callable[[Any, Any], None],
    failed: Callable[[Any], None],
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator that calls `before(*args, **kwargs)` and `after(token, result)` around a function.

    It calls `failed(token)` instead of `after` if the function raises. The three must not raise (see
    `Recorder.guarded`). If `before` returns None, the call is not observed.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            token = before(*args, **kwargs)
            if token is None:
                return function(*args, **kwargs)
            try:
                result = function(*args, **kwargs)
            except BaseException:
                failed(token)
                raise
            after(token, result)
            return result

        return wrapper

    return decorate


def around_block(
    undo: UndoStack,
    cls: type,
    entered: Callable[[Any], object],
    left: Callable[[Any], object],
    *,
    only_watched: bool = False,
) -> None:
    """Call `entered(manager)` after a block under a context manager of this class begins, and `left(manager)` before it
    ends.

    An interrupt (Ctrl-C) during these calls ends a block that has begun, and does not prevent the end of one.
    """

    def around_enter(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def enter(manager: Any) -> Any:
            result = function(manager)
            try:
                entered(manager)
            except BaseException:  # the program never reaches its block, and will not end it
                manager.__exit__(*sys.exc_info())
                raise
            return result

        return enter

    def around_exit(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def leave(manager: Any, *error: Any) -> Any:
            try:
                left(manager)
            finally:
                result = function(manager, *error)
            return result

        return leave

    replace(undo, cls, "__enter__", around_enter, only_watched=only_watched)
    replace(undo, cls, "__exit__", around_exit, only_watched=only_watched)
