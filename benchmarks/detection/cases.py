"""Load cases: one silent error each, as a clean and a buggy program, with a description in `case.toml`.

A folder under `cases/` holds

    case.toml     the error, its origin, the command, the first bad step, and words of a correct diagnosis
    effect.py     shows the error without TrainCheck (see `effects`)
    clean/        the differing files of the correct program
    buggy/        the same files with the error
    *.py          the files that both share

A program is laid out before it runs: the shared files and those of one variant, together in one folder.
"""

from __future__ import annotations

import re
import shutil
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CASES = Path(__file__).parent / "cases"
CLEAN, BUGGY = "clean", "buggy"
VARIANTS = (CLEAN, BUGGY)
PARTS = {"A": "the published 20", "B": "the six new ones of the paper", "C": "further documented ones"}
WHERE = ("user", "framework", "compiler", "hardware")
_ID = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


class BadCase(Exception):
    """A case folder is not as it should be: the file, what was expected and what to do."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"{path}: {problem}")


@dataclass(frozen=True)
class Case:
    """One silent error.

    `first_bad_step` is the step in which the effect first exists, 0 for the set-up before the first step.
    `at_fault` are the ranks that are treated wrongly (all where it is empty), and `concerns` the parameters or calls
    that are: for each entry, a good finding has at least one of its words. Both are for cases of several ranks.
    `untaught` is the reason why no other program can teach the violated rule, if so.
    `twins` are the arguments of earlier, different configurations of the clean program. A right diagnosis has, for each
    entry of `names`, at least one of its words; a word may be
    the slug of a diagnosis. `env` is set for the program, both clean and buggy.
    """

    id: str
    part: str
    where: str
    source: str
    title: str
    mechanism: str
    script: str
    first_bad_step: int
    names: tuple[tuple[str, ...], ...]
    twins: tuple[tuple[str, ...], ...]
    folder: Path
    args: tuple[str, ...] = ()
    ranks: int = 1
    env: tuple[tuple[str, str], ...] = ()
    untaught: str = ""
    at_fault: tuple[int, ...] = ()
    concerns: tuple[tuple[str, ...], ...] = ()

    def lay_out(self, variant: str, home: Path) -> Path:
        """Put the program of a variant into the folder `home`, which is made; the path of its script."""
        home.mkdir(parents=True, exist_ok=True)
        for source in (self.folder, self.folder / variant):
            for file in sorted(source.glob("*.py")):
                if file.name != "effect.py":
                    shutil.copy(file, home / file.name)
        return home / self.script

    def path_of(self, variant: str, file: str) -> Path:
        """Return the path in the case folder of a file of a copied program."""
        own = self.folder / variant / file
        return own if own.exists() else self.folder / file


def read_case(folder: Path) -> Case:
    """The case in a folder. Raises BadCase for anything missing, unknown or of the wrong type."""
    path = folder / "case.toml"
    if not path.is_file():
        raise BadCase(folder, "there is no case.toml in it; each case folder has one (benchmarks/detection/cases.py)")
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadCase(path, f"it is not valid TOML: {error}") from None
    values = _checked(path, table)
    case = Case(folder=folder, **values)
    _check_values(path, case)
    return case


def read_cases(chosen: str = "") -> list[Case]:
    """All cases in the order of part and folder, or those chosen by comma-separated ids, parts or folder names.

    Raises BadCase for a choice that is none.
    """
    folders = sorted(folder for folder in CASES.iterdir() if folder.is_dir() and not folder.name.startswith(("_", ".")))
    cases = [read_case(folder) for folder in folders]
    words = [word.strip() for word in chosen.split(",") if word.strip()]
    if not words:
        return cases
    for word in words:
        if not any(word in _names_of(case) for case in cases):
            ids = ", ".join(case.id for case in cases)
            raise BadCase(CASES, f"no case or part is called {word!r}; there are parts A, B, C and {ids}")
    return [case for case in cases if set(words) & _names_of(case)]


def _names_of(case: Case) -> set[str]:
    return {case.id, case.part, case.folder.name}


def _checked(path: Path, table: dict[str, Any]) -> dict[str, Any]:
    """The fields of a Case out of a table. Raises BadCase."""
    known_fields = {entry.name: entry for entry in fields(Case) if entry.name != "folder"}
    for key in table:
        if key not in known_fields:
            raise BadCase(path, f"{key!r} is not a key of a case; known are {', '.join(known_fields)}")
    optional = {"args", "ranks", "env", "untaught", "at_fault", "concerns"}
    missing = [key for key in known_fields if key not in table and key not in optional]
    if missing:
        raise BadCase(path, f"it has no {', '.join(missing)}; add it")
    return {key: _converted(path, key, value) for key, value in table.items()}


def _converted(path: Path, key: str, value: Any) -> Any:
    if key in ("first_bad_step", "ranks"):
        good, expected = isinstance(value, int) and not isinstance(value, bool), "a whole number"
    elif key == "at_fault":
        good = isinstance(value, list) and all(isinstance(rank, int) and not isinstance(rank, bool) for rank in value)
        expected = "a list of whole numbers"
        value = tuple(value) if good else value
    elif key in ("names", "twins", "concerns"):
        good = isinstance(value, list) and bool(value) and all(_is_words(entry) and entry for entry in value)
        expected = "a list of lists of strings, none empty"
        value = tuple(map(tuple, value)) if good else value
    elif key == "args":
        good, expected = _is_words(value), "a list of strings"
        value = tuple(value) if good else value
    elif key == "env":
        good = isinstance(value, dict) and all(isinstance(entry, str) for entry in value.values())
        expected = "a table of strings"
        value = tuple(sorted(value.items())) if good else value
    else:
        good, expected = isinstance(value, str) and bool(value.strip()), "a text"
    if not good:
        raise BadCase(path, f"{key} must be {expected}, not {value!r}")
    return value


def _is_words(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(word, str) for word in value)


def _check_values(path: Path, case: Case) -> None:
    if not _ID.fullmatch(case.id):
        raise BadCase(path, f"id {case.id!r} must be lower-case words and numbers with hyphens between")
    if case.part not in PARTS:
        raise BadCase(path, f"part must be one of {', '.join(PARTS)}, not {case.part!r}")
    if case.where not in WHERE:
        raise BadCase(path, f"where must be one of {', '.join(WHERE)}, not {case.where!r}")
    if case.ranks < 1 or case.first_bad_step < 0:
        raise BadCase(path, "ranks must be at least 1 and first_bad_step at least 0")
    for variant in VARIANTS:
        if not case.path_of(variant, case.script).is_file():
            raise BadCase(path, f"script {case.script!r} is neither in {variant}/ nor beside case.toml")
        if not any((case.folder / variant).glob("*.py")):
            raise BadCase(case.folder, f"{variant}/ has no Python file; the two programs would be the same")
    if not (case.folder / "effect.py").is_file():
        raise BadCase(case.folder, "there is no effect.py; it shows that the error is there")
