"""Judges a book on a recorded run from its tally, without reading the run again for each book.

A tally holds how often each property held and failed in each context of a fully recorded run, which is all that a
verdict rests on. `benchmarks.transfer` compares a sample of these verdicts with those of the offline checker.
"""

from __future__ import annotations

from dataclasses import dataclass

from traincheck.inference.tally import Tally
from traincheck.invariants.book import Book
from traincheck.invariants.selection import deployable
from traincheck.vocab.invariant import Invariant


@dataclass(frozen=True)
class RuleOutcomes:
    """The deployed rules that were triggered on a run, and those of them that failed."""

    triggered: tuple[Invariant, ...]
    failed: tuple[Invariant, ...]


def outcomes_on(book: Book, tally: Tally) -> RuleOutcomes:
    """Return the deployed rules of `book` that triggered, and that failed, on the run behind `tally`."""
    triggered, failed = [], []
    for rule in deployable(book.invariants, tally.script):
        held, broken = _counts(rule, tally)
        if held or broken:
            triggered.append(rule)
        if broken:
            failed.append(rule)
    return RuleOutcomes(tuple(triggered), tuple(failed))


def _counts(rule: Invariant, tally: Tally) -> tuple[int, int]:
    cells = tally.cells.get((rule.relation, rule.subject), {})
    held = broken = 0
    for context, cell in cells.items():
        if rule.applies(context):
            count = cell.of(rule.property)
            if count is not None:
                held += count.held
                broken += count.failed
    return held, broken
