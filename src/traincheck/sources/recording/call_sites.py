"""Finds the line of the user's own code from which an observed call was made."""

from __future__ import annotations

import ast
import functools
import linecache
import sys
from collections.abc import Collection
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple

import torch

from traincheck.vocab.bounded_cache import BoundedCache, ObjectCache

_OURS = str(Path(__file__).resolve().parents[2])
_TORCH = str(Path(torch.__file__).resolve().parent) + "/"
"""This folder may lie in the user's project: a checkout in which torch was built."""


def qualified_name(code: CodeType) -> str:
    """The qualified name of a function, such as `Trainer.step` or `main.<locals>.step`."""
    name = getattr(code, "co_qualname", None) or _qualified_name_in_source(code)  # Python 3.11 and later have it
    return name if ":" not in name else "<module>"  # IPython names the code of a cell `<cell line: 1>`


def _qualified_name_in_source(code: CodeType) -> str:
    """The qualified name as the source file shows it, for Python 3.10; the plain name if there is no source."""
    return _names_in_source(code.co_filename).get((code.co_firstlineno, code.co_name), code.co_name)


def syntax_tree(filename: str) -> ast.Module:
    """The source of a file as a tree, which is empty if the file cannot be read."""
    try:
        return ast.parse("".join(linecache.getlines(filename)))
    except (SyntaxError, ValueError, RecursionError):
        return ast.Module([], [])


tree_of = functools.lru_cache(maxsize=32)(syntax_tree)
"""`syntax_tree`, remembered for some files."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def definition_of(code: CodeType) -> Function | None:
    """The definition of a function in its file; None where the source does not show it."""
    functions = (node for node in ast.walk(tree_of(code.co_filename)) if isinstance(node, Function))
    where = code.co_name, code.co_firstlineno
    return next((node for node in functions if (node.name, first_line(node)) == where), None)


def first_line(function: Function) -> int:
    """The line of a function in its code object: that of the first decorator."""
    return min((decorator.lineno for decorator in function.decorator_list), default=function.lineno)


@functools.lru_cache(maxsize=1024)
def _names_in_source(filename: str) -> dict[tuple[int, str], str]:
    """The qualified names of all functions in a file, by first line and plain name."""
    names: dict[tuple[int, str], str] = {}

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef):
                visit(child, f"{prefix}{child.name}.")
            elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                names[first_line(child), child.name] = f"{prefix}{child.name}"
                visit(child, f"{prefix}{child.name}.<locals>.")
            else:
                visit(child, prefix)

    visit(syntax_tree(filename), "")
    return names


def cell_of(filename: str) -> str:
    """The number of the notebook cell that code is from, as shown to users (`In[3]`); empty for code of a file.

    Source: IPython.core.compilerop.CachingCompiler.format_code_name.
    """
    get_ipython = getattr(sys.modules.get("IPython"), "get_ipython", None)
    compiler = getattr(get_ipython() if get_ipython is not None else None, "compile", None)
    format_name = getattr(compiler, "format_code_name", None)  # missing in older versions
    kind_and_name = format_name(filename) if format_name is not None else None
    return str(kind_and_name[1]) if kind_and_name else ""


MAX_CODE_OBJECTS = 20_000
"""Code objects whose sites are cached. A large program has some thousands; generated code has no limit."""


def _is_installed(path: str) -> bool:
    return "site-packages" in path or "dist-packages" in path


def _is_of_library(filename: str) -> bool:
    """Whether a file belongs to an installed library other than torch and TrainCheck (their paths are resolved)."""
    path = str(Path(filename).resolve())
    return _is_installed(path) and not path.startswith((_OURS, _TORCH))


class _ProjectCode(NamedTuple):
    """A code object of the project: the path to report for it, and the sites in it by their lines."""

    file: str
    sites: dict[int, str]


_UNKNOWN = _ProjectCode("", {})


class CallSites:
    """Finds the nearest frame of the user's project on the stack, as `file:line:function`.

    A file belongs to the project when it lies under one of `project` and not in an environment below it
    (`site-packages`, the standard library). Paths are relative to the working directory at the start. The cells of a
    notebook belong to the project as well. Functions of `packages` are observed, but no site is in them.
    """

    def __init__(self, project: tuple[str, ...], packages: Collection[str] = ()) -> None:
        self._packages = frozenset(packages)
        self._roots = tuple(str(Path(root).resolve()) for root in project)
        self._cwd = Path.cwd()
        self._codes: ObjectCache[_ProjectCode | None] = ObjectCache(MAX_CODE_OBJECTS)  # None for code of others
        self._reported_paths: BoundedCache[str, str] = BoundedCache(
            MAX_CODE_OBJECTS
        )  # by file name, as paths are slow to resolve
        self._libraries: BoundedCache[str, bool] = BoundedCache(MAX_CODE_OBJECTS)

    def file_of(self, code: CodeType) -> str:
        """The path to report for `code`, empty for code that is not of the project."""
        project_code = self._codes.get(id(code), _UNKNOWN)
        if project_code is _UNKNOWN:
            project_code = self._add(code)
        return "" if project_code is None else project_code.file

    def is_observed(self, code: CodeType, module: str) -> bool:
        """Whether `code` of this module belongs to the project or to a package that the user named."""
        return bool(self.file_of(code)) or module.partition(".")[0] in self._packages

    def is_observed_file(self, name: str, module: str) -> bool:
        """Whether the file of this module belongs to the project or to a package that the user named."""
        return bool(self._path_of(name)) or module.partition(".")[0] in self._packages

    def _add(self, code: CodeType) -> _ProjectCode | None:
        path = self._path_of(code.co_filename)
        return self._codes.put_for(code, _ProjectCode(path, {}) if path else None)

    def _path_of(self, name: str) -> str:
        """The reported path of a file; empty outside the project."""
        path = self._reported_paths.get(name)
        return self._reported_paths.put(name, self._reported_path(name)) if path is None else path

    def _reported_path(self, filename: str) -> str:
        cell = cell_of(filename)
        if cell:
            return cell
        if filename.startswith("<") or filename.startswith(_OURS):
            return ""
        path = Path(filename)
        absolute = path if path.is_absolute() else self._cwd / path
        text = str(absolute.resolve())
        if _is_installed(text):
            return ""
        if text.startswith((sys.base_prefix + "/lib/python", _TORCH)):
            return ""
        if not any(text.startswith(root.rstrip("/") + "/") for root in self._roots):
            return ""
        try:
            return str(Path(text).relative_to(self._cwd.resolve()))
        except ValueError:
            return text

    def is_library_calling(self) -> bool:
        """Whether the nearest caller outside torch, Python and TrainCheck is a library instead of the project."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if self.file_of(frame.f_code):
                return False
            name = frame.f_code.co_filename
            library = self._libraries.get(name)
            if library is None:
                library = self._libraries.put(name, _is_of_library(name))
            if library:
                return True
            frame = frame.f_back
        return False

    def here(self) -> str:
        """The site of the nearest project frame above the caller, empty without one."""
        return self.above(sys._getframe(2))

    def above(self, start: FrameType | None) -> str:
        """The site of the nearest project frame, from `start` on; empty without one."""
        frame, codes = start, self._codes
        while frame is not None:
            code = frame.f_code
            project_code = codes.get(id(code), _UNKNOWN)
            if project_code is _UNKNOWN:
                project_code = self._add(code)
            if project_code is not None:
                line = frame.f_lineno
                site = project_code.sites.get(line)
                if site is None:
                    site = project_code.sites[line] = f"{project_code.file}:{line}:{qualified_name(code)}"
                return site
            frame = frame.f_back
        return ""
