"""Finds in a training script what operators need: optimizers, models, losses, loops, modes."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from benchmarks.mutants.script import Script


def method_calls(script: Script, *names: str, inside: ast.AST | None = None) -> Iterator[ast.Call]:
    """Calls `receiver.name(...)` with one of the given method names."""
    for node in script.walk(ast.Call, inside=inside):
        assert isinstance(node, ast.Call)
        if isinstance(node.func, ast.Attribute) and node.func.attr in names:
            yield node


def dotted(node: ast.expr) -> str:
    """`torch.optim.AdamW` for such an expression, "" for any that is no name with attributes."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        base = dotted(node.value)
        return f"{base}.{node.attr}" if base else ""
    return ""


def called(node: ast.Call) -> str:
    """The dotted name of what is called, "" where it is no name."""
    return dotted(node.func)
