"""Reports: what the commands that check do with what was found, the same for all of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from traincheck.cli.console import amount, out, remark
from traincheck.errors import BadOption, NoBook
from traincheck.options import NO_PACKS, SHIPPED_PACKS

if TYPE_CHECKING:
    from traincheck.config import Config
    from traincheck.invariants.book import Book
    from traincheck.invariants.packs import Packs, Program
    from traincheck.trace.folder import RunFolder
    from traincheck.vocab.finding import Report
    from traincheck.vocab.invariant import Invariant

JSON_NAME, HTML_NAME = "report.json", "report.html"
"""The reports of a run in its own folder."""
STDOUT = Path("-")
"""In place of a JSON file."""


def book_of(config: Config, look: Callable[[Collection[str]], Program] | None = None) -> Book:
    """One book of all that was asked for: the books that are named, and the packs; where no book is named, that of the
    project's library and the packs that are shipped. `look` says what is known of the program, given the packages that
    matter.

    Raises NoBook where there is nothing to check against, BookError for what cannot be read, BadOption for what no
    packs can be.
    """
    from traincheck.invariants.book import merge_books, read_book
    from traincheck.invariants.packs import ANY, book_of_packs, read_packs

    several = [read_packs(place) for place in packs_of(config)]
    books = config.books or own_books(Path.cwd())
    if not several and not books:
        raise NoBook
    matter = {package for each in several for pack in each.manifest.packs for package in pack.uses}
    program = look(matter) if look is not None and several else ANY
    for each in several:
        remark(told_of(each, program))
    own = [(path, read_book(path)) for path in books]
    packed = [("the packs", book_of_packs(several, program))] if several else []
    return merge_books([*own, *packed])


def own_books(start: Path) -> tuple[str, ...]:
    """The book of the library of the project that the folder belongs to, if it has one; a line says so."""
    from traincheck.invariants.library import BOOK, find, read_record

    library = find(start)
    if library is None:
        return ()
    remark(f"checking against what {amount(len(read_record(library).runs), 'accepted run')} showed: {library / BOOK}")
    return (str(library / BOOK),)


ENOUGH = 3
"""Accepted runs of a program from which on its rules are errors."""


def offer(run: RunFolder, start: Path) -> None:
    """Say how a run in which nothing was found becomes one that others are compared with, unless there are enough."""
    from traincheck.invariants.library import find, read_record

    library = find(start)
    known = 0 if library is None else sum(one.script == run.manifest.script for one in read_record(library).runs)
    if known < ENOUGH:
        remark(f"if this run is as it should be, have later ones checked against it: traincheck accept {run.path}")


def packs_of(config: Config) -> list[str]:
    """The places of the packs that were asked for. Raises BadOption."""
    from traincheck.addresses import readable_place
    from traincheck.invariants.packs import ANCHOR, SHIPPED

    named = config.packs or (() if config.books else (SHIPPED_PACKS,))
    if named == (NO_PACKS,):
        return []
    if NO_PACKS in named:
        raise BadOption(config.origin("packs"), " ".join(named), f"{NO_PACKS} by itself, or packs")
    for one in named:
        readable_place(one.partition(ANCHOR)[0], config.origin("packs"))
    return [str(SHIPPED) if one == SHIPPED_PACKS else one for one in dict.fromkeys(named)]


def told_of(packs: Packs, program: Program) -> str:
    """Which of some packs are used, in a line."""
    chosen, told = packs.of_use(program), packs.manifest
    whose = f"packs {told.name} {told.version}"
    if not chosen:
        return (
            f"the {whose} are for torch {told.torch} and newer, and none of them is used"
            if told.torch
            else (f"none of the {whose} is of use to this program")
        )
    names = ", ".join(pack.name for pack in chosen)
    return f"checking against {amount(sum(pack.rules for pack in chosen), 'rule')} of the {whose}: {names}"


def make_ready() -> None:
    """Import what reports need while the program starts, and not when it has ended and somebody waits for them.

    Raises nothing: what is missing says so when it is used.
    """
    with suppress(Exception):
        import traincheck.checking.gathered
        import traincheck.reporting.json_report
        import traincheck.reporting.terminal  # noqa: F401
        from traincheck.reporting.html.sink import template

        template()


def write_reports(
    report: Report, verdicts: Sequence[tuple[Invariant, str]], json_files: Sequence[Path], html_files: Sequence[Path]
) -> None:
    """Write the report into each of the files; JSON for `-` goes to stdout. Raises OutputError."""
    from traincheck.reporting.html.sink import render_html
    from traincheck.reporting.json_report import json_of, write_json

    for path in json_files:
        if path == STDOUT:
            out(json_of(report).rstrip())
        else:
            write_json(report, path)
    for path in html_files:
        render_html(report, verdicts, path)


def show_summary(report: Report, files: Sequence[Path], is_result: bool = True) -> None:
    """The report for people: verdict, findings, counts, where the files are.

    On stdout where it is the command's result; on stderr where stdout belongs to a program or to JSON.
    """
    from rich.console import Console

    from traincheck.reporting.terminal import TerminalSink

    console = Console(stderr=not is_result or STDOUT in files, highlight=False)
    TerminalSink(console, [path for path in files if path != STDOUT]).close(report)


def given(*paths: Path | None) -> list[Path]:
    """The paths that were given."""
    return [path for path in paths if path is not None]
