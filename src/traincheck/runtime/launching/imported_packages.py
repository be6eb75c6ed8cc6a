"""Finds the packages that a program imports, from its source and before it runs.

It reads the files in the program's own folder, and the requirements of installed packages. It misses packages that are
imported in other ways (plugins, a shell script). If it cannot read a source file, it assumes nothing about the program.
"""

from __future__ import annotations

import ast
import re
import sys
import warnings
from collections.abc import Collection, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from traincheck.runtime.launching.command_target import SOURCE, Target

if TYPE_CHECKING:
    from traincheck.invariants.packs import Program

MAX_FILES = 300
LARGEST_TEXT = 1 << 20
"""Limits for the number of the program's own files, and for the bytes of a file. A larger file is data."""

MAX_REQUIRED = 300
"""Limit for the packages whose requirements are read."""

_SEVERAL_RANKS = re.compile(r"\b(distributed|multiprocessing|DataParallel|devices|num_processes|nproc)\b")
"""Words in a source file that hint at several ranks."""


def program_of(target: Target, environ: Mapping[str, str], cwd: Path, excluded: Collection[str] = ()) -> Program:
    """The facts about a program before it runs. It does not read the requirements of `excluded` packages."""
    from traincheck.invariants.packs import Program  # a recording does not need it

    release = _installed("torch")
    read = _read_all(target, cwd)
    if read is None:
        return Program(torch=release)
    packages, text_of_ranks = read
    several = target.kind == "command" or environ.get("WORLD_SIZE", "1") != "1" or text_of_ranks
    return Program(frozenset(_required(packages, {"torch", *excluded})), several, release)


def _installed(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _read_all(target: Target, cwd: Path) -> tuple[set[str], bool] | None:
    """The packages that its own files import, and whether they mention ranks; None if a file cannot be read."""
    first = target.file
    if first is None or first.suffix not in SOURCE:
        return None
    homes = [first.resolve().parent, cwd.resolve()]
    packages: set[str] = set()
    ranks = False
    try:
        for path, text, tree in own_files(first, homes):
            ranks = ranks or _SEVERAL_RANKS.search(text) is not None
            for name in _imported(tree, path, homes):
                outermost = name.partition(".")[0]
                if not list(_own(outermost, homes)):  # a name from the program's own modules is no package
                    packages.add(outermost)
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return None
    return packages, ranks


def own_files(first: Path, homes: list[Path]) -> Iterator[tuple[Path, str, ast.Module]]:
    """The file `first` and all files in the folders `homes` that it imports, each with its text and syntax tree.

    Raises OSError, ValueError, SyntaxError, RecursionError or MemoryError if a file cannot be read, is too large, or if
    there are too many files.
    """
    waiting, seen = [first.resolve()], set[Path]()
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        if len(seen) > MAX_FILES or path.stat().st_size > LARGEST_TEXT:
            raise ValueError(f"{path}: too many files, or too large a file")
        text = path.read_text(encoding="utf-8")
        tree = _parsed(text)
        yield path, text, tree
        for name in _imported(tree, path, homes):
            waiting.extend(_own(name, homes))


def _parsed(text: str) -> ast.Module:
    """The syntax tree of the text. Warnings are suppressed, because Python repeats them when the program runs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(text)


def _imports(module: ast.Module, path: Path, homes: list[Path]) -> Iterator[str]:
    """The modules that a file imports anywhere; for `from a import b` both `a` and `a.b`."""
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = path.parent if node.level == 1 else path.parents[min(node.level, len(path.parents)) - 1]
                home = next((home for home in homes if home == above or home in above.parents), None)
                inside = ".".join(above.relative_to(home).parts) if home else ""
                base = ".".join(filter(None, (inside, base)))
            yield from filter(None, (base, *(f"{base}.{alias.name}".strip(".") for alias in node.names)))


def _imported(module: ast.Module, path: Path, homes: list[Path]) -> set[str]:
    """The modules that a file imports anywhere, and the packages around them."""
    return {part for name in _imports(module, path, homes) for part in _with_packages(name)}


def _with_packages(name: str) -> Iterator[str]:
    """The module and the packages around it, which Python imports first."""
    parts = name.split(".")
    return (".".join(parts[:end]) for end in range(1, len(parts) + 1))


def _own(name: str, homes: list[Path]) -> Iterator[Path]:
    """The program's own files for the module `name`."""
    for home in homes:
        path = home.joinpath(*name.split("."))
        for file in (path.with_name(f"{path.name}.py"), path / "__init__.py"):
            if file.is_file():
                yield file.resolve()
                return


def _required(packages: set[str], excluded_names: Collection[str]) -> set[str]:
    """The packages and all requirements of the installed packages, except the requirements of `excluded_names`."""
    required: set[str] = set()
    waiting = sorted(packages - set(sys.stdlib_module_names))
    while waiting and len(required) < MAX_REQUIRED:
        name = waiting.pop()
        if name in required:
            continue
        required.add(name)
        if name in excluded_names:
            continue
        try:
            lines = metadata.requires(name) or ()
        except (metadata.PackageNotFoundError, OSError, ValueError):
            continue
        for line in lines:
            if "extra ==" not in line:
                waiting.append(re.split(r"[^\w.-]", line, maxsplit=1)[0].lower().replace("-", "_"))
    return required
