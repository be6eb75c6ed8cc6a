"""What a source is, and how what it changes in the process is put back."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from traincheck.sources.recorder import Recorder
    from traincheck.vocab.demand import Demand


class Source(Protocol):
    """Observes one aspect of a training process.

    `offers` says whether it can work here, with the reason when it cannot. `attach` observes what `demand` asks for,
    hands it to `recorder` and returns the undo stack that takes everything back. A source never raises into the
    program, never replaces an object of the program and never changes a result.
    """

    name: str

    def offers(self) -> str | None:
        """None when the source can observe here, otherwise the reason why it cannot."""

    def attach(self, demand: Demand, recorder: Recorder) -> ExitStack:
        """Start observing; closing the returned stack ends it and leaves no trace."""


def replace(undo: ExitStack, holder: Any, attribute: str, make: Callable[[Any], Any]) -> None:
    """Replace `holder.attribute` by `make(original)` until `undo` is closed.

    Does nothing where the attribute is missing (another version of torch). When somebody has replaced it again after
    us, theirs stays: putting ours back would undo a change of the program's own.
    """
    namespace = vars(holder)
    if attribute not in namespace:
        return
    original = namespace[attribute]
    replacement = make(original)
    setattr(holder, attribute, replacement)

    def put_back() -> None:
        if vars(holder).get(attribute) is replacement:
            setattr(holder, attribute, original)

    undo.callback(put_back)


def replace_everywhere(undo: ExitStack, home: str, name: str, make: Callable[[Any], Any]) -> None:
    """Replace the function `home.name` in every loaded module of the same package that holds it under its name."""
    original = getattr(importlib.import_module(home), name, None)
    if original is None:
        return
    package = home.split(".", 1)[0]
    replacement = make(original)
    for module_name, module in list(sys.modules.items()):
        if module_name.split(".", 1)[0] == package and getattr(module, "__dict__", {}).get(name) is original:
            replace(undo, module, name, lambda _: replacement)


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
