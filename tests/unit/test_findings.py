"""Findings of several ranks: where they are so is told where they are not so elsewhere."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from traincheck.checking.checked import conclude
from traincheck.checking.engine import Outcome, Tried
from traincheck.checking.findings import Teller
from traincheck.invariants.book import Book
from traincheck.vocab.finding import Finding, Violation
from traincheck.vocab.invariant import Invariant

NewInvariant = Callable[..., Invariant]


def violation(new_invariant: NewInvariant, rank: int, step: int = 1) -> Violation:
    return Violation(new_invariant(), step, rank, rank, step, "train", 1, None, "", ())


@pytest.mark.parametrize(
    ("failed", "held", "told"),
    [
        ((1,), (0,), "so on rank 1, not on rank 0"),
        ((0, 2), (1, 3), "so on ranks 0, 2, not on ranks 1, 3"),
        ((1,), tuple(range(2, 20)), "so on rank 1, not on ranks 2-19"),
        ((0, 1), (), ""),
    ],
)
def test_a_finding_says_on_which_ranks_it_is_so(
    new_invariant: NewInvariant, failed: tuple[int, ...], held: tuple[int, ...], told: str
) -> None:
    rule = new_invariant()
    outcomes = []
    for rank in (*failed, *held):
        violations = [violation(new_invariant, rank)] if rank in failed else []
        outcomes.append(Outcome(rank, rank, {rule.id: Tried(5, len(violations))}, violations, windows=5))
    report = conclude(Book((rule,)), [rule], outcomes, unobserved={}).report
    (finding,) = report.findings
    assert finding.observed.endswith(told) if told else "so on" not in finding.observed
    assert (finding.ranks, finding.compared) == (failed, 0)


def test_a_finding_is_told_once(new_invariant: NewInvariant) -> None:
    told: list[Finding] = []
    teller = Teller(told.append)
    first, again = violation(new_invariant, 0), violation(new_invariant, 0, step=2)
    assert teller.feed([first], [first]) and not teller.feed([again], [first, again]) and not teller.feed([], [first])
    assert [finding.step for finding in told] == [1]
