"""Callbacks: functions of the program that are called when a finding was made, or before training is stopped."""

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

# What a program registers is of the process, as the program is: it may come before observation begins.
_on_violation: list[Callable[[Finding], object]] = []
_before_stop: list[Callable[[], object]] = []


def on_violation(function: Function) -> Function:
    """Register a function that is called with each new finding of severity error, with `--on-violation callback`.

    It is called on the training thread, before the next optimizer step. What it raises is told on stderr and does not
    end the training, unless it is `traincheck.StopTraining`. Returns the function, so it can be used as a decorator. No
    effect unobserved.
    """
    if function not in _on_violation:
        _on_violation.append(function)
    return function


def before_stop(function: Function) -> Function:
    """Register a function (without arguments) that is called when TrainCheck is about to stop the training: the place
    to save a checkpoint.

    It is called on the training thread, before the next optimizer step, in each process that is stopped. What it raises
    is told on stderr, and the training is stopped all the same. Returns the function, so it can be used as a decorator.
    No effect unobserved.
    """
    if function not in _before_stop:
        _before_stop.append(function)
    return function


def notify(finding: Finding, named: Callable[..., Any] | None = None) -> None:
    """Call what was registered, and `named`. Raises StopTraining where one of them does."""
    for function in [*_on_violation, *([named] if named is not None and named not in _on_violation else [])]:
        try:
            function(finding)
        except StopTraining:
            raise
        except Exception as error:
            log_warning(f"{_name(function)}, called for a finding, raised {type(error).__name__}: {error}")


def prepare_stop() -> None:
    """Call what is to be called before the training is stopped."""
    for function in (*_before_stop,):  # it may register another one
        try:
            function()
        except Exception as error:
            log_warning(f"{_name(function)}, called before the stop, raised {type(error).__name__}: {error}")


def find(path: str) -> Callable[..., Any] | None:
    """The function `package.module:function`, None (and a word on stderr) where it cannot be had."""
    home, _, name = path.partition(":")
    try:
        target: Any = _module(home)
        for part in name.split("."):
            target = getattr(target, part)
    except Exception as error:  # it is the user's own code
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
    """The module of this name; the script that runs is not imported a second time."""
    main = sys.modules.get("__main__")
    file = getattr(main, "__file__", None) or ""
    if Path(file).stem == name and name not in sys.modules:
        return main
    return sys.modules.get(name) or importlib.import_module(name)


def _name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__qualname__", function))
