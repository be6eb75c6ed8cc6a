"""Select the invariants of a book that are deployed on a given program."""

from __future__ import annotations

from collections.abc import Iterable

from traincheck.vocab.invariant import GENERAL, Invariant


def deployable(rules: Iterable[Invariant], script: str) -> tuple[Invariant, ...]:
    """The rules for checking `script` (its name in run.json): the general ones, and those learned from it.

    A single program says nothing about others, and a setting belongs to its program alone.
    """
    return tuple(
        rule
        for rule in rules
        if not rule.mute and (rule.scope == GENERAL or script in rule.origin) and rule.program in ("", script)
    )
