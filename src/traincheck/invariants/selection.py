"""Selection: which invariants of a book are deployed on a given program."""

from __future__ import annotations

from collections.abc import Iterable

from traincheck.vocab.invariant import GENERAL, Invariant


def deployable(rules: Iterable[Invariant], script: str) -> tuple[Invariant, ...]:
    """The rules to check `script` (its name in run.json) with: the general ones, and those learned from it.

    What a single program did says nothing of others, and a setting is that of its program alone.
    """
    return tuple(
        rule
        for rule in rules
        if not rule.mute and (rule.scope == GENERAL or script in rule.origin) and rule.program in ("", script)
    )
