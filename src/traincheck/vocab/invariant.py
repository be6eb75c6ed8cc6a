"""Invariants: a subject, a property and the precondition under which the property was always seen to hold."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from traincheck.vocab.facts import Facts, FactValue, value_of
from traincheck.vocab.occasion import Property, Subject

GENERAL, PIPELINE = "general", "pipeline"
ERROR, NOTICE = "error", "notice"


@dataclass(frozen=True, slots=True, order=True)
class Clause:
    """One condition on a fact: it has this value, or (`negated`) any other."""

    fact: str
    value: FactValue
    negated: bool = False

    def true_in(self, context: Facts) -> bool:
        return (value_of(context, self.fact) == self.value) is not self.negated

    def __str__(self) -> str:
        return f"{self.fact} {'is not' if self.negated else 'is'} {self.value}"


@dataclass(frozen=True, slots=True)
class Precondition:
    """A conjunction of clauses; the empty one is always true."""

    clauses: tuple[Clause, ...] = ()

    def true_in(self, context: Facts) -> bool:
        return all(clause.true_in(context) for clause in self.clauses)

    def __str__(self) -> str:
        return " and ".join(map(str, self.clauses)) or "always"


@dataclass(frozen=True, slots=True)
class Support:
    """On what an invariant rests: occasions that its precondition selected, distinct training steps and runs.

    `scripts` counts distinct programs among the runs: two runs of one script say less about other scripts.
    """

    occasions: int
    steps: int
    runs: int
    scripts: int


@dataclass(frozen=True, slots=True)
class Invariant:
    """One learned rule. `scope` is general (names of libraries only) or pipeline (names of the user's own code).

    `experience` holds the circumstances that were the same on all occasions it was learned from: of others it says
    nothing.
    `confidence` is the probability, derived in `inference/confidence.py`, that a further good run obeys it.
    `mute` is the reason why it is not checked, empty when it is. `origin` names the scripts it was learned from.
    """

    relation: str
    subject: Subject
    property: Property
    precondition: Precondition
    support: Support
    confidence: float
    severity: str
    scope: str
    sentence: str
    origin: tuple[str, ...] = ()
    mute: str = ""
    experience: Precondition = Precondition()
    id: str = field(default="")

    def applies(self, context: Facts) -> bool:
        """Whether the rule speaks of an occasion in this context."""
        return self.precondition.true_in(context) and self.experience.true_in(context)

    def __post_init__(self) -> None:
        if not self.id:
            object.__setattr__(self, "id", identity(self.relation, self.subject, self.property, self.precondition))


def identity(relation: str, subject: Subject, prop: Property, precondition: Precondition) -> str:
    """The stable id: ten hex digits over what the rule says, not over what it rests on."""
    clauses = (f"{clause.fact} {clause.value!r} {clause.negated}" for clause in precondition.clauses)
    told = "\x1f".join((relation, *subject, *prop, *clauses))
    return hashlib.sha256(told.encode()).hexdigest()[:10]
