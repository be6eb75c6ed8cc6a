"""How many times the loops around an update run, and what they step, as the source code of the program declares it.

`for epoch in range(args.epochs)` around `for batch in loader` declares epochs and batches. The code is read, not
executed: names, attributes that objects hold, and arithmetic of integers. Loops that were under way at an earlier place
do not count, so that a sweep around a whole training is none of its loops.

Known limitations: `while`, generators and conditions of their own have no length. A `break` is not seen.
"""

from __future__ import annotations

import ast
import inspect
import math
import operator
from collections.abc import Iterator, Mapping
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader

from traincheck.sources.data.loader_epochs import announced_length
from traincheck.sources.recording.call_sites import CallSites, definition_of, tree_of
from traincheck.sources.recording.frames import local_values

Place = tuple[CodeType, int]
"""A function of the project, and the line that it has reached."""

_Loop = ast.For | ast.AsyncFor | ast.While
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_RANGES = ("range", "trange")
_UP_TO = ("randperm", "permutation")
"""Functions whose result has as many elements as their argument says."""
_OF_FIRST = ("enumerate", "tqdm", "track", "list", "tuple", "reversed", "sorted")
"""Functions whose result has as many elements as their first argument."""
_ARITHMETIC = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}
_COLLECTIONS = (list, tuple, dict, set, range)


def places(frame: FrameType | None, sites: CallSites) -> list[Place]:
    """The places of the project on the stack, innermost first."""
    found = []
    while frame is not None:
        if sites.file_of(frame.f_code):
            found.append((frame.f_code, frame.f_lineno))
        frame = frame.f_back
    return found


class DeclaredLoops(NamedTuple):
    """How many times each loop runs, outermost first, None if unknown; the objects on which the body of the innermost
    one calls `step`; and whether the current line is under a condition with a remainder (`if i % 4 == 0`).

    The body goes on in the functions that are running. An object whose method is running is left out. An object is None
    if reading it could execute code of the program.
    """

    times: list[int | None]
    stepped: list[Any]
    has_remainder: bool


def loops_around(frame: FrameType | None, sites: CallSites, earlier: list[Place]) -> DeclaredLoops:
    """The loops of the project around `frame`, without those around one of the `earlier` places."""
    times, stepped, running = list[int | None](), list[Any](), list[Any]()
    has_remainder = False
    while frame is not None:
        code = frame.f_code
        if sites.file_of(code):
            before = [line for other, line in earlier if other is code]
            loops = [loop for loop in _loops_of(code, frame.f_lineno) if not any(_has_in_body(loop, n) for n in before)]
            if not times:
                body = loops[0].body if loops else getattr(_scope_of(code), "body", [])
                stepped += _stepped(body, frame)
                has_remainder = has_remainder or _has_remainder(body, frame.f_lineno)
                running.append(local_values(frame, ("self",)).get("self"))
            times += [_times(loop, frame) for loop in loops]
        frame = frame.f_back
    stepped = [held for held in stepped if held is None or not _is_among(held, running)]
    return DeclaredLoops(times[::-1], stepped, has_remainder)


def _is_among(held: Any, objects: list[Any]) -> bool:
    return any(held is other for other in objects)


def _has_remainder(body: list[ast.stmt], line: int) -> bool:
    """Whether a line of a body is under a condition with a remainder."""
    conditions = (node for statement in body for node in ast.walk(statement) if isinstance(node, ast.If))
    tests = (node.test for node in conditions if _has_in_body(node, line))
    return any(isinstance(node, ast.Mod) for test in tests for node in ast.walk(test))


def _scope_of(code: CodeType) -> ast.AST | None:
    return tree_of(code.co_filename) if code.co_name == "<module>" else definition_of(code)


def _loops_of(code: CodeType, line: int) -> list[_Loop]:
    """The loops of a function around a line of it, innermost first."""
    scope = _scope_of(code)
    if scope is None:
        return []
    return [node for node in _statements(scope) if isinstance(node, _Loop) and _has_in_body(node, line)][::-1]


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """The statements of a function or module, each before those inside it, without those of functions in it."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, _SCOPES):
            yield child
            yield from _statements(child)


def _has_in_body(block: _Loop | ast.If, line: int) -> bool:
    return block.body[0].lineno <= line <= (block.body[-1].end_lineno or 0)


def _times(loop: _Loop, frame: FrameType) -> int | None:
    return None if isinstance(loop, ast.While) else _length(loop.iter, _values_for(loop.iter, frame))


def _stepped(body: list[ast.stmt], frame: FrameType) -> list[Any]:
    calls = (node for statement in body for node in ast.walk(statement) if isinstance(node, ast.Call))
    functions = (call.func for call in calls)
    receivers = [f.value for f in functions if isinstance(f, ast.Attribute) and f.attr == "step"]
    return [_value(receiver, _values_for(receiver, frame)) for receiver in receivers]


def _values_for(expression: ast.expr, frame: FrameType) -> dict[str, Any]:
    """The variables of an expression."""
    names = tuple({node.id for node in ast.walk(expression) if isinstance(node, ast.Name)})
    values = {name: frame.f_globals[name] for name in names if name in frame.f_globals}
    return values | local_values(frame, names)


def _length(node: ast.expr, values: Mapping[str, Any]) -> int | None:
    """The number of elements of an expression."""
    if isinstance(node, ast.Call) and node.args:
        name = _last_name(node.func)
        if name in _RANGES:
            numbers = [_integer(argument, values) for argument in node.args]
            return len(range(*numbers)) if all(numbers[2:]) and None not in numbers else None  # type: ignore[arg-type]
        if name in _OF_FIRST:
            return _length(node.args[0], values)
        if name in _UP_TO:
            return _integer(node.args[0], values)
        if name == "split" and isinstance(node.func, ast.Attribute):  # of a tensor, into parts of this size
            whole, size = _length(node.func.value, values), _integer(node.args[0], values)
            return math.ceil(whole / size) if whole is not None and size else None
        lengths = [_length(argument, values) for argument in node.args] if name == "zip" else [None]
        return None if None in lengths else min(lengths)  # type: ignore[type-var]
    value = _value(node, values)
    if isinstance(value, DataLoader):
        return announced_length(value)
    if type(value) is torch.Tensor and value.dim():
        return int(value.shape[0])
    return len(value) if type(value) in _COLLECTIONS else None


def _last_name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _integer(node: ast.expr, values: Mapping[str, Any]) -> int | None:
    value = _value(node, values)
    return value if type(value) is int else None


def _value(node: ast.expr, values: Mapping[str, Any]) -> Any:
    """The value of an expression, None where reading it could execute code of the program."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return values.get(node.id)
    if isinstance(node, ast.Attribute):
        held = inspect.getattr_static(_value(node.value, values), node.attr, None)
        return None if hasattr(type(held), "__get__") else held
    if isinstance(node, ast.Subscript):
        held, key = _value(node.value, values), _value(node.slice, values)
        if type(held) in (list, tuple) and type(key) is int:
            return held[key] if -len(held) <= key < len(held) else None
        return held.get(key) if type(held) is dict and isinstance(key, str) else None
    if isinstance(node, ast.Call) and len(node.args) == 1 and _last_name(node.func) in ("len", "int"):
        read = _length if _last_name(node.func) == "len" else _integer
        return read(node.args[0], values)
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        left, right = _integer(node.left, values), _integer(node.right, values)
        if left is None or right is None or (right == 0 and isinstance(node.op, ast.FloorDiv)):
            return None
        return _ARITHMETIC[type(node.op)](left, right)
    return None
