"""Reads in the source code of a program how a constructor makes an attribute, and whether other code handles it.

Note [Handled elsewhere]
An attribute that other code replaces, fills or saves is left to that code: noise that each epoch draws, a bank of
features that training fills, a matrix that a checkpoint holds under a key of its own. So each write in the project
counts, also where it runs seldom, and outside the class each read as well. Classes may use equal names, so `self` of
other classes does not count. Where a parameter of the model has the same name, code outside the class may mean that.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

import torch
from torch import nn

from traincheck.sources.recording.call_sites import CallSites, Function, definition_of, qualified_name, tree_of

MAX_FILES = 1_000
"""Files of a project that are read, in about a tenth of a second. A larger project is not judged."""
MAX_CALLS = 2
"""How deep functions are followed that a constructor calls."""

_FUNCTIONS = frozenset(("rand", "randn", "rand_like", "randn_like", "normal"))
"""Functions of torch that draw numbers of a continuous distribution."""
_METHODS = frozenset(("normal_", "uniform_", "log_normal_", "exponential_", "cauchy_"))
"""Methods of tensors that draw such numbers."""
_CONSTANT = frozenset(("zeros_", "ones_", "constant_", "eye_", "dirac_"))
"""Functions of `torch.nn.init` that draw no numbers."""
_OWN_STREAM = frozenset(("Generator", "fork_rng", "set_rng_state", "default_rng", "RandomState", "generator"))
"""Names of other streams of random numbers than the one of torch. A seed says the same."""

_NO_SOURCE = (".so", ".pyd", ".pyc")

# -- how a constructor makes an attribute ----------------------------------------------------------------------------


def random_site(module: nn.Module, attribute: str, sites: CallSites) -> str:
    """Where a constructor of the project gives an attribute random numbers of torch, as `file:line:function`.

    Empty where it does not, where a caller may pass the value, and where it uses a seed or a stream of its own.
    """
    for cls in type(module).__mro__:
        constructor = vars(cls).get("__init__")
        if not isinstance(constructor, FunctionType) or cls is nn.Module:
            continue
        file, function = sites.file_of(constructor.__code__), definition_of(constructor.__code__)
        if not file or function is None or not function.args.args:
            continue
        made = _values(function, attribute)
        if made:
            scope = _Scope(constructor, function, cls)
            is_random = not scope.has_own_stream() and all(map(scope.draws, made))
            return f"{file}:{made[-1].lineno}:{qualified_name(constructor.__code__)}" if is_random else ""
    return ""


def _values(constructor: Function, attribute: str) -> list[ast.expr]:
    """The expressions that fill an attribute in a constructor; without any, those that are assigned to it."""
    me = constructor.args.args[0].arg
    assigned: list[ast.expr] = []
    filled: list[ast.expr] = []
    for node in ast.walk(constructor):
        if isinstance(node, ast.Assign | ast.AnnAssign):
            if node.value is not None and not isinstance(node.value, ast.Constant):
                assigned += [node.value for part in _parts(*_targets(node)) if _is_attribute(part, me, attribute)]
        elif isinstance(node, ast.Expr) and any(_is_attribute(part, me, attribute) for part in _written(node.value)):
            filled.append(node.value)
    return filled or assigned


def _targets(node: ast.Assign | ast.AugAssign | ast.AnnAssign) -> list[ast.expr]:
    return node.targets if isinstance(node, ast.Assign) else [node.target]


def _parts(*targets: ast.expr) -> Iterator[ast.expr]:
    """The attributes and names that an assignment writes to."""
    for target in targets:
        if isinstance(target, ast.Tuple | ast.List):
            yield from _parts(*target.elts)
        else:
            yield _base(target)


def _base(node: ast.expr) -> ast.expr:
    """The attribute or name behind indices and `.data`."""
    while isinstance(node, ast.Subscript | ast.Starred) or (isinstance(node, ast.Attribute) and node.attr == "data"):
        node = node.value
    return node


def _is_attribute(node: ast.AST, me: str, attribute: str) -> bool:
    is_named = isinstance(node, ast.Attribute) and node.attr == attribute
    return is_named and isinstance(node.value, ast.Name) and node.value.id == me  # type: ignore[attr-defined]


def _written(node: ast.AST) -> Iterator[ast.expr]:
    """What an expression may write to: the tensor of a method in place, arguments of functions that end with `_`."""
    if not isinstance(node, ast.Call):
        return
    name = _name_of(node.func)
    if name in ("append", "extend", "insert", "update") or (name.endswith("_") and not name.endswith("__")):
        if isinstance(node.func, ast.Attribute):
            yield _base(node.func.value)
        yield from map(_base, node.args)
    yield from (_base(keyword.value) for keyword in node.keywords if keyword.arg in ("out", "tensor", "input"))


def _name_of(node: ast.AST) -> str:
    """The name of an attribute or a variable; empty for other nodes."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


