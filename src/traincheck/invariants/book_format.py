"""The lines of a book: its header and its invariants in JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec

from traincheck.vocab.facts import FactValue
from traincheck.vocab.invariant import Clause, Conjunction, Elsewhere, Invariant, Precondition, Support
from traincheck.vocab.occasion import Property, Subject

FORMAT = 3
"""Format of a book; every change of a line takes the next number.

1 (0.1.0): header with format, kind, traincheck, runs (script, digest, steps) and the number of invariants; a line with
id, relation, subject, property, precondition, experience, support, confidence, severity, scope, origin, sentence, mute.

2: `otherwise`, further alternatives of the precondition, and `program`, both omitted if empty; a condition may say
`contains` or `lacks`.

3: `program` of a run, the identity of the program, and `elsewhere`, both omitted if empty.
"""

KIND = "traincheck book"

Count = Annotated[int, msgspec.Meta(ge=0)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]


class KindLine(msgspec.Struct):
    """The part of a header that shows whether the rest can be read."""

    kind: str = ""
    format: int = 0


class RunEntry(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A run that the book was learned from."""

    script: str
    digest: str
    steps: Count
    program: str = ""


class HeaderLine(msgspec.Struct, forbid_unknown_fields=True):
    """The first line of a book."""

    format: int
    kind: str
    traincheck: str
    runs: list[RunEntry]
    invariants: Count


class SubjectEntry(msgspec.Struct, forbid_unknown_fields=True):
    """The subject of the rule."""

    api: str
    grain: str


class PropertyEntry(msgspec.Struct, forbid_unknown_fields=True):
    """The property of the rule."""

    verb: str
    object: str
    detail: str


class ClauseEntry(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A condition on a fact, with one of `is`, `is_not`, `contains` and `lacks`."""

    fact: str
    is_: FactValue | msgspec.UnsetType = msgspec.field(default=msgspec.UNSET, name="is")
    is_not: FactValue | msgspec.UnsetType = msgspec.UNSET
    contains: FactValue | msgspec.UnsetType = msgspec.UNSET
    lacks: FactValue | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        if len(list(self._clauses_present())) != 1:
            verbs = "`is`, `is_not`, `contains` or `lacks`"
            raise ValueError(f"the condition on the fact {self.fact!r} has to say one of {verbs}")

    def _clauses_present(self) -> Iterator[Clause]:
        if self.is_ is not msgspec.UNSET:
            yield Clause(self.fact, self.is_)
        if self.is_not is not msgspec.UNSET:
            yield Clause(self.fact, self.is_not, negated=True)
        if self.contains is not msgspec.UNSET:
            yield Clause(self.fact, self.contains, contains=True)
        if self.lacks is not msgspec.UNSET:
            yield Clause(self.fact, self.lacks, negated=True, contains=True)

    @classmethod
    def of(cls, clause: Clause) -> ClauseEntry:
        """The entry for a condition."""
        if clause.contains:
            return cls(clause.fact, lacks=clause.value) if clause.negated else cls(clause.fact, contains=clause.value)
        return cls(clause.fact, is_not=clause.value) if clause.negated else cls(clause.fact, is_=clause.value)

    def clause(self) -> Clause:
        """The condition of the entry."""
        return next(self._clauses_present())


class SupportEntry(msgspec.Struct, forbid_unknown_fields=True):
    """The evidence of the rule."""

    occasions: Count
    steps: Count
    runs: Count
    scripts: Count


class ElsewhereEntry(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """How the rule is treated on programs that it was not learned from."""

    severity: Literal["error", "notice"]
    confidence: Share
    experience: list[ClauseEntry] = []

    @classmethod
    def of(cls, elsewhere: Elsewhere) -> ElsewhereEntry:
        """The entry for the treatment of a rule elsewhere."""
        return cls(elsewhere.severity, elsewhere.confidence, _entries(elsewhere.experience.clauses))  # type: ignore[arg-type]

    def elsewhere(self) -> Elsewhere:
        """The treatment that the entry describes."""
        return Elsewhere(self.severity, self.confidence, Precondition(_clauses(self.experience)))


class InvariantLine(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """One invariant. The order of the fields is the order in the file, with those that a reader of a diff needs first.

    Unknown fields are an error, because they would be lost when the book is written again.
    """

    id: str
    relation: str
    subject: SubjectEntry
    property: PropertyEntry
    precondition: list[ClauseEntry]
    otherwise: list[list[ClauseEntry]] = []  # msgspec copies it
    experience: list[ClauseEntry]
    support: SupportEntry
    confidence: Share
    severity: Literal["error", "notice"]
    scope: Literal["general", "pipeline"]
    origin: list[str]
    sentence: str
    mute: str
    program: str = ""
    elsewhere: ElsewhereEntry | None = None

    @classmethod
    def of(cls, rule: Invariant) -> InvariantLine:
        """The line for an invariant."""
        support = rule.support
        return cls(
            id=rule.id,
            relation=rule.relation,
            subject=SubjectEntry(*rule.subject),
            property=PropertyEntry(*rule.property),
            precondition=_entries(rule.precondition.clauses),
            otherwise=[_entries(clauses) for clauses in rule.precondition.otherwise],
            experience=_entries(rule.experience.clauses),
            support=SupportEntry(support.occasions, support.steps, support.runs, support.scripts),
            confidence=rule.confidence,
            severity=rule.severity,  # type: ignore[arg-type]  # reading checks it
            scope=rule.scope,  # type: ignore[arg-type]
            origin=[printable(script) for script in rule.origin],
            sentence=rule.sentence,
            mute=rule.mute,
            program=printable(rule.program),
            elsewhere=ElsewhereEntry.of(rule.elsewhere) if rule.elsewhere is not None else None,
        )

    def invariant(self) -> Invariant:
        """The invariant of the line."""
        support = self.support
        return Invariant(
            relation=self.relation,
            subject=Subject(self.subject.api, self.subject.grain),
            property=Property(self.property.verb, self.property.object, self.property.detail),
            precondition=Precondition(_clauses(self.precondition), tuple(map(_clauses, self.otherwise))),
            support=Support(support.occasions, support.steps, support.runs, support.scripts),
            confidence=self.confidence,
            severity=self.severity,
            scope=self.scope,
            experience=Precondition(_clauses(self.experience)),
            sentence=self.sentence,
            origin=tuple(self.origin),
            mute=self.mute,
            program=self.program,
            elsewhere=self.elsewhere.elsewhere() if self.elsewhere is not None else None,
            id=self.id,
        )


def _entries(clauses: Conjunction) -> list[ClauseEntry]:
    return [ClauseEntry.of(clause) for clause in clauses]


def _clauses(entries: list[ClauseEntry]) -> Conjunction:
    return tuple(entry.clause() for entry in entries)


def printable(text: str) -> str:
    """`text` with characters escaped that UTF-8 cannot hold: file names may hold any bytes, and JSON may not."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
