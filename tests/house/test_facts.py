"""Each documented fact has a producer and a consumer: no page promises a fact that nothing records."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from repository import SRC, tree

from traincheck.vocab.facts import FACTS

PRODUCING, CONSUMING = ("sources", "relations"), ("relations", "inference", "diagnoses", "checking", "reporting")


def files(folders: tuple[str, ...]) -> list[Path]:
    return [path for folder in folders for path in sorted((SRC / folder).rglob("*.py"))]


def constants() -> dict[str, str]:
    """Names of the vocabulary that stand for a fact, such as `BY_LIBRARY`."""
    return {
        target.id: node.value.value
        for path in files(("vocab",))
        for node in tree(path).body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def text_of(node: ast.AST | None, names: dict[str, str]) -> str:
    """The text that an expression is, if it is a literal or a name of the vocabulary."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return names.get(node.id, "") if isinstance(node, ast.Name) else ""


def written(path: Path, names: dict[str, str]) -> Iterator[str]:
    """Return the names that a file may write into a context: keywords, dict keys, first members of pairs, names in
    `with_fact`."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.keyword) and node.arg:
            yield node.arg
        elif isinstance(node, ast.Dict):
            yield from (text_of(key, names) for key in node.keys)
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            yield text_of(node.slice, names)
        elif isinstance(node, ast.Tuple) and len(node.elts) == 2 and isinstance(node.ctx, ast.Load):
            yield text_of(node.elts[0], names)
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "with_fact":
            yield from (text_of(argument, names) for argument in node.args)


def read(path: Path, names: dict[str, str]) -> Iterator[str]:
    """Return the names in a file outside its docstrings and keywords."""
    for node in ast.walk(tree(path)):
        yield text_of(node, names)


def conditions() -> set[str]:
    """The facts that rules of the shipped packs name."""
    clauses = [
        clause
        for path in sorted((SRC / "packs").glob("*.jsonl"))
        for line in path.read_text().splitlines()[1:]
        for rule in [json.loads(line)]
        for clause in (*rule["precondition"], *rule["experience"])
    ]
    return {clause["fact"] for clause in clauses}


@pytest.fixture(scope="module")
def produced() -> set[str]:
    names = constants()
    return {name for path in files(PRODUCING) for name in written(path, names)}


@pytest.fixture(scope="module")
def consumed() -> set[str]:
    names = constants()
    contexts_of_relations = {name for path in files(("relations",)) for name in written(path, names)}
    named = {name for path in files(CONSUMING) for name in read(path, names)}
    return contexts_of_relations | named | conditions()


@pytest.mark.parametrize("fact", sorted(FACTS))
def test_something_records_the_fact(fact: str, produced: set[str]) -> None:
    assert fact in produced, f"no source or relation writes {fact!r}: remove it from vocab/facts.py, or record it"


@pytest.mark.parametrize("fact", sorted(FACTS))
def test_something_uses_the_fact(fact: str, consumed: set[str]) -> None:
    assert fact in consumed, f"no stage and no shipped rule uses {fact!r}: remove it from vocab/facts.py"


def test_the_search_finds_no_fact_that_nothing_records(produced: set[str], consumed: set[str]) -> None:
    never_recorded = {"inputs_finite", "inputs_floating", "inputs_require_grad", "same_dtype", "same_shape"}
    assert not never_recorded & (produced | consumed)
