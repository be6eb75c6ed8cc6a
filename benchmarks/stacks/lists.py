"""The list of packages: one TOML file in `packages/` for each.

package = "peft"              its name on PyPI
order = 3                     its place in the table
observed = "..."              what TrainCheck observes of it beside modules, gradients and optimizers of torch
unseen = "..."                what TrainCheck does not observe, or cannot decide

[[program]]                   see `Program`
[[error]]                     see `SilentError`
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HERE = Path(__file__).parent
LISTS, PROGRAMS = HERE / "packages", HERE / "programs"
_ID = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_SOURCE = re.compile(r"https://github\.com/[\w.-]+/[\w.-]+/(issues|pull|commit)/\w+")

T = TypeVar("T")


class BadList(Exception):
    """An entry of the list is not complete: the file, the entry, and what is missing."""

    def __init__(self, path: Path, entry: str, problem: str) -> None:
        super().__init__(f"{path.name}, {entry or 'head'}: {problem}")


@dataclass(frozen=True)
class Program:
    """A program of our own in the style of a package's documentation.

    `script` is a file in `programs/`; it takes --seed. `about` says in a few words what it uses of the package. With
    `ranks` above 0, torchrun starts it on this number of processes. It makes at least `steps` training steps.
    """

    id: str
    script: str
    about: str
    args: tuple[str, ...] = ()
    ranks: int = 0
    steps: int = 8
    timeout: int = 240


@dataclass(frozen=True)
class Edit:
    """A change of a module's text when it is imported: `find` occurs once, and becomes `replace`."""

    module: str
    find: str
    replace: str


@dataclass(frozen=True)
class SilentError:
    """A documented silent error, brought back into the package while `program` (an id) runs.

    `source` is the public issue, pull request or commit; `about` says what goes wrong. `edits` bring the error back, or
    `args` lead the program to it if the installed release has it. An error of a `family` is a mistake in the program
    instead, made by `args`: the page lists each family separately.
    """

    id: str
    program: str
    about: str
    source: str = ""
    edits: tuple[Edit, ...] = ()
    args: tuple[str, ...] = ()
    family: str = ""


@dataclass(frozen=True)
class Package:
    """A package with its programs and silent errors. `observed` and `unseen` go into the page as they are."""

    package: str
    order: int
    observed: str
    unseen: str
    programs: tuple[Program, ...]
    errors: tuple[SilentError, ...]


def read_packages(folder: Path = LISTS, only: str = "") -> list[Package]:
    """All packages in their order, or those chosen by comma-separated names. Raises BadList."""
    packages = sorted((read_list(path) for path in folder.glob("*.toml")), key=lambda package: package.order)
    chosen = {word.strip() for word in only.split(",") if word.strip()}
    unknown = chosen - {package.package for package in packages}
    if unknown:
        raise BadList(folder, ", ".join(sorted(unknown)), "no package has this name; --list shows them")
    return [package for package in packages if not chosen or package.package in chosen]


def read_list(path: Path) -> Package:
    """The package of one file. Raises BadList."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadList(path, "", f"it is not valid TOML: {error}") from None
    extra = sorted(table.keys() - {"package", "order", "observed", "unseen", "program", "error"})
    if extra:
        raise BadList(path, "", f"unknown keys: {', '.join(extra)}")
    package = Package(
        str(table.get("package", "")),
        int(table.get("order", 0)),
        str(table.get("observed", "")),
        str(table.get("unseen", "")),
        tuple(_entry(path, Program, entry) for entry in table.get("program", ())),
        tuple(_entry(path, SilentError, entry) for entry in table.get("error", ())),
    )
    _check(path, package)
    return package


def _entry(path: Path, kind: type[T], entry: Mapping[str, Any]) -> T:
    name = str(entry.get("id", entry.get("module", "")))
    parts = {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}
    if "edits" in parts:
        parts["edits"] = tuple(_entry(path, Edit, edit) for edit in parts["edits"])
    known_fields = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]
    for key in parts:
        if key not in known_fields:
            raise BadList(path, name, f"{key!r} is not a key of {kind.__name__}; known are {', '.join(known_fields)}")
    missing = [key for key, field in known_fields.items() if field.default is MISSING and key not in parts]
    if missing:
        raise BadList(path, name, f"{kind.__name__} has no {', '.join(missing)}; add it")
    return kind(**parts)


def _check(path: Path, package: Package) -> None:
    """Check constraints that the types cannot express. Raises BadList."""
    if not package.package or not package.order:
        raise BadList(path, "", "it has no package or no order; add them")
    if not package.observed or not package.unseen:
        raise BadList(path, "", "it does not say what is observed and unseen; add both")
    if not package.programs:
        raise BadList(path, "", "it has no program")
    programs = {program.id for program in package.programs}
    for entry in (*package.programs, *package.errors):
        if not _ID.fullmatch(entry.id):
            raise BadList(path, entry.id, "id must be lower-case words and digits joined by hyphens")
    for program in package.programs:
        if not (PROGRAMS / program.script).exists():
            raise BadList(path, program.id, f"{program.script} is not in {PROGRAMS.name}/")
    for error in package.errors:
        if error.program not in programs:
            raise BadList(path, error.id, f"{error.program!r} is none of its programs: {', '.join(sorted(programs))}")
        if not error.family and not (_SOURCE.fullmatch(error.source) and (error.edits or error.args)):
            problem = "it needs edits or args, and as source an issue, pull request or commit on GitHub"
            raise BadList(path, error.id, problem)
        if error.family and not error.args:
            raise BadList(path, error.id, "it changes nothing; add the arguments of the program that make the mistake")
