"""Whether a finding names the module that an error is in: the one whose code was edited, or one a level away.

`watch_modules` writes the tree of each model of a plain run: the class of each module, by its name as findings have it
(`Net.layers.0`). An error is in a module if the edit lies in the class of one. A finding names the module of its first
variable, or the class around its line.
"""

from __future__ import annotations

import ast
import difflib
import json
import os
import re
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from traincheck.vocab.finding import Finding

NEAR, FAR, NONE = "near", "far", "none"
"""Verdicts: the finding names the module or one a level away, another one, or no module."""

Tree = Mapping[str, str]
"""The class of each module, by its name from the root on."""

_FILE = "modules.txt"
_NUMBER = re.compile(r"#\d+")


def watch_modules(out: Path) -> None:
    """Write the trees of the models that this process calls into the folder `out`. Called before the script starts.

    A model may be a part of a module that is never called, as in Lightning; that module has a tree as well.
    """
    from torch.nn.modules.module import register_module_forward_pre_hook, register_module_module_registration_hook

    file = (out / f"{os.environ.get('RANK', '0')}-{_FILE}").open("a", buffering=1)
    parent = os.getpid()
    seen: set[int] = set()
    wholes_of: dict[int, list[weakref.ref[Any]]] = {}  # by the identity of the part

    def registered(module: Any, name: str, part: Any) -> None:
        if part is not None:
            wholes_of.setdefault(id(part), []).append(weakref.ref(module))

    def around(module: Any) -> Iterator[Any]:
        yield module
        for reference in wholes_of.pop(id(module), ()):
            outer = reference()
            if outer is not None and id(outer) not in seen:
                yield from around(outer)

    def before_forward(module: Any, args: Any) -> None:
        if id(module) in seen or os.getpid() != parent:
            return
        for whole in around(module):
            root = type(whole).__name__
            children = whole.named_modules()
            tree = {f"{root}.{name}" if name else root: type(child).__name__ for name, child in children}
            file.write(json.dumps(tree) + "\n")
        seen.update(map(id, module.modules()))

    register_module_module_registration_hook(registered)
    register_module_forward_pre_hook(before_forward)


def read_trees(out: Path) -> list[Tree]:
    """The trees of all ranks."""
    return [json.loads(line) for file in sorted(out.glob(f"*-{_FILE}")) for line in file.open()]


def edited_classes(clean: str, mutant: str) -> set[str]:
    """The names of the classes in which the texts differ, innermost ones."""
    matcher = difflib.SequenceMatcher(None, clean.splitlines(), mutant.splitlines(), autojunk=False)
    lines = {
        line
        for tag, _, _, begin, end in matcher.get_opcodes()
        if tag != "equal"
        for line in range(begin + 1, max(end, begin + 1) + 1)
    }
    around = _classes_of(mutant)
    return {name for line in lines if (name := _class_at(around, line))}


def judge_place(finding: Finding, trees: list[Tree], classes: set[str], mutant: str) -> str:
    """Whether the finding names a module of these classes; empty if the error is in none."""
    kinds = {kind for tree in trees for kind in tree.values()}
    if not classes & kinds:
        return ""
    if finding.site is not None and _class_at(_classes_of(mutant), finding.site.line) in classes:
        return NEAR
    named = [
        (tree, name) for variable in finding.variables[:1] for tree in trees if (name := _module_of(variable, tree))
    ]
    if not named:
        return NONE
    return NEAR if any(classes & set(_around(name, tree)) for tree, name in named) else FAR


def _module_of(variable: str, tree: Tree) -> str:
    """The name of the module in the tree that a variable belongs to; empty without one."""
    name = _NUMBER.sub("", variable)
    while name and name not in tree:
        name = name.rpartition(".")[0]
    return name


def _around(name: str, tree: Tree) -> Iterator[str]:
    """The classes of a module, of its parent, and of its children. A container is no level of its own."""
    yield tree[name]
    parent = name.rpartition(".")[0]
    while parent in tree:
        yield tree[parent]
        if not _is_container(tree[parent]):
            break
        parent = parent.rpartition(".")[0]
    for other, kind in tree.items():
        if other.startswith(f"{name}.") and "." not in other[len(name) + 1 :]:
            yield kind


def _is_container(kind: str) -> bool:
    return kind in ("Sequential", "ModuleList", "ModuleDict")


def _classes_of(text: str) -> list[ast.ClassDef]:
    return [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef)]


def _class_at(classes: list[ast.ClassDef], line: int) -> str:
    """The name of the innermost class whose body has a line; empty outside of classes."""
    around = [node for node in classes if node.lineno <= line <= (node.end_lineno or node.lineno)]
    return max(around, key=lambda node: node.lineno).name if around else ""
