"""Reads the code of functions, the arguments of a running one from its frame, and whether it returned or raised."""

from __future__ import annotations

import ctypes
import dis
import inspect
import sys
from collections.abc import Iterator
from types import CodeType, FrameType, FunctionType
from typing import Any

_SNAPSHOTS = (3, 11) <= sys.version_info[:2] < (3, 13)
"""Whether `f_locals` is a copy that the frame keeps and that can be emptied.

Python 3.10 makes a copy for each event of a profiler and writes it back; since 3.13 `f_locals` is a view.
"""

_OF_FUNCTION = inspect.CO_OPTIMIZED

_write_back = ctypes.PYFUNCTYPE(None, ctypes.py_object, ctypes.c_int)(("PyFrame_LocalsToFast", ctypes.pythonapi))


def local_values(frame: FrameType, names: tuple[str, ...]) -> dict[str, Any]:
    """The values of these local variables, as far as they are bound. Leaves nothing in the frame.

    Note [Borrowed locals]: the copy that `f_locals` makes stays with the frame. It would keep the arguments of the
    function alive after the function has dropped them. Writing the copy back changes nothing and marks it as outdated;
    then TrainCheck can empty it.
    """
    if not frame.f_code.co_flags & _OF_FUNCTION:
        return {}  # in a module or a class, `f_locals` is the namespace itself
    values = frame.f_locals
    selected = {name: values[name] for name in names if name in values}
    if _SNAPSHOTS:
        _write_back(frame, 0)
        values.clear()
    return selected


_DEEPEST = 7
"""Maximum number of frames between the hook and the function of torch that calls it: guards of TrainCheck and other
tools."""


def keywords_of_module_call() -> dict[str, Any]:
    """The keyword arguments of the module call whose hook is running.

    torch passes only positional arguments to global hooks. The keyword arguments are a variable of the calling
    function.
    """
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_DEEPEST):
        if frame is None:
            break
        if frame.f_globals.get("__name__") == "torch.nn.modules.module":
            keywords = local_values(frame, ("kwargs",)).get("kwargs")
            return keywords if isinstance(keywords, dict) else {}
        frame = frame.f_back
    return {}


def captured_values(function: FunctionType) -> Iterator[Any]:
    """Yield the variables that a function has of the functions around it, as far as they are bound."""
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not yet bound
            continue


_METHOD_RECEIVERS = ("self", "cls")


def argument_names(code: CodeType) -> tuple[str, ...]:
    """The names of a function's parameters, without the receiver of a method."""
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return names[1:] if names[:1] and names[0] in _METHOD_RECEIVERS else names


def variadic_names(code: CodeType) -> tuple[str, ...]:
    """The names of the variadic parameters of a function: `args`, `kwargs`."""
    start = code.co_argcount + code.co_kwonlyargcount
    return code.co_varnames[start : start + bool(code.co_flags & 0x04) + bool(code.co_flags & 0x08)]


def return_offsets(code: CodeType) -> frozenset[int]:
    """The offsets in `code` at which it returns; a frame that ends at any other offset has raised."""
    return frozenset(step.offset for step in dis.get_instructions(code) if step.opname in _RETURNS)


_RETURNS = ("RETURN_VALUE", "RETURN_CONST")


def assigned_attributes(code: CodeType) -> Iterator[str]:
    """The names of the attributes that a function assigns, of whatever object."""
    return (str(step.argval) for step in dis.get_instructions(code) if step.opname == "STORE_ATTR")


def code_of(function: Any) -> CodeType | None:
    """The code of a function or static method, of the one inside where it is decorated; None for others."""
    function = getattr(function, "__func__", function)
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    code: CodeType | None = getattr(function, "__code__", None)
    return code
