"""The habits of CONTRIBUTING.md: sizes, names, docstrings, examples that know nothing of us, one pin."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from repository import EXAMPLES, MODULES, ROOT, SRC, shown_path, tree

MAX_LINES = 600
MAX_LINES_OF_A_FUNCTION = 70
VAGUE = {"utils", "util", "common", "helpers", "helper", "misc", "base_cls", "core", "tools", "stuff", "shared"}


@pytest.mark.parametrize("path", MODULES, ids=shown_path)
def test_file_is_not_too_long(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MAX_LINES


@pytest.mark.parametrize("path", MODULES, ids=shown_path)
def test_functions_are_not_too_long(path: Path) -> None:
    for node in ast.walk(tree(path)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            assert length <= MAX_LINES_OF_A_FUNCTION, f"{shown_path(path)}:{node.lineno} {node.name} has {length} lines"


@pytest.mark.parametrize("path", MODULES, ids=shown_path)
def test_file_names_are_descriptive(path: Path) -> None:
    assert not VAGUE & {part.removesuffix(".py") for part in path.relative_to(SRC).parts}


@pytest.mark.parametrize("path", MODULES, ids=shown_path)
def test_module_opens_with_a_sentence(path: Path) -> None:
    text = ast.get_docstring(tree(path))
    assert text, f"{shown_path(path)} has no docstring"
    assert "TODO" not in text


@pytest.mark.parametrize("path", MODULES, ids=shown_path)
def test_syntax_is_that_of_the_oldest_python(path: Path) -> None:
    match = re.search(r'requires-python = ">=3\.(\d+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert match is not None
    ast.parse(path.read_text(encoding="utf-8"), str(path), feature_version=(3, int(match[1])))


def undocumented(path: Path) -> list[str]:
    """Public classes and functions of a module without a docstring."""
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    public = [node for node in tree(path).body if isinstance(node, kinds) and not node.name.startswith("_")]
    return [node.name for node in public if ast.get_docstring(node) is None]


@pytest.mark.parametrize("path", [p for p in MODULES if p.parent.name != "errors"], ids=shown_path)
def test_public_classes_and_functions_have_docstrings(path: Path) -> None:
    assert undocumented(path) == []


@pytest.mark.parametrize("path", sorted(EXAMPLES.rglob("*.py")), ids=shown_path)
def test_example_does_not_mention_us(path: Path) -> None:
    assert "traincheck" not in path.read_text(encoding="utf-8").lower()


def test_torch_is_pinned_in_one_place() -> None:
    assert re.search(r"^torch==[\d.]+$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    elsewhere = [
        ROOT / "pyproject.toml",
        ROOT / "Makefile",
        ROOT / ".ci" / "run",
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("*.md"),
    ]
    for path in elsewhere:
        assert not re.search(r"torch\s*==\s*\d", path.read_text(encoding="utf-8")), (
            f"{shown_path(path)} pins torch, too"
        )


def test_requirements_are_not_pinned() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert not re.search(r'"[\w-]+\s*==', text)


def test_every_todo_has_a_reason() -> None:
    for path in MODULES:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            assert not re.search(r"#\s*(TODO|FIXME|XXX)\s*$", line), f"{shown_path(path)}:{number} has no reason"
