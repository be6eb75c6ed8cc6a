"""Imported: which packages a program imports, read from its text before it runs.

Files of the program's own folder are read as well, and of packages that are installed what they require. What is
imported by other means than the word (plugins, a shell script) is not seen; where a text cannot be read, nothing is
said.
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

MOST_FILES = 300
LARGEST_TEXT = 1 << 20
"""Files of the program's own that are read, and the bytes of one: a program has fewer, and what is larger is data."""

MOST_REQUIRED = 300
"""Packages whose requirements are followed."""

_SEVERAL_RANKS = re.compile(r"\b(distributed|multiprocessing|DataParallel|devices|num_processes|nproc)\b")
"""Words of a text that may start other ranks, or be started as one."""


def program_of(target: Target, environ: Mapping[str, str], cwd: Path, excluded: Collection[str] = ()) -> Program:
    """What can be known of a program before it runs. What the packages `wanted` themselves require is not told."""
    from traincheck.invariants.packs import Program  # a recording reads texts only

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
    """The packages that its own files import, and whether they speak of ranks; None where one cannot be read."""
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
                if not list(_own(outermost, homes)):  # what is imported from its own modules may be any name in them
                    packages.add(outermost)
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return None
    return packages, ranks


def own_files(first: Path, homes: list[Path]) -> Iterator[tuple[Path, str, ast.Module]]:
    """The file `first` and the files in the folders `homes` that it imports, each with its text and what it parses to.

    Raises OSError, ValueError, SyntaxError, RecursionError or MemoryError where one cannot be read, is too large, or
    there are too many of them.
    """
    waiting, seen = [first.resolve()], set[Path]()
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        if len(seen) > MOST_FILES or path.stat().st_size > LARGEST_TEXT:
            raise ValueError(f"{path}: too many files, or too large a file")
        text = path.read_text(encoding="utf-8")
        tree = _parsed(text)
        yield path, text, tree
        for name in _imported(tree, path, homes):
            waiting.extend(_own(name, homes))


def _parsed(text: str) -> ast.Module:
    """The text, parsed without a word: what Python has to say of it, it says when the program runs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(text)


def _imports(module: ast.Module, path: Path, homes: list[Path]) -> Iterator[str]:
    """The modules that are imported anywhere in a file; of `from a import b` both `a` and `a.b`."""
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
    """The modules that are imported anywhere in a file, and the packages around them."""
    return {part for name in _imports(module, path, homes) for part in _with_packages(name)}


def _with_packages(name: str) -> Iterator[str]:
    """The module and the packages around it, which are imported with it."""
    parts = name.split(".")
    return (".".join(parts[:end]) for end in range(1, len(parts) + 1))


def _own(name: str, homes: list[Path]) -> Iterator[Path]:
    """The files of the program's own that the module `name` is."""
    for home in homes:
        path = home.joinpath(*name.split("."))
        for file in (path.with_name(f"{path.name}.py"), path / "__init__.py"):
            if file.is_file():
                yield file.resolve()
                return


def _required(packages: set[str], excluded_names: Collection[str]) -> set[str]:
    """These and all that the installed ones among them require, but for what those that are `enough` do."""
    required: set[str] = set()
    waiting = sorted(packages - set(sys.stdlib_module_names))
    while waiting and len(required) < MOST_REQUIRED:
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
