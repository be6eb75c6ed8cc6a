"""Imports follow the flow of the design: no back arrows, no cycles, and torch in one place."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from repository import MODULES, SRC, module_name, shown_path, tree

GROUND = {"vocab", "errors", "version", "files", "addresses", "redaction", "terminal_text", "background_threads"}
"""The modules that every stage may import."""
RULES = {"relations", "invariants", "plugins", "trace"}

ALLOWED: dict[str, set[str]] = {
    "vocab": set(),
    "errors": set(),
    "version": set(),
    "options": {"vocab"},
    "files": {"errors"},
    "addresses": {"errors", "files"},
    "redaction": set(),
    "background_threads": set(),
    "terminal_text": set(),
    "plugins": {"errors", "vocab"},
    "config": {"errors", "options"},
    "sources": {"vocab", "errors", "redaction", "background_threads", "plugins"},
    "trace": GROUND | {"plugins"},
    "relations": {"vocab", "errors"},
    "diagnoses": {"vocab", "errors", "plugins", "relations"},
    "reporting": GROUND | {"diagnoses", "comparison"},
    "invariants": GROUND,
    "inference": GROUND | RULES,
    "checking": GROUND | RULES | {"diagnoses"},
    "comparison": GROUND | {"trace"},
    "sdc": GROUND | {"sources"},
    "testing": GROUND | RULES | {"inference", "checking", "diagnoses", "reporting", "sources", "sdc"},
    "runtime": GROUND | RULES | {"sources", "inference", "checking", "diagnoses", "reporting", "config", "options"},
    "integrations": GROUND | {"runtime", "reporting", "__init__"},
}
"""The stages that each stage may import. `cli`, `__init__` and `__main__` may import all."""

ON_TOP = {"cli", "__init__", "__main__"}
WITH_TORCH = {"sources", "sdc"}
"""Observe what torch does, or have it compute: nothing else imports it, nor them before they are used."""
WITH_JAX = "sdc/xla/"
"""Executes trainings with JAX: nothing else imports it, nor this folder before it is used."""
LAZY_TORCH = {"runtime/session.py", "runtime/launching/child_processes.py", "cli/probe.py"}
"""Run in the observed process, or in a child that asks what torch has: they import it inside a function."""


def stage(path: Path) -> str:
    """Return the folder of src/traincheck that contains a file, or the name of a top-level file."""
    return path.relative_to(SRC).with_suffix("").parts[0]


def imports(path: Path) -> Iterator[tuple[str, ast.stmt]]:
    """Every module that a file imports, anywhere in it; of `from a import b` both `a` and `a.b`."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            assert node.level == 0, f"{shown_path(path)}:{node.lineno} has a relative import"
            yield node.module, node
            for alias in node.names:
                yield f"{node.module}.{alias.name}", node


@pytest.mark.parametrize("path", MODULES, ids=shown_path)
def test_stage_imports_only_earlier_stages(path: Path) -> None:
    own = stage(path)
    if own in ON_TOP:
        return
    assert own in ALLOWED, f"say in {Path(__file__).name} what {own} may import"
    for name, node in imports(path):
        parts = name.split(".")
        if (
            parts[0] == "traincheck"
            and len(parts) > 1
            and (SRC / parts[1]).with_suffix(".py").exists() | (SRC / parts[1]).is_dir()
        ):
            where = f"{shown_path(path)}:{node.lineno}"
            assert parts[1] == own or parts[1] in ALLOWED[own], f"{where}: {own} may not import {name}"


def test_modules_import_in_no_circle() -> None:
    names = {module_name(path): path for path in MODULES}
    edges = {
        name: {imported for imported, _ in imports(path) if imported in names and imported != name} - {"traincheck"}
        for name, path in names.items()
    }
    done: set[str] = set()

    def visit(name: str, above: tuple[str, ...]) -> None:
        assert name not in above, " -> ".join((*above[above.index(name) :], name))
        if name not in done:
            for other in sorted(edges[name]):
                visit(other, (*above, name))
            done.add(name)

    for name in sorted(names):
        visit(name, ())


@pytest.mark.parametrize("path", MODULES, ids=shown_path)
def test_only_sources_import_torch(path: Path) -> None:
    if stage(path) in WITH_TORCH:
        return
    here = path.relative_to(SRC).as_posix()
    at_top = {id(node) for node in tree(path).body}
    for name, node in imports(path):
        if name.split(".")[0] == "torch":
            assert here in LAZY_TORCH, f"{shown_path(path)}:{node.lineno} imports {name}; only {WITH_TORCH} may"
            assert id(node) not in at_top, f"{shown_path(path)}:{node.lineno} imports {name} when it is itself imported"


@pytest.mark.parametrize("path", MODULES, ids=shown_path)
def test_only_xla_modules_import_jax(path: Path) -> None:
    if path.relative_to(SRC).as_posix().startswith(WITH_JAX):
        return
    at_top = {id(node) for node in tree(path).body}
    for name, node in imports(path):
        where = f"{shown_path(path)}:{node.lineno}"
        assert name.split(".")[0] not in ("jax", "jaxlib"), f"{where} imports {name}; only {WITH_JAX} may"
        late = id(node) not in at_top
        assert late or not name.startswith("traincheck.sdc.xla"), f"{where} imports {name} when it is itself imported"
