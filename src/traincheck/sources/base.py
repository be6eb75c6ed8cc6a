"""What a source is, and how what it changes in the process is put back."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Protocol

from traincheck.sources.recording.patches import Patch
from traincheck.sources.recording.patches import UndoStack as UndoStack

if TYPE_CHECKING:
    from traincheck.sources.recording.recorder import Recorder
    from traincheck.vocab.demand import Demand


class Source(Protocol):
    """Observes one aspect of a training process.

    `offers` says whether it can work here, with the reason when it cannot. `attach` observes what `demand` asks for,
    hands it to `recorder` and returns the undo stack that takes everything back, from a variable `undo`: where `attach`
    does not come to its end, that one is closed. A source never raises into the program, never replaces an object of
    the program and never changes a result. It does not wait for an accelerator either: what follows from the values of
    tensors is put off, see Note [One transfer a step] in device_transfers.py.
    """

    name: str

    def offers(self) -> str | None:
        """None when the source can observe here, otherwise the reason why it cannot."""

    def attach(self, demand: Demand, recorder: Recorder) -> ExitStack:
        """Start observing; closing the returned stack ends it and leaves no trace."""


def replace(undo: UndoStack, holder: Any, attribute: str, make: Callable[[Any], Any]) -> None:
    """Replace `holder.attribute` by `make(original)` until `undo` is closed.

    Does nothing where the attribute is missing (another version of torch). When somebody has replaced it again after
    us, theirs stays: putting ours back would undo a change of the program's own.
    """
    namespace = vars(holder)
    if attribute not in namespace:
        return
    original = namespace[attribute]
    replacement = make(original)
    _put(undo, holder, attribute, original, replacement)


def _put(undo: UndoStack, holder: Any, attribute: str, original: Any, replacement: Any) -> None:
    undo.add_patch(Patch(holder, attribute, original, replacement))  # first: an interrupt may come after the next lines
    _compile_as(undo, original, replacement)
    setattr(holder, attribute, replacement)


def _compile_as(undo: ExitStack, original: Any, replacement: Any) -> None:
    """Have the compiler of TorchScript take a replacement for what it stands for: it knows operators by identity."""
    builtins = sys.modules.get("torch.jit._builtins")
    known: dict[int, str] = getattr(builtins, "_get_builtin_table", dict)()
    operator = known.get(id(original))
    if operator is not None:
        known[id(replacement)] = operator
        undo.callback(known.pop, id(replacement), None)


def replace_everywhere(undo: UndoStack, home: str, name: str, make: Callable[[Any], Any]) -> None:
    """Replace the function `home.name` in every loaded module of the same package that holds it under its name; put it
    back also in those that are loaded meanwhile."""
    original = getattr(importlib.import_module(home), name, None)
    if original is None:
        return
    package = home.split(".", 1)[0]
    replacement = make(original)

    def put_back_in_others() -> None:
        for module in _holding(package, name, replacement):
            setattr(module, name, original)

    undo.callback(put_back_in_others)
    for module in _holding(package, name, original):
        _put(undo, module, name, original, replacement)


def _holding(package: str, name: str, function: Any) -> list[Any]:
    """The loaded modules of a package that hold `function` under this name."""
    found = map(sys.modules.get, _loaded(package))
    return [module for module in found if getattr(module, "__dict__", {}).get(name) is function]


_all: list[str] = []
_of_package: dict[str, list[str]] = {}


def _loaded(package: str) -> list[str]:
    """The names of the loaded modules of a package. (Asked for each function that is replaced, of thousands.)"""
    loaded = list(sys.modules)
    if loaded != _all:
        _all[:] = loaded
        _of_package.clear()
    if package not in _of_package:
        _of_package[package] = [name for name in loaded if name.split(".", 1)[0] == package]
    return _of_package[package]


def wrapping(
    before: Callable[..., Any],
    after: Callable[[Any, Any], None],
    failed: Callable[[Any], None],
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator that calls `before(*args, **kwargs)` and `after(token, result)` around a function.

    `failed(token)` is called instead of `after` when the function raises. The three must not raise themselves (see
    `Recorder.guarded`). A token of None means that this call is not observed.
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


def around_block(undo: UndoStack, cls: type, entered: Callable[[Any], object], left: Callable[[Any], object]) -> None:
    """Have `entered(manager)` called when a block under a context manager of this class has begun, and `left(manager)`
    when it is about to end.

    An interrupt (Ctrl-C) may come while these run. A block that has begun by then is ended, and one that ends does.
    """

    def around_enter(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def enter(manager: Any) -> Any:
            result = function(manager)
            try:
                entered(manager)
            except BaseException:  # the program never comes to its block, and will not end it
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

    replace(undo, cls, "__enter__", around_enter)
    replace(undo, cls, "__exit__", around_exit)
