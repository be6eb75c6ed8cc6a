"""The lines of a book: what its header and each invariant look like in JSON."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from traincheck.vocab.facts import FactValue
from traincheck.vocab.invariant import Clause, Invariant, Precondition, Support
from traincheck.vocab.occasion import Property, Subject

FORMAT = 1
"""Format of a book; every change of what a line may say takes the next number.

1 (0.1.0): header with format, kind, traincheck, runs (script, digest, steps) and the number of invariants; a line with
id, relation, subject, property, precondition, experience, support, confidence, severity, scope, origin, sentence, mute.
"""

KIND = "traincheck book"

Count = Annotated[int, msgspec.Meta(ge=0)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]


class KindLine(msgspec.Struct):
    """As much of a header as tells whether the rest of it can be understood."""

    kind: str = ""
    format: int = 0


class RunEntry(msgspec.Struct, forbid_unknown_fields=True):
    """A run that the book was learned from."""

    script: str
    digest: str
    steps: Count


class HeaderLine(msgspec.Struct, forbid_unknown_fields=True):
    """The first line of a book."""

    format: int
    kind: str
    traincheck: str
    runs: list[RunEntry]
    invariants: Count


class SubjectEntry(msgspec.Struct, forbid_unknown_fields=True):
    """Whose occasions the rule is about."""

    api: str
    grain: str


class PropertyEntry(msgspec.Struct, forbid_unknown_fields=True):
    """What holds on them."""

    verb: str
    object: str
    detail: str


class ClauseEntry(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A condition on a fact, which says one of `is` and `is_not`."""

    fact: str
    is_: FactValue | msgspec.UnsetType = msgspec.field(default=msgspec.UNSET, name="is")
    is_not: FactValue | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        if (self.is_ is msgspec.UNSET) is (self.is_not is msgspec.UNSET):
            raise ValueError(f"the condition on the fact {self.fact!r} has to say either `is` or `is_not`")

    @classmethod
    def of(cls, clause: Clause) -> ClauseEntry:
        if clause.negated:
            return cls(clause.fact, is_not=clause.value)
        return cls(clause.fact, is_=clause.value)

    def clause(self) -> Clause:
        if self.is_ is not msgspec.UNSET:
            return Clause(self.fact, self.is_)
        assert self.is_not is not msgspec.UNSET
        return Clause(self.fact, self.is_not, negated=True)


class SupportEntry(msgspec.Struct, forbid_unknown_fields=True):
    """What the rule rests on."""

    occasions: Count
    steps: Count
    runs: Count
    scripts: Count


class InvariantLine(msgspec.Struct, forbid_unknown_fields=True):
    """One invariant. The order of the fields is the order in the file: what a reader of a diff looks for comes first.

    Unknown fields are refused, because they would be lost when the book is written again.
    """

    id: str
    relation: str
    subject: SubjectEntry
    property: PropertyEntry
    precondition: list[ClauseEntry]
    experience: list[ClauseEntry]
    support: SupportEntry
    confidence: Share
    severity: Literal["error", "notice"]
    scope: Literal["general", "pipeline"]
    origin: list[str]
    sentence: str
    mute: str

    @classmethod
    def of(cls, told: Invariant) -> InvariantLine:
        """The line for an invariant."""
        support = told.support
        return cls(
            id=told.id,
            relation=told.relation,
            subject=SubjectEntry(*told.subject),
            property=PropertyEntry(*told.property),
            precondition=[ClauseEntry.of(clause) for clause in told.precondition.clauses],
            experience=[ClauseEntry.of(clause) for clause in told.experience.clauses],
            support=SupportEntry(support.occasions, support.steps, support.runs, support.scripts),
            confidence=told.confidence,
            severity=told.severity,  # type: ignore[arg-type]  # reading checks it
            scope=told.scope,  # type: ignore[arg-type]
            origin=[tellable(script) for script in told.origin],
            sentence=told.sentence,
            mute=told.mute,
        )

    def invariant(self) -> Invariant:
        """The invariant that the line tells."""
        support = self.support
        return Invariant(
            relation=self.relation,
            subject=Subject(self.subject.api, self.subject.grain),
            property=Property(self.property.verb, self.property.object, self.property.detail),
            precondition=Precondition(tuple(entry.clause() for entry in self.precondition)),
            support=Support(support.occasions, support.steps, support.runs, support.scripts),
            confidence=self.confidence,
            severity=self.severity,
            scope=self.scope,
            experience=Precondition(tuple(entry.clause() for entry in self.experience)),
            sentence=self.sentence,
            origin=tuple(self.origin),
            mute=self.mute,
            id=self.id,
        )


def tellable(text: str) -> str:
    """`text` with what UTF-8 cannot hold written out: file names may hold any bytes, and JSON may not."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
