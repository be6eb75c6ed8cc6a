"""Split a learned book into packs by theme, and write them with their manifest."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from importlib import metadata
from pathlib import Path
from platform import python_version
from typing import Annotated

import msgspec

from traincheck.errors import BadOption
from traincheck.files import write_whole
from traincheck.inference.candidate_selection import select_rules
from traincheck.inference.tally import Tally
from traincheck.invariants.book import Book, bytes_of
from traincheck.invariants.packs import GENERAL, MANIFEST, Manifest, Pack, narrowest
from traincheck.vocab.invariant import ERROR, Invariant
from traincheck.vocab.invariant import GENERAL as OF_SEVERAL

OPTION = "--themes"

MAX_NAMED_PROGRAMS = 12
"""A rule of a pack names at most this many of its programs. All thousand names would make a pack tens of megabytes."""


class Theme(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The common ground of some programs. `programs` are patterns of their names as in books (`hf_*.py`, `torchrun *`);
    for the other fields see `Pack`.
    """

    about: str = ""
    programs: tuple[str, ...]
    uses: tuple[str, ...] = ()
    ranks: int = 1


class Themes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of the `--themes` file: the name of the packs, the oldest torch that they support, the programs that
    have to support a rule, and the themes by name.
    """

    name: str = "packs"
    about: str = ""
    torch: str = ""
    least_programs: Annotated[int, msgspec.Meta(ge=2)] = 2
    themes: dict[str, Theme] = {}


def read_themes(path: Path) -> Themes:
    """The themes in a TOML file. Raises BadOption, which names the file and the entry."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib  # type: ignore[import-not-found]
    try:
        themes = msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), Themes)
    except OSError as error:
        raise BadOption(OPTION, str(path), f"a file that can be read ({error.strerror or error})") from None
    except (ValueError, msgspec.ValidationError) as error:
        raise BadOption(OPTION, str(path), f"a TOML file of themes ({error})") from None
    for name in themes.themes:
        if name == GENERAL or not name.replace("-", "").replace("_", "").isalnum():
            raise BadOption(f"{OPTION} {path}", name, f"a theme of letters, digits, - and _, and not '{GENERAL}'")
    return themes


@dataclass(frozen=True)
class Packed:
    """The books to write, by the names of their packs, and their manifest."""

    books: dict[str, Book]
    manifest: Manifest


def split_by_theme(book: Book, themes: Themes) -> dict[str, Book]:
    """The book of each theme that has rules, and the rest, see Note [Several packs of one book].

    Packs hold only rules that `themes.least_programs` support: a single program says nothing about others.
    `Support.scripts` counts all programs of a rule; `origin` names some of them, `MAX_NAMED_PROGRAMS` at most.
    """
    runs = [replace(run, program="") for run in book.runs]  # no rule of a pack belongs to a single program
    scripts = {run.script for run in runs}
    of_themes = [
        (
            name,
            frozenset(script for script in scripts if any(fnmatchcase(script, pattern) for pattern in theme.programs)),
        )
        for name, theme in sorted(themes.themes.items())
    ]
    rules_by_pack: dict[str, list[Invariant]] = {}
    for rule in book.invariants:
        if rule.scope == OF_SEVERAL and not rule.program and rule.support.scripts >= themes.least_programs:
            rules_by_pack.setdefault(narrowest(of_themes, rule.origin), []).append(
                replace(rule, elsewhere=None, origin=_spread(rule.origin))
            )
    programs = dict(of_themes)
    return {
        name: Book(tuple(rules), tuple(run for run in runs if run.script in programs.get(name, scripts)))
        for name, rules in sorted(rules_by_pack.items())
    }


def _spread(origin: tuple[str, ...]) -> tuple[str, ...]:
    """At most `MAX_NAMED_PROGRAMS` of the names, at equal distances: names that follow each other are of one kind."""
    step = max(1.0, len(origin) / MAX_NAMED_PROGRAMS)
    return tuple(origin[int(index * step)] for index in range(min(len(origin), MAX_NAMED_PROGRAMS)))


def build_packs(tallies: Sequence[Tally], themes: Themes, version: str) -> Packed:
    """Learn a book from all of the tallies and split it."""
    books = split_by_theme(select_rules(tallies)[0], themes)
    packs = []
    for name, book in books.items():
        theme = themes.themes.get(name, Theme(programs=(), about=themes.about))
        packs.append(
            Pack(
                name=name,
                file=f"{name}.jsonl",
                sha256=hashlib.sha256(bytes_of(book, name)).hexdigest(),
                about=theme.about,
                uses=theme.uses,
                ranks=theme.ranks,
                rules=len(book.invariants),
                errors=sum(rule.severity == ERROR for rule in book.invariants),
                programs=len({run.script for run in book.runs}),
                steps=sum(run.steps for run in book.runs),
            )
        )
    made_with = dict(_made_with(themes))
    manifest = Manifest(name=themes.name, version=version, torch=themes.torch, made_with=made_with, packs=tuple(packs))
    return Packed(books, manifest)


def _made_with(themes: Themes) -> Iterator[tuple[str, str]]:
    """The installed versions of Python and of the packages that matter."""
    yield "python", python_version()
    for package in sorted(
        {"torch", *(package_name for theme in themes.themes.values() for package_name in theme.uses)}
    ):
        try:
            yield package, metadata.version(package)
        except metadata.PackageNotFoundError:
            continue


def write_packs(packed: Packed, folder: Path) -> None:
    """Write the packs into `folder`, and remove books of older packs that these replace. Raises OutputError.

    The manifest comes last, so that a reader never misses a book.
    """
    for name, book in packed.books.items():
        write_whole(folder / f"{name}.jsonl", bytes_of(book, folder / f"{name}.jsonl"))
    manifest = msgspec.json.format(msgspec.json.encode(packed.manifest), indent=2)
    write_whole(folder / MANIFEST, manifest + b"\n")


def stale_books(folder: Path, packed: Packed) -> list[Path]:
    """The books in `folder` that belong to older packs only."""
    kept = {f"{name}.jsonl" for name in packed.books}
    return sorted(path for path in folder.glob("*.jsonl") if path.name not in kept)
