"""Built-in rules about steps that are executed again. They follow from what a computer is, so no good run has to show
them.

TrainCheck deploys them if `--replay-every` requests it, and keeps them in the book of the run as it does others. (Those
about gradients are in invariants/builtin_rules.py.)
"""

from __future__ import annotations

from traincheck.relations.consistent.relation import Consistent
from traincheck.relations.consistent.replayed_steps import DECIDED, EXACT, GRAIN
from traincheck.vocab.invariant import ERROR, NOTICE, Invariant, builtin_rule
from traincheck.vocab.occasion import Property, Subject
from traincheck.vocab.replayed_computations import ELSEWHERE, KIND, PARTS


def of_replays() -> tuple[Invariant, ...]:
    """The rules about steps that are executed again."""
    rules = [(part, prop, severity) for part in PARTS for prop, severity in ((EXACT, ERROR), (DECIDED, NOTICE))]
    rules.append((ELSEWHERE, EXACT, ERROR))
    return tuple(_rule(f"{KIND}.{part}", prop, severity) for part, prop, severity in rules)


def _rule(quantity: str, prop: Property, severity: str) -> Invariant:
    subject = Subject(quantity, GRAIN)
    return builtin_rule(Consistent.name, subject, prop, severity, Consistent.describe(subject, prop))
