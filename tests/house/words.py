"""Names in the code that say nothing: bindings of words such as `found` or `one`, and files that are named like that.

A name says what a value is, by type or role: `rule`, `window`, `rank`, `path`. A word of EMPTY says only that there is
one. Run this file with paths as arguments to list the names in them: `python tests/house/words.py src/traincheck/cli`.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

EMPTY = frozenset(
    "told found one each known said place what so why asked wanted due apart alike thing fate".split()  # noqa: SIM905
)
"""Words that say nothing by themselves."""
EMPTY_FILES = EMPTY | {
    *("aside", "anew", "begun", "gathered", "gaps", "given", "heed", "kept", "lessons", "meter", "neighbours"),
    *("open_calls", "outgrown", "passes", "pulses", "recalled", "repeated", "resting", "settling", "sites", "standing"),
    *("strangers", "teller", "telling"),
}
"""Names of files and folders that readers had to open to learn what is in them."""


class Binding(NamedTuple):
    """A place in a file that gives a name to something."""

    line: int
    name: str

    @property
    def is_empty(self) -> bool:
        """Return whether the name is empty of meaning, with or without underscores."""
        return self.name.strip("_").lower() in EMPTY


def bindings(tree: ast.AST) -> Iterator[Binding]:
    """Every name that the code gives: variables, parameters, functions, classes, attributes, aliases."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield Binding(node.lineno, name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield Binding(node.lineno, name)
            case ast.Attribute(attr=name, ctx=ast.Store()):
                yield Binding(node.lineno, name)
            case ast.alias(asname=str(name)):
                yield Binding(node.lineno, name)
            case ast.ExceptHandler(name=str(name)):
                yield Binding(node.lineno, name)
            case _:
                pass


class Count(NamedTuple):
    """Return the number of empty names in the files, and a line for each file with some."""

    empty: int
    total: int
    lines: tuple[str, ...]

    @property
    def per_thousand(self) -> float:
        """Empty names per 1,000 bindings."""
        return 1000 * self.empty / max(self.total, 1)


def count(paths: Iterable[Path]) -> Count:
    """Count the empty names in these Python files."""
    empty = total = 0
    lines = []
    for path in paths:
        names = list(bindings(ast.parse(path.read_text(encoding="utf-8"), str(path))))
        hits = [f"{name}:{line}" for line, name in sorted(binding for binding in names if binding.is_empty)]
        total, empty = total + len(names), empty + len(hits)
        if hits:
            lines.append(f"{path}: {' '.join(hits)}")
    return Count(empty, total, tuple(lines))


def files_below(path: Path) -> list[Path]:
    """The Python files of a folder, or the file itself."""
    return sorted(path.rglob("*.py")) if path.is_dir() else [path]


def main(arguments: list[str]) -> None:
    """Print the empty names of files and folders."""
    counted = count(file for argument in arguments for file in files_below(Path(argument)))
    print("\n".join(counted.lines))
    print(f"{counted.empty} of {counted.total} bindings: {counted.per_thousand:.1f} per 1,000")


if __name__ == "__main__":
    main(sys.argv[1:])
