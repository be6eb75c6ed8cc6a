"""Holds violations back that the data of one batch may explain.

A function may call others for some batches only: it needs no mask for a batch without padding. Three runs of one
program may not show such a batch. An error in the program stays. So a rule of one program about the calls that a
function makes is reported only if it fails twice in a row, once it has held often enough. (For the operations of
modules, see Note [Branches that the data choose] in sources/gradients/graph_source.py.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from traincheck.checking.deployed_rules import RuleCounts
from traincheck.vocab.finding import Violation
from traincheck.vocab.invariant import PIPELINE, Invariant
from traincheck.vocab.properties import CONTAINS_CALL

HELD_OFTEN = 10
"""Occasions on which a rule has held before a failure may pass."""


class _Open(NamedTuple):
    """A violation, how often the rule was judged by then, and how often it failed in that window."""

    violation: Violation
    triggered: int
    failures: int


class PassingFailures:
    """The violations that wait for the next occasion of their rule. A failure that passes does not count."""

    def __init__(self, counts: Mapping[str, RuleCounts]) -> None:
        self._counts = counts
        self._open: dict[str, _Open] = {}

    def confirmed(self, violations: Sequence[tuple[Violation, int]]) -> list[Violation]:
        """The violations of a window that count, each given with the number of its failures; and earlier ones that
        were held back and have been followed by another one."""
        if not self._open and not violations:
            return []
        failing = {violation.invariant.id for violation, _ in violations}
        repeated = {name: self._open.pop(name) for name in failing.intersection(self._open)}
        self._open = {
            name: opened
            for name, opened in self._open.items()
            if self._counts[name].triggered == opened.triggered  # else the rule has held since
        }
        for name, opened in repeated.items():
            self._counts[name].failed += opened.failures
        counting = [opened.violation for opened in repeated.values()]
        for violation, failures in violations:
            counts = self._counts[violation.invariant.id]
            has_held = counts.triggered - counts.failed >= HELD_OFTEN
            if violation.invariant.id in repeated or not (has_held and _depends_on_data(violation.invariant)):
                counting.append(violation)
                continue
            counts.failed -= failures
            self._open[violation.invariant.id] = _Open(violation, counts.triggered, failures)
        return counting


def _depends_on_data(rule: Invariant) -> bool:
    """Whether data may decide if a rule holds, as good runs of one program do not show."""
    return rule.scope == PIPELINE and rule.property.verb == CONTAINS_CALL
