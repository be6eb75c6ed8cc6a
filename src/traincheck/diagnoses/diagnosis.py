"""What an entry of the catalogue says, and which violations it explains."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TypeAlias

from traincheck.vocab.finding import Violation

Patterns: TypeAlias = str | tuple[str, ...]
"""A text in which `*` stands for any text, or several of which one must match."""


COMPARES = 80
"""Priorities from this number on are those of diagnoses that only say that a run differs from good runs."""


@dataclass(frozen=True, slots=True)
class Match:
    """Selects violations. An empty field accepts everything; all other fields must match.

    `relation` to `grain` look at the rule, `stage`, `note` and `evidence` at the violation. Settings are rules about
    how one program is configured; only a match with `setting` accepts them. Use `test` for a condition that no field
    can state.
    """

    relation: Patterns = ""
    verb: Patterns = ""
    object: Patterns = ""
    detail: Patterns = ""
    api: Patterns = ""
    grain: Patterns = ""
    stage: Patterns = ""
    note: Patterns = ""
    evidence: Patterns = ""
    setting: bool = False
    test: Callable[[Violation], bool] | None = None

    def accepts(self, violation: Violation) -> bool:
        """Whether this is such a violation."""
        rule, prop = violation.invariant, violation.invariant.property
        return (
            self.setting is bool(rule.program)
            and fits(self.verb, prop.verb)
            and fits(self.object, prop.object)
            and fits(self.detail, prop.detail)
            and fits(self.relation, rule.relation)
            and fits(self.api, rule.subject.api)
            and fits(self.grain, rule.subject.grain)
            and fits(self.stage, violation.stage)
            and fits(self.note, violation.note)
            and (not self.evidence or any(fits(self.evidence, line) for line in violation.evidence))
            and (self.test is None or self.test(violation))
        )

    @property
    def specificity(self) -> int:
        """How many fields are set. The most specific match decides between two diagnoses."""
        return sum(bool(getattr(self, field.name)) for field in fields(self))


def fits(patterns: Patterns, text: str) -> bool:
    """Whether `text` matches one of the patterns as a whole; an empty pattern matches everything."""
    if not patterns:
        return True
    if isinstance(patterns, str):
        return text == patterns if "*" not in patterns else _regex(patterns).fullmatch(text) is not None
    return any(fits(pattern, text) for pattern in patterns)


@functools.cache
def _regex(pattern: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, pattern.split("*"))), re.DOTALL)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One kind of trouble in a training program.

    `slug` is its stable name; `title`, `problem` (what is wrong) and `advice` (what to check, the likeliest first) are
    what a finding shows. `example` is a piece of code or output with this trouble. Of several diagnoses that begin in
    the same step, the one with the lowest `priority` leads the finding, for `priority_reason`. A diagnosis that
    `stands_alone` neither causes others nor follows from them, so TrainCheck reports it as a finding of its own, with
    those about the same variables.
    `former_titles` are titles in reports of older versions. `url` is a page that you host about it.
    """

    slug: str
    title: str
    problem: str
    advice: tuple[str, ...]
    explains: tuple[Match, ...]
    priority: int
    priority_reason: str
    example: str
    stands_alone: bool = False
    former_titles: tuple[str, ...] = ()
    url: str = ""

    def specificity_for(self, violation: Violation) -> int:
        """How specific the best match for this violation is; -1 where the diagnosis does not explain it."""
        return max((match.specificity for match in self.explains if match.accepts(violation)), default=-1)
