"""`traincheck status`: summarise the library of a project."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from traincheck import config as configs
from traincheck.cli import flags
from traincheck.cli.console import amount, columns, out, out_json
from traincheck.errors import TallyUnreadable

if TYPE_CHECKING:
    from traincheck.invariants.book import Book
    from traincheck.invariants.library import AcceptedRun, Record

EPILOG = """\b
Examples:
  traincheck status
  traincheck status --json
  traincheck status runs/new-schedule
  traincheck status --library ../other-project/.traincheck

A rule of one program is a notice until three runs of that program support it, and an error from then on.
"""


def command(
    runs: flags.RunFoldersToPreview = None, library: flags.Library = None, as_json: flags.AsJson = False
) -> None:
    """Show which runs of your programs are accepted.

    It lists the evidence for their rules, and the conditions that no accepted run covers. With RUN, it shows what would
    change if you accepted these runs.
    """
    if runs:
        from traincheck.cli.commands.accept import accept

        raise typer.Exit(accept(runs, library, configs.load({}, os.environ, Path.cwd()), preview=True))
    raise typer.Exit(status(library, as_json))


def status(library: Path | None, as_json: bool = False) -> int:
    """Print the contents of the library."""
    from traincheck.invariants.library import find

    home = library if library is not None else find(Path.cwd())
    if home is None or not home.is_dir():
        if as_json:
            out_json(None)
        else:
            out("no accepted runs: `traincheck run` checks against the packs alone")
            out("to check later runs against a good one: traincheck accept RUN")
        return 0
    _print(home, as_json)
    return 0


def _print(home: Path, as_json: bool) -> None:
    from traincheck.inference.accept_run import never_seen
    from traincheck.inference.tally_files import read_tallies
    from traincheck.invariants.book import read_book
    from traincheck.invariants.library import BOOK, TALLIES, read_record

    record, book = read_record(home), read_book(home / BOOK)
    tallies = read_tallies(home / TALLIES)
    accepted_runs = {run.run for run in record.runs}
    if accepted_runs != {tally.run for tally in tallies}:
        raise TallyUnreadable(home / TALLIES, "it holds other runs than accepted.json: restore both files together")
    unseen = never_seen(tallies, max((run.ranks for run in record.runs), default=1))
    if as_json:
        out_json(_data(home, record, book, unseen))
        return
    severities = [rule.severity for rule in book.invariants if not rule.mute]
    muted = len(book.invariants) - len(severities)
    counts = f"{amount(severities.count('error'), 'error')}, {amount(severities.count('notice'), 'notice')}"
    accepted, rules = amount(len(record.runs), "accepted run"), amount(len(book.invariants), "rule")
    out(f"{home}: {accepted}, {rules} ({counts}, {muted} muted)")
    for line in columns([("program", "runs", "steps", "ranks", "torch", "last accepted"), *_rows(record.runs)]):
        out(line)
    for run in sorted((run for run in record.runs if run.reason), key=lambda run: run.date):
        part = f", only {', '.join(run.only)}" if run.only else ""
        out(f"accepted on {run.date} ({run.script}{part}): {run.reason}")
    last = record.last
    scripts = sorted({run.script for run in record.runs if run.run in last.runs})
    if scripts:
        changes = f"{last.came} added, {last.went} removed, {last.changed} changed"
        out(f"rules of the last acceptance ({', '.join(scripts)}): {changes}")
    if unseen:
        out(f"not covered by any accepted run: {', '.join(unseen)}")


def _rows(runs: Sequence[AcceptedRun]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for script in sorted({run.script for run in runs}):
        own = [run for run in runs if run.script == script]
        last = max(run.date for run in own)
        ranks = ", ".join(map(str, sorted({run.ranks for run in own})))
        torch = ", ".join(sorted({run.torch for run in own if run.torch}))
        rows.append((script, str(len(own)), f"{sum(run.steps for run in own):,}", ranks, torch, last))
    return rows


def _data(home: Path, record: Record, book: Book, unseen: list[str]) -> dict[str, Any]:
    import msgspec

    return {
        "library": str(home),
        "runs": [msgspec.to_builtins(run) for run in record.runs],
        "last": msgspec.to_builtins(record.last),
        "rules": len(book.invariants),
        "errors": sum(rule.severity == "error" and not rule.mute for rule in book.invariants),
        "notices": sum(rule.severity == "notice" and not rule.mute for rule in book.invariants),
        "muted": sum(bool(rule.mute) for rule in book.invariants),
        "never_seen": unseen,
    }
