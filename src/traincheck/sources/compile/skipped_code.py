"""Tells the compiler of torch to skip TrainCheck's own code."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

_OURS = str(Path(__file__).parents[2])


_skipped: set[str] = set()
"""The modules whose code the compiler of this process skips."""


def skip_own_code(skip: Callable[[CodeType], None] | None) -> None:
    """Have the compiler skip TrainCheck's functions where a program calls them between two graphs."""
    if skip is None:
        return
    for name, module in list(sys.modules.items()):
        if name.startswith("traincheck.") and name not in _skipped:
            for value in list(vars(module).values()):
                for code in _codes_of(value, name):
                    skip(code)
            if not getattr(module.__spec__, "_initializing", False):  # otherwise it defines more functions
                _skipped.add(name)


def _codes_of(value: Any, module: str) -> list[CodeType]:
    """Return the code of a function, or of the methods of a class of this module, with nested functions."""
    if isinstance(value, type) and value.__module__ == module:
        return [code for member in vars(value).values() for code in _codes_of(member, module)]
    if isinstance(value, (staticmethod, classmethod)):
        value = value.__func__
    if isinstance(value, property):
        value = value.fget
    if not isinstance(value, FunctionType) or value.__module__ != module:
        return []
    # A standard library decorator runs shared code of that library, which must not be skipped.
    return _with_inner(value.__code__) if value.__code__.co_filename.startswith(_OURS) else []


def _with_inner(code: CodeType) -> list[CodeType]:
    inner = [
        inner_code
        for constant in code.co_consts
        if isinstance(constant, CodeType)
        for inner_code in _with_inner(constant)
    ]
    return [code, *inner]
