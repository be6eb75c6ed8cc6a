"""Selection: which invariants of a book are deployed on a given program."""

from __future__ import annotations

from collections.abc import Iterable

from traincheck.vocab.invariant import Invariant

LEAST_SCRIPTS = 2
"""What a single program did says nothing of others: such a rule is deployed on that program only."""


def deployable(rules: Iterable[Invariant], script: str) -> tuple[Invariant, ...]:
    """The rules to check `script` (its name in run.json) with: those of several programs, and those learned from it."""
    return tuple(
        rule for rule in rules if not rule.mute and (rule.support.scripts >= LEAST_SCRIPTS or script in rule.origin)
    )
