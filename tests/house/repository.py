"""Files of the repository, their syntax trees and the code blocks of its documents, for the house tests."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SRC = ROOT / "src" / "traincheck"
EXAMPLES = ROOT / "examples"
DOCUMENTS = tuple(
    sorted(
        path for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("*/README.md")] if path.is_file()
    )
)
MODULES = tuple(sorted(SRC.rglob("*.py")))


@cache
def tree(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def module_name(path: Path) -> str:
    """`traincheck.vocab.facts` for `src/traincheck/vocab/facts.py`; a package has the name of its folder."""
    parts = path.relative_to(SRC.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def shown_path(path: Path) -> str:
    """A path as a test names it."""
    return path.relative_to(ROOT).as_posix()


_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(path: Path) -> Iterator[tuple[str, str]]:
    """Language and text of each fenced block of a document."""
    for match in _BLOCK.finditer(path.read_text(encoding="utf-8")):
        yield match[1], match[2]


def commands(path: Path, program: str) -> Iterator[str]:
    """The lines in fenced blocks of a document that call `program`, without comments."""
    for _, text in blocks(path):
        for line in text.splitlines():
            words = line.split("#")[0].strip().removeprefix("$ ")
            if words.split(" ")[0] == program:
                yield words
