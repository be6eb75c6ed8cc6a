"""Built-in rules about steps that are verified: executed again, or computed in a second way. They follow from what a
computer is and from mathematics, so no good run has to show them.

TrainCheck deploys them if `--verify-every` requests it, and keeps them in the book of the run as it does others. (Those
about gradients are in invariants/builtin_rules.py.)
"""

from __future__ import annotations

from traincheck.relations.consistent import experiments as experiments_part
from traincheck.relations.consistent.relation import Consistent
from traincheck.relations.consistent.replayed_steps import DECIDED, EXACT, GRAIN
from traincheck.vocab.invariant import ERROR, NOTICE, Invariant, builtin_rule
from traincheck.vocab.occasion import Property, Subject
from traincheck.vocab.replayed_computations import ELSEWHERE, KIND, PARTS
from traincheck.vocab.verification import EXPERIMENTS


def of_verification() -> tuple[Invariant, ...]:
    """The rules about verified steps."""
    experiments = (
        _rule(f"{KIND}.{name}", experiments_part.GRAIN, experiments_part.VERIFIED, ERROR)
        for name, experiment in EXPERIMENTS.items()
        if experiment.universal
    )
    return (*_of_replays(), *experiments)


def _of_replays() -> tuple[Invariant, ...]:
    """The rules about steps that are executed again."""
    rules = [(part, prop, severity) for part in PARTS for prop, severity in ((EXACT, ERROR), (DECIDED, NOTICE))]
    rules.append((ELSEWHERE, EXACT, ERROR))
    return tuple(_rule(f"{KIND}.{part}", GRAIN, prop, severity) for part, prop, severity in rules)


def _rule(quantity: str, grain: str, prop: Property, severity: str) -> Invariant:
    subject = Subject(quantity, grain)
    return builtin_rule(Consistent.name, subject, prop, severity, Consistent.describe(subject, prop))
