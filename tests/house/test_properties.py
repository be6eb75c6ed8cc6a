"""Each verb of a property is declared once, in the vocabulary; relations and diagnoses import it from there."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from repository import SRC, shown_path, tree

from traincheck.diagnoses.catalogue import catalogue
from traincheck.diagnoses.diagnosis import fits
from traincheck.vocab.properties import VERBS

RELATIONS = [path for path in sorted((SRC / "relations").rglob("*.py")) if path.name != "template.py"]
DIAGNOSES = [path for path in sorted((SRC / "diagnoses").rglob("*.py")) if path.parent != SRC / "diagnoses"]
MODULE = "traincheck.vocab.properties"


def verb_arguments(path: Path) -> list[ast.expr]:
    """The first argument of each `Property(...)` in a file."""
    return [
        node.args[0]
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Property" and node.args
    ]


def declared_names(path: Path) -> set[str]:
    """The names that a file imports from the vocabulary of properties."""
    return {
        alias.asname or alias.name
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ImportFrom) and node.module == MODULE
        for alias in node.names
    }


@pytest.mark.parametrize("path", [*RELATIONS, SRC / "vocab" / "builtin_rules.py"], ids=shown_path)
def test_a_relation_writes_no_verb_itself(path: Path) -> None:
    literals = [node.value for node in verb_arguments(path) if isinstance(node, ast.Constant)]
    assert not literals, f"declare {literals} in vocab/properties.py and import the name"


def test_relations_make_properties_of_declared_verbs() -> None:
    used = {node.id for path in RELATIONS for node in verb_arguments(path) if isinstance(node, ast.Name)}
    declared = {name for path in RELATIONS for name in declared_names(path)}
    assert len(used & declared) > 30


def test_every_verb_of_the_packs_is_declared() -> None:
    verbs = {
        json.loads(line)["property"]["verb"]
        for path in sorted((SRC / "packs").glob("*.jsonl"))
        for line in path.read_text().splitlines()[1:]
    }
    assert verbs and verbs <= VERBS.keys()


def test_every_declared_verb_is_used() -> None:
    constants = {
        target.id: value.value
        for node in tree(SRC / "vocab" / "properties.py").body
        if isinstance(node, ast.Assign)
        for names, values in [(node.targets[0], node.value)]
        for target, value in zip(
            names.elts if isinstance(names, ast.Tuple) else [names],
            values.elts if isinstance(values, ast.Tuple) else [values],
            strict=False,
        )
        if isinstance(target, ast.Name) and isinstance(value, ast.Constant)
    }
    imported = {
        constants.get(name)
        for path in [*RELATIONS, SRC / "vocab" / "builtin_rules.py"]
        for name in declared_names(path)
    }
    sets = {traits.element_of for traits in VERBS.values()}  # inference makes rules with these
    assert imported | sets >= VERBS.keys()


@pytest.mark.parametrize("path", DIAGNOSES, ids=shown_path)
def test_a_diagnosis_writes_no_verb_itself(path: Path) -> None:
    fields = [
        keyword.value
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Match"
        for keyword in node.keywords
        if keyword.arg == "verb"
    ]
    literals = [node.value for field in fields for node in ast.walk(field) if isinstance(node, ast.Constant)]
    assert not literals, f"import {literals} from vocab/properties.py, so that a typo is an error"


def test_every_verb_of_a_diagnosis_is_declared() -> None:
    patterns = {
        (slug, pattern)
        for slug, diagnosis in catalogue().items()
        for match in diagnosis.explains
        for pattern in ((match.verb,) if isinstance(match.verb, str) else match.verb)
        if pattern
    }
    unknown = {entry for entry in patterns if not any(fits(entry[1], verb) for verb in VERBS)}
    assert len(patterns) > 20 and not unknown