class _Scope:
    """A function of the project, with what its names mean."""

    def __init__(self, function: FunctionType, definition: Function, cls: type | None, depth: int = 0) -> None:
        self._function, self._definition, self._cls, self._depth = function, definition, cls, depth
        self._arguments = {node.arg for node in ast.walk(definition.args) if isinstance(node, ast.arg)}
        self._locals: dict[str, list[ast.expr]] = {}
        for node in ast.walk(definition):
            if isinstance(node, ast.Assign):
                for part in _parts(*node.targets):
                    if isinstance(part, ast.Name):
                        self._locals.setdefault(part.id, []).append(node.value)

    def has_own_stream(self) -> bool:
        """Whether the function sets a seed or uses a generator."""
        nodes = ast.walk(self._definition)
        names = (node.arg or "" if isinstance(node, ast.keyword) else _name_of(node) for node in nodes)
        return any(name in _OWN_STREAM or "seed" in name for name in names)

    def draws(self, node: ast.AST, names: frozenset[str] = frozenset()) -> bool:
        """Whether an expression computes with random numbers of torch in any case. `names` were followed before."""
        if isinstance(node, ast.IfExp):
            return self.draws(node.body, names) and self.draws(node.orelse, names)
        if isinstance(node, ast.BoolOp):
            return all(self.draws(value, names) for value in node.values)
        if isinstance(node, ast.Name):
            if node.id in names or node.id in self._arguments:
                return False
            return any(self.draws(value, names | {node.id}) for value in self._locals.get(node.id, ()))
        if isinstance(node, ast.Call) and self._calls_random(node):
            return True
        return any(self.draws(child, names) for child in ast.iter_child_nodes(node))

    def _calls_random(self, node: ast.Call) -> bool:
        if isinstance(node.func, ast.Attribute) and node.func.attr in _METHODS:
            return True
        called = self._meaning(node.func)
        if _is_random(called):
            return True
        if not isinstance(called, FunctionType) or self._depth >= MAX_CALLS or called.__module__.startswith("torch."):
            return False
        definition = definition_of(called.__code__)
        return definition is not None and _Scope(called, definition, self._cls, self._depth + 1)._returns_random()

    def _returns_random(self) -> bool:
        returned = [node.value for node in ast.walk(self._definition) if isinstance(node, ast.Return) and node.value]
        return bool(returned) and not self.has_own_stream() and all(map(self.draws, returned))

    def _meaning(self, node: ast.expr) -> Any:
        """What a name means in the function, as far as that is known without running code of the program."""
        if isinstance(node, ast.Name):
            return self._function.__globals__.get(node.id)
        if not isinstance(node, ast.Attribute):
            return None
        value = node.value
        me = [argument.arg for argument in self._definition.args.args[:1]]
        if isinstance(value, ast.Name) and self._cls is not None and value.id in me:
            method = inspect.getattr_static(self._cls, node.attr, None)
            return method.__func__ if isinstance(method, staticmethod | classmethod) else method
        owner = self._meaning(value)
        return vars(owner).get(node.attr) if inspect.ismodule(owner) else None


def _is_random(function: Any) -> bool:
    name = getattr(function, "__name__", "")
    if name in _FUNCTIONS:
        return _is_same(function, getattr(torch, name))
    is_initializer = name.endswith("_") and name not in _CONSTANT
    return is_initializer and _is_same(function, getattr(nn.init, name, None))


def _is_same(function: Any, other: Any) -> bool:
    """Whether two functions are the same, or one of them is a patch of the other."""
    originals = [getattr(patched, "__wrapped__", patched) for patched in (function, other)]
    return originals[0] is originals[1]


# -- what other code does with it ------------------------------------------------------------------------------------


