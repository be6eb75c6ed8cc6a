"""Our own code: which of it runs in a program is nothing that its compiler should look at."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

_OURS = str(Path(__file__).parents[2])


def skip_own_code(skip: Callable[[CodeType], None] | None) -> None:
    """Tell the compiler not to compile our functions where a program calls them between two graphs."""
    if skip is None:
        return
    for name, module in list(sys.modules.items()):
        if name.startswith("traincheck."):
            for value in list(vars(module).values()):
                for code in _codes_of(value, name):
                    skip(code)


def _codes_of(value: Any, module: str) -> list[CodeType]:
    """The code of a function or of the methods of a class of this module, with that of the functions inside."""
    if isinstance(value, type) and value.__module__ == module:
        return [code for member in vars(value).values() for code in _codes_of(member, module)]
    if isinstance(value, (staticmethod, classmethod)):
        value = value.__func__
    if isinstance(value, property):
        value = value.fget
    if not isinstance(value, FunctionType) or value.__module__ != module:
        return []
    # What a decorator of the standard library has made runs code of that library, which others use as well.
    return _with_inner(value.__code__) if value.__code__.co_filename.startswith(_OURS) else []


def _with_inner(code: CodeType) -> list[CodeType]:
    inner = [
        inner_code
        for constant in code.co_consts
        if isinstance(constant, CodeType)
        for inner_code in _with_inner(constant)
    ]
    return [code, *inner]
