"""Holds the program's functions that TrainCheck calls after a finding or before it stops the training."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from traincheck.errors import StopTraining
from traincheck.runtime.stderr_log import log_warning

if TYPE_CHECKING:
    from traincheck.vocab.finding import Finding

Function = TypeVar("Function", bound=Callable[..., Any])

# Callbacks belong to the process, because a program may register them before observation begins.
_on_violation: list[Callable[[Finding], object]] = []
_before_stop: list[Callable[[], object]] = []


def on_violation(function: Function) -> Function:
    """Register a function that is called with each new finding of severity error, with `--on-violation callback`.

    TrainCheck calls it on the training thread, before the next optimizer step. TrainCheck logs its exceptions on stderr
    and continues the training, except for `traincheck.StopTraining`. Returns the function, so you can use it as a
    decorator. Without observation it has no effect.
    """
    if function not in _on_violation:
        _on_violation.append(function)
    return function


def before_stop(function: Function) -> Function:
    """Register a function (without arguments) that is called before TrainCheck stops the training, to save a
    checkpoint.

    TrainCheck calls it on the training thread, before the next optimizer step, in each process that stops. TrainCheck
    logs its exceptions on stderr and stops the training anyway. Returns the function, so you can use it as a decorator.
    Without observation it has no effect.
    """
    if function not in _before_stop:
        _before_stop.append(function)
    return function


def notify(finding: Finding, named: Callable[..., Any] | None = None) -> None:
    """Call the registered functions and `named`. Raises StopTraining if a function does."""
    for function in [*_on_violation, *([named] if named is not None and named not in _on_violation else [])]:
        try:
            function(finding)
        except StopTraining:
            raise
        except Exception as error:
            log_warning(f"{_name(function)}, called for a finding, raised {type(error).__name__}: {error}")


def prepare_stop() -> None:
    """Call the functions that are registered for a stop."""
    for function in (*_before_stop,):  # a copy, because a function may register another
        try:
            function()
        except Exception as error:
            log_warning(f"{_name(function)}, called before the stop, raised {type(error).__name__}: {error}")


def find(path: str) -> Callable[..., Any] | None:
    """The function `package.module:function`; None, with a warning on stderr, if it cannot be imported."""
    home, _, name = path.partition(":")
    try:
        target: Any = _module(home)
        for part in name.split("."):
            target = getattr(target, part)
    except Exception as error:  # user code may raise anything
        log_warning(
            f"--on-violation {path} cannot be used, findings are only reported: {type(error).__name__}: {error}"
        )
        return None
    if not callable(target):
        log_warning(f"--on-violation {path} cannot be used, findings are only reported: it is {type(target).__name__}")
        return None
    function: Callable[..., Any] = target
    return function


def _module(name: str) -> Any:
    """The module of this name. The running script is not imported again."""
    main = sys.modules.get("__main__")
    file = getattr(main, "__file__", None) or ""
    if Path(file).stem == name and name not in sys.modules:
        return main
    return sys.modules.get(name) or importlib.import_module(name)


def _name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__qualname__", function))
