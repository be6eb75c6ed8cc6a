"""`traincheck explain`: one invariant at length, or why candidates were kept or dropped."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from traincheck.cli import flags
from traincheck.cli.console import Progress, columns, out, remark
from traincheck.errors import BadOption, NoSuchInvariant

if TYPE_CHECKING:
    from traincheck.vocab.invariant import Invariant

EPILOG = """\b
Examples:
  traincheck explain good.jsonl 3f9a0c11d2
  traincheck explain --candidate "zero_grad resets gradients" runs/cnn runs/lstm
"""

Places = Annotated[
    list[Path], typer.Argument(metavar="BOOK ID|RUN...", help="A book and an id, or run folders.", show_default=False)
]


def command(places: Places, candidate: flags.Candidate = None) -> None:
    """Explain an invariant, or the fate of candidates.

    Given a book and an id: all that is known of that invariant. Given --candidate and run folders: why the candidates
    that these runs suggested were kept or dropped.
    """
    if candidate is not None:
        raise typer.Exit(follow(candidate, places))
    if len(places) != 2:
        raise BadOption("explain", " ".join(map(str, places)), "BOOK ID, or --candidate TEXT RUN...")
    raise typer.Exit(explain(places[0], str(places[1])))


def explain(path: Path, name: str) -> int:
    """Print all that the book says about the invariant `name` (its id, or the unique start of it)."""
    from traincheck.invariants.book import read_book

    matching = [invariant for invariant in read_book(path).invariants if invariant.id.startswith(name)]
    if len(matching) != 1:
        raise NoSuchInvariant(path, name, len(matching))
    out(matching[0].sentence)
    for line in columns(told(matching[0])):
        out(line)
    return 0


def told(invariant: Invariant) -> list[tuple[str, str]]:
    """Label and text of everything about it."""
    support = invariant.support
    rows = [
        ("id", invariant.id),
        ("relation", invariant.relation),
        ("subject", f"{invariant.subject.api} (each {invariant.subject.grain})"),
        ("property", " ".join(filter(None, invariant.property))),
        ("when", str(invariant.precondition)),
        ("severity", invariant.severity),
        ("scope", invariant.scope),
        ("confidence", f"{invariant.confidence:.3f}"),
        (
            "occasions",
            f"{support.occasions:,} in {support.steps:,} steps, {support.runs} runs, {support.scripts} scripts",
        ),
        ("learned from", ", ".join(invariant.origin)),
        ("muted", invariant.mute),
    ]
    return [(label, text) for label, text in rows if text]


def follow(candidate: str, runs: Sequence[Path]) -> int:
    """Learn from the runs again and print what became of the candidates that `candidate` names."""
    from traincheck.inference.learn import learn

    with Progress() as progress:
        entries = learn(runs, progress).journal.find(candidate)
    for entry in entries:
        out(str(entry))
    if not entries:
        remark(f"no candidate says '{candidate}'; nothing in these runs suggested it")
    return 0
