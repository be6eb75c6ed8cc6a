"""Invariants: a subject, a property, and the precondition under which the property always held."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from itertools import product
from typing import TypeAlias

from traincheck.vocab.facts import Facts, FactValue, names_in, value_of
from traincheck.vocab.occasion import Property, Subject

GENERAL, PIPELINE = "general", "pipeline"
ERROR, NOTICE = "error", "notice"


@dataclass(frozen=True, slots=True, order=True)
class Clause:
    """A condition on a fact: it has this value, or (`contains`) this name among its joined ones. `negated` inverts it.

    A fact that the context lacks has the value None.
    """

    fact: str
    value: FactValue
    negated: bool = False
    contains: bool = False

    def true_of(self, value: FactValue) -> bool:
        """Whether the condition is met by this value of the fact."""
        met = self.value in names_in(value) if self.contains else value == self.value
        return met is not self.negated

    def true_in(self, context: Facts) -> bool:
        return self.true_of(value_of(context, self.fact))

    def __invert__(self) -> Clause:
        """The condition that is true where this one is not."""
        return replace(self, negated=not self.negated)

    @property
    def verb(self) -> str:
        """is, is_not, contains or lacks."""
        if self.contains:
            return "lacks" if self.negated else "contains"
        return "is_not" if self.negated else "is"

    def __str__(self) -> str:
        return f"{self.fact} {self.verb.replace('_', ' ')} {self.value}"


Conjunction: TypeAlias = tuple[Clause, ...]
"""Clauses that must all be true; the empty one always is."""


@dataclass(frozen=True, slots=True)
class Precondition:
    """True if all of `clauses` are, or all clauses of one of the alternatives in `otherwise`.

    Without any clause it is always true.
    """

    clauses: Conjunction = ()
    otherwise: tuple[Conjunction, ...] = ()

    @property
    def alternatives(self) -> tuple[Conjunction, ...]:
        """All conjunctions, any of which suffices."""
        return (self.clauses, *self.otherwise)

    @property
    def size(self) -> int:
        """The number of clauses in all alternatives."""
        return sum(map(len, self.alternatives))

    def true_in(self, context: Facts) -> bool:
        return all(clause.true_in(context) for clause in self.clauses) or any(
            all(clause.true_in(context) for clause in other) for other in self.otherwise
        )

    def implies(self, other: Precondition) -> bool:
        """Whether `other` is true wherever this one is, for all values of the facts."""
        # It is, unless one of our conjunctions can be true while some clause of each of theirs is false.
        return all(
            _contradictory((*ours, *(~clause for clause in broken)))
            for ours in self.alternatives
            for broken in product(*other.alternatives)
        )

    def __str__(self) -> str:
        if not all(self.alternatives):
            return "always"
        between = ", or " if self.otherwise and any(len(clauses) > 1 for clauses in self.alternatives) else " or "
        return between.join(" and ".join(map(str, clauses)) for clauses in self.alternatives)


def _contradictory(clauses: Conjunction) -> bool:
    """Whether no context can meet all of `clauses`."""
    by_fact: dict[str, list[Clause]] = {}
    for clause in clauses:
        by_fact.setdefault(clause.fact, []).append(clause)
    return not all(map(_possible, by_fact.values()))


def _possible(clauses: list[Clause]) -> bool:
    """Whether some value of the fact of `clauses` satisfies them all."""
    for clause in clauses:
        if not clause.contains and not clause.negated:
            return all(other.true_of(clause.value) for other in clauses)
    # The remaining clauses exclude values (a new value satisfies them), or require or exclude names.
    required = {clause.value for clause in clauses if clause.contains and not clause.negated}
    return not any(clause.contains and clause.negated and clause.value in required for clause in clauses)


@dataclass(frozen=True, slots=True)
class Support:
    """The evidence of an invariant: occasions that its precondition selected, distinct training steps and runs.

    `scripts` counts distinct programs among the runs: two runs of one script say less about other scripts.
    """

    occasions: int
    steps: int
    runs: int
    scripts: int


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """How a rule is treated on programs that it was not learned from.

    `experience` holds circumstances that were the same in all runs, and that the program itself is not expected to
    change. On other programs, the rule does not apply without them.
    """

    severity: str
    confidence: float
    experience: Precondition = Precondition()


@dataclass(frozen=True, slots=True)
class Invariant:
    """One learned rule. `scope` is general (several programs support it) or pipeline (one program does).

    `experience` holds the circumstances that were the same on all occasions that the rule was learned from; it does not
    apply in others. `confidence` is the probability, derived in `inference/confidence.py`, that a further good run
    obeys it. `mute` is the reason why it is not checked, or empty. `origin` names the scripts that it was learned from.
    `program` names the one script of a rule that records how a program is configured. `elsewhere` is its treatment on
    programs that it was not learned from, if the user names the book; None if it does not apply there, as in books of
    older versions.
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
    program: str = ""
    elsewhere: Elsewhere | None = None
    id: str = field(default="")

    def applies(self, context: Facts) -> bool:
        """Whether the rule applies to an occasion in this context."""
        return self.precondition.true_in(context) and self.experience.true_in(context)

    def __post_init__(self) -> None:
        if not self.id:
            new_id = identity(self.relation, self.subject, self.property, self.precondition, self.program)
            object.__setattr__(self, "id", new_id)


def identity(relation: str, subject: Subject, prop: Property, precondition: Precondition, program: str = "") -> str:
    """The stable id: ten hex digits over the statement of the rule, without its evidence."""
    clauses = [_clause_text(clause) for clause in precondition.clauses]
    for other in precondition.otherwise:
        clauses += ["or", *map(_clause_text, other)]
    text = "\x1f".join((relation, *subject, *prop, *clauses, *([program] if program else [])))
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def _clause_text(clause: Clause) -> str:
    """A clause as it enters an id."""
    return f"{clause.fact} {clause.value!r} {clause.negated}{' contains' if clause.contains else ''}"


def builtin_rule(relation: str, subject: Subject, prop: Property, severity: str, sentence: str) -> Invariant:
    """A rule of this relation that no good run has shown."""
    return Invariant(
        relation=relation,
        subject=subject,
        property=prop,
        precondition=Precondition(),
        support=Support(0, 0, 0, 0),
        confidence=1.0,
        severity=severity,
        scope=GENERAL,
        sentence=sentence,
    )
