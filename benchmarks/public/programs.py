"""The list of public programs: one TOML file in `programs/` for each repository.

repository = "owner/name"     on GitHub
commit = "..."                40 hex digits; what runs is this commit, whatever the checkout has checked out

[[program]]                   one command of it, see `Program`
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

LISTS = Path(__file__).parent / "programs"
TAGS = (
    *("vision", "language", "graph", "speech", "recommendation", "rl", "gan", "diffusion", "series", "basics"),
    *("distributed", "peft", "trl", "accelerate", "lightning", "transformers", "multiprocess"),
)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_ID = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_FILE_AND_LINE = re.compile(r"\S+:\d+")

T = TypeVar("T")


class BadList(Exception):
    """An entry of the list is not complete: the file, the program, and what is missing."""

    def __init__(self, path: Path, program: str, problem: str) -> None:
        super().__init__(f"{path.name}, {program or 'head'}: {problem}")


@dataclass(frozen=True)
class Edit:
    """A text change in the copy of a file: `find` occurs `times` times, and becomes `replace`."""

    file: str
    find: str
    replace: str
    times: int = 1


@dataclass(frozen=True)
class Data:
    """Data that is generated before the run: `make` is a function of data.py, `into` a path below the working folder,
    `options` are its keyword arguments."""

    make: str
    into: str
    options: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Expected:
    """A finding that is true: its diagnosis, the place in the program (FILE:LINE), and why it is true.

    Without `always`, it depends on chance, such as what is in memory that nothing has written.
    """

    diagnosis: str
    where: str
    reason: str
    always: bool = True


@dataclass(frozen=True)
class Program:
    """One public program.

    `command` is a script with its arguments, or -m, a module and its arguments, run in `folder` of the repository.
    `copy` lists the paths of the repository that are copied (by default the folder). `before` are commands that are run
    in the folder first, unobserved. With `ranks` above 0, torchrun starts the command on this number of processes.
    `skipped` is the reason for which a program of the repository is not run. The program makes at least `steps`
    training steps.
    """

    id: str
    repository: str
    commit: str
    tags: tuple[str, ...]
    folder: str = "."
    command: tuple[str, ...] = ()
    copy: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    ranks: int = 0
    env: tuple[tuple[str, str], ...] = ()
    before: tuple[tuple[str, ...], ...] = ()
    edits: tuple[Edit, ...] = ()
    data: tuple[Data, ...] = ()
    expected: tuple[Expected, ...] = ()
    skipped: str = ""
    timeout: int = 300
    steps: int = 1


def read_programs(folder: Path = LISTS, only: str = "") -> list[Program]:
    """All programs in the order of the files, or those chosen by comma-separated ids, tags or repositories.

    Raises BadList for an entry that is not complete, and for a choice that names nothing.
    """
    programs = [program for path in sorted(folder.glob("*.toml")) for program in read_list(path)]
    ids = [program.id for program in programs]
    for name in ids:
        if ids.count(name) > 1:
            raise BadList(folder, name, "two programs have this id")
    chosen = {word.strip() for word in only.split(",") if word.strip()}
    for word in sorted(chosen):
        if not any(word in names_of(program) for program in programs):
            raise BadList(folder, word, "no program has this id, tag or repository; --list shows them")
    return [program for program in programs if not chosen or chosen & names_of(program)]


def names_of(program: Program) -> set[str]:
    """The words that choose a program."""
    return {program.id, program.repository, *program.tags}


def read_list(path: Path) -> list[Program]:
    """The programs of one file. Raises BadList."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadList(path, "", f"it is not valid TOML: {error}") from None
    extra = sorted(table.keys() - {"repository", "commit", "program"})
    if extra:
        raise BadList(path, "", f"unknown keys: {', '.join(extra)}")
    head = {"repository": table.get("repository", ""), "commit": table.get("commit", "")}
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", head["repository"]):
        raise BadList(path, "", "repository must be OWNER/NAME")
    if not _COMMIT.fullmatch(head["commit"]):
        raise BadList(path, "", "commit must have 40 hex digits")
    return [_program(path, {**entry, **head}) for entry in table.get("program", [])]


def _program(path: Path, entry: dict[str, Any]) -> Program:
    name = str(entry.get("id", ""))
    if not _ID.fullmatch(name):
        raise BadList(path, name, "id must be lower-case words and digits joined by hyphens")
    parts: dict[str, Any] = {
        **entry,
        "edits": tuple(_table(path, name, Edit, edit) for edit in entry.get("edits", ())),
        "data": tuple(_table(path, name, Data, data) for data in entry.get("data", ())),
        "expected": tuple(_table(path, name, Expected, finding) for finding in entry.get("expected", ())),
        "env": tuple(sorted(entry.get("env", {}).items())),
        "before": tuple(tuple(words) for words in entry.get("before", ())),
        **{key: _words(path, name, key, entry.get(key, ())) for key in ("command", "tags", "packages", "copy")},
    }
    program = _table(path, name, Program, parts)
    _check(path, program)
    return program


def _words(path: Path, name: str, key: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)) or not all(isinstance(word, str) for word in value):
        raise BadList(path, name, f"{key} must be a list of strings")
    return tuple(value)


def _table(path: Path, name: str, kind: type[T], entry: Mapping[str, Any]) -> T:
    known_fields = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]
    for key in entry:
        if key not in known_fields:
            raise BadList(path, name, f"{key!r} is not a key of {kind.__name__}; known are {', '.join(known_fields)}")
    missing = [key for key, field in known_fields.items() if field.default is MISSING and key not in entry]
    if missing:
        raise BadList(path, name, f"{kind.__name__} has no {', '.join(missing)}; add it")
    return kind(**entry)


def _check(path: Path, program: Program) -> None:
    """Check constraints that the types cannot express. Raises BadList."""
    if not program.command and not program.skipped:
        raise BadList(path, program.id, "it has neither a command nor the reason why it is skipped")
    if not program.tags or not set(program.tags) <= set(TAGS):
        raise BadList(path, program.id, f"tags must be among {', '.join(TAGS)}")
    for finding in program.expected:
        _check_explained(path, program.id, finding)


def _check_explained(path: Path, name: str, finding: Expected) -> None:
    """A finding counts as true only with the place in the program and a reason."""
    if not _FILE_AND_LINE.fullmatch(finding.where):
        raise BadList(path, name, f"where of {finding.diagnosis!r} must be FILE:LINE")
    if len(finding.reason.split()) < 8:
        raise BadList(path, name, f"reason of {finding.diagnosis!r} must explain why the finding is true")


def packages(programs: Sequence[Program]) -> set[str]:
    """The PyPI packages that the programs need."""
    return {package for program in programs for package in program.packages}
