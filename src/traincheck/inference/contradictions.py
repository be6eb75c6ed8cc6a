"""Find the rules of packs and built-in rules that accepted runs of a program break."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from traincheck.inference.tally import Tally
from traincheck.invariants.book import Book
from traincheck.vocab.invariant import PIPELINE, Invariant


def with_contradictions(book: Book, general: Iterable[Invariant], tallies: Sequence[Tally]) -> Book:
    """`book` with each rule of `general` that a run in `tallies` breaks, muted for the programs of these runs.

    A mute holds wherever books are merged, so these programs are checked without the rule. Other programs still are.
    """
    known = {rule.id for rule in book.invariants}
    muted = (_muted(rule, tallies) for rule in general if rule.id not in known and not rule.mute)
    return Book((*book.invariants, *(rule for rule in muted if rule is not None)), book.runs)


def _muted(rule: Invariant, tallies: Sequence[Tally]) -> Invariant | None:
    """The rule for the programs that break it; None if no run does."""
    key = (rule.relation, rule.subject)
    scripts = {
        tally.script
        for tally in tallies
        if any(count.failed and rule.applies(context) for context, count in tally.evidence(key, rule.property))
    }
    if not scripts:
        return None
    origin = tuple(sorted(scripts))
    return replace(rule, scope=PIPELINE, origin=origin, mute=f"accepted runs of {', '.join(origin)} break it")