def is_handled_elsewhere(module: nn.Module, attribute: str, sites: CallSites, *, is_parameter: bool) -> bool:
    """Whether code of the project replaces, fills or saves the attribute, see Note [Handled elsewhere].

    `is_parameter`: a parameter or buffer of the model has the same name.
    """
    own = frozenset(cls.__name__ for cls in type(module).__mro__ if cls not in (nn.Module, object))
    files = _files_of(sites)
    if len(files) > MAX_FILES or not hasattr(sys.modules.get("__main__"), "__file__"):
        return True  # the cells of a notebook are no files
    return any(
        _Search(attribute, own, tree_of(file), is_parameter=is_parameter).is_handled
        for file in files
        if _mentions(file, attribute)
    )


def _mentions(file: str, attribute: str) -> bool:
    """Whether the name is in a file; also true for a file that cannot be read. (`linecache` would keep all files.)"""
    try:
        return attribute in Path(file).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return True


def _files_of(sites: CallSites) -> set[str]:
    files = {getattr(module, "__file__", None) or "" for module in list(sys.modules.values())}
    return {file for file in files if not file.endswith(_NO_SOURCE) and sites.is_observed_file(file, "")}


class _Search(ast.NodeVisitor):
    """Searches a file for code that handles an attribute."""

    def __init__(self, attribute: str, own: frozenset[str], tree: ast.Module, *, is_parameter: bool) -> None:
        self.is_handled = False
        self._attribute, self._own, self._is_parameter = attribute, own, is_parameter
        imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
        self._imported = {alias.asname or alias.name.partition(".")[0] for node in imports for alias in node.names}
        self._class = ""
        self._aliases: frozenset[str] = frozenset()
        self._in_constructor = False
        self.visit(tree)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        outer, self._class = self._class, node.name
        self.generic_visit(node)
        self._class = outer

    def visit_FunctionDef(self, node: Function) -> None:
        outer = self._aliases, self._in_constructor
        self._in_constructor = node.name == "__init__" and self._class in self._own
        self._aliases = self._aliases.union(*map(self._aliases_in, ast.walk(node)))
        self.generic_visit(node)
        self._aliases, self._in_constructor = outer

    visit_AsyncFunctionDef = visit_FunctionDef

    def _aliases_in(self, node: ast.AST) -> set[str]:
        """The names that a statement gives to the attribute or to its entries."""
        if isinstance(node, ast.Assign) and self._means(_base(node.value)):
            return {target.id for target in node.targets if isinstance(target, ast.Name)}
        if isinstance(node, ast.For) and any(map(self._means, ast.walk(node.iter))):
            return {part.id for part in ast.walk(node.target) if isinstance(part, ast.Name)}
        return set()

    def visit(self, node: ast.AST) -> None:
        if self.is_handled:
            return
        self.is_handled = self._handles(node)
        super().visit(node)

    def _handles(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Constant):
            return node.value == self._attribute and not self._is_parameter
        if isinstance(node, ast.Attribute) and node.attr == self._attribute and not self._owner_of(node):
            return not self._is_parameter
        if self._in_constructor:
            return False
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
            return self._is_assigned(node)
        if isinstance(node, ast.Dict):
            return any(self._means(_base(value)) for value in node.values)
        if isinstance(node, ast.Delete):
            return any(self._means(_base(target)) for target in node.targets)
        return any(self._means(base) or self._is_alias(base) for base in _written(node))

    def _is_assigned(self, node: ast.Assign | ast.AugAssign | ast.AnnAssign) -> bool:
        targets = _targets(node)
        into = [target for target in targets if isinstance(target, ast.Subscript)]
        saves = bool(into) and node.value is not None and self._means(_base(node.value))
        aliases = targets if isinstance(node, ast.AugAssign) else into
        return (
            saves or any(self._is_alias(_base(target)) for target in aliases) or any(map(self._means, _parts(*targets)))
        )

    def _means(self, node: ast.AST) -> bool:
        """Whether this is the attribute, of an object of its class."""
        return isinstance(node, ast.Attribute) and node.attr == self._attribute and self._owner_of(node) == "own"

    def _owner_of(self, node: ast.Attribute) -> str:
        """Whether an attribute is one of `self` in its own class, or one of another class or of something imported;
        empty for other objects."""
        name = node.value.id if isinstance(node.value, ast.Name) else ""
        if name in self._imported:
            return "other"
        if name != "self":
            return ""
        return "own" if self._class in self._own or not self._class else "other"

    def _is_alias(self, node: ast.AST) -> bool:
        return isinstance(node, ast.Name) and node.id in self._aliases
