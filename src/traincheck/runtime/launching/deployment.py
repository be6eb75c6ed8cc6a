"""Deployment: which rules of a book are checked on a program, and how severe it is to break them.

Note [Rules of one program]
A rule of a book is in one of these cases, for a program that is checked:

* *own*: it was learned from this very program. It is checked as the book says it, under the names of the program now.
* *general*: several programs bore it out. It is checked.
* *of another program*: one program bore it out, and that is not this one. Where the book was not named by the user (the
  library of the project, packs), the rule is not checked: nobody said that this program is like that one. Who names a
  book says so, and then what the rule speaks of decides. A rule whose calls are all torch's means the same here, so it
  is checked, in contexts like those it was learned in. A rule about functions of a package may mean the same: breaking
  it is a notice. A rule about functions and classes of the other script, and what only says how that program was
  configured, cannot speak of this one: it is left out, and counted.

What a rule is on other programs was decided when the book was learned, see Note [What a rule speaks of] in
inference/named_books.py: nothing but the book is read before the program starts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from traincheck.invariants.book import Book, LearnedRun
from traincheck.runtime.launching.program_identity import CheckedProgram
from traincheck.vocab.invariant import ERROR, GENERAL, Invariant, Precondition
from traincheck.vocab.program import ProgramIdentity, main_of_name


@dataclass(frozen=True, slots=True)
class Deployment:
    """A book as it is deployed on a program.

    `unused` counts the active rules that belong to other programs, whose names are `others`; `known_as` is another name
    under which the book knows the program, empty where there is none.
    """

    book: Book
    unused: int = 0
    others: tuple[str, ...] = ()
    known_as: str = ""


def deploy(book: Book, program: CheckedProgram, *, named: bool) -> Deployment:
    """The rules of `book` for `program`, so that `deployable` selects what is to be checked; `named` says that the user
    named the book. See Note [Rules of one program]."""
    scripts = sorted({script for rule in book.invariants for script in (*rule.origin, rule.program) if script})
    own = frozenset(script for script in scripts if program.is_one_of(script, book.runs))
    adapter = _Adapter(program, own, book.runs, named=named)
    kept: dict[str, Invariant] = {}
    unused, others = 0, set[str]()
    for rule in book.invariants:
        adapted = adapter.adapted(rule)
        if adapted is not None:
            kept.setdefault(adapted.id, adapted)
        elif not rule.mute:
            unused += 1
            others.update({rule.program} if rule.program else rule.origin)
    known_as = min(own - {program.script}, default="") if program.script not in own else ""
    return Deployment(Book(tuple(kept.values()), book.runs), unused, tuple(sorted(others)), known_as)


class _Adapter:
    """Adapts the rules of a book to a program. `own` are the names under which the book knows it; `named` says that the
    user named the book."""

    def __init__(
        self, program: CheckedProgram, own: frozenset[str], runs: Sequence[LearnedRun], *, named: bool
    ) -> None:
        self._program = program
        self._own = own
        self._named = named
        mains: dict[str, set[str]] = {}
        for run in runs:
            mains.setdefault(run.script, set()).add(ProgramIdentity.parse(run.program).main)
        self._mains = {script: frozenset(filter(None, names)) for script, names in mains.items()}

    def adapted(self, rule: Invariant) -> Invariant | None:
        """The rule as it is deployed; None where it belongs to another program."""
        is_own = not self._own.isdisjoint({rule.program} if rule.program else rule.origin)
        elsewhere_rule = rule.elsewhere if self._named else None
        if is_own or (rule.scope == GENERAL and not rule.program):
            if elsewhere_rule is not None and elsewhere_rule.severity == ERROR:
                rule = replace(rule, severity=ERROR, confidence=max(rule.confidence, elsewhere_rule.confidence))
            return self._renamed(rule) if is_own else rule
        if rule.program or elsewhere_rule is None:
            return None
        experience = Precondition((*rule.experience.clauses, *elsewhere_rule.experience.clauses))
        deployed = replace(rule, scope=GENERAL, severity=elsewhere_rule.severity, experience=experience)
        return replace(deployed, confidence=max(rule.confidence, elsewhere_rule.confidence))

    def _mains_of(self, script: str) -> frozenset[str]:
        """How `__main__` was called in runs of a script."""
        return self._mains.get(script) or frozenset((main_of_name(script),))

    def _renamed(self, rule: Invariant) -> Invariant:
        """An own rule, under the names that script and entry module have now."""
        script, main = self._program.script, self._program.identity.main or main_of_name(self._program.script)
        olds = {old for name in self._own & {*rule.origin, rule.program} for old in self._mains_of(name)} - {main}
        renamed = rule
        for old in sorted(olds):
            pattern = re.compile(rf"(?<![\w.]){re.escape(old)}\.(?=\w)")
            texts = [*renamed.subject, *renamed.property, renamed.sentence]
            api, grain, verb, target, detail, sentence = (pattern.sub(lambda _: f"{main}.", text) for text in texts)
            renamed = replace(
                renamed,
                subject=rule.subject._replace(api=api, grain=grain),
                property=rule.property._replace(verb=verb, object=target, detail=detail),
                sentence=sentence,
            )
        origin = tuple(sorted({*rule.origin, script}))
        of = script if rule.program else ""
        is_same = (renamed.subject, renamed.property, of) == (rule.subject, rule.property, rule.program)
        return replace(renamed, origin=origin, program=of, id=rule.id if is_same else "")
