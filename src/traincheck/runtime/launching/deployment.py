"""Decides which rules of a book apply to a program, and how severe a violation is.

Note [Rules of one program]
For a checked program, each rule of a book is in one of three groups:

* *own*: the rule was learned from this program. TrainCheck checks it under the program's current names.
* *general*: several programs confirmed the rule. TrainCheck checks it.
* *of another program*: only one other program confirmed the rule. If you did not name the book (the library of the
  project, packs), TrainCheck skips the rule, because the programs may differ.

If you name the book, you state that the programs are comparable. Then the calls in the rule decide. A rule about torch
calls only means the same here, so TrainCheck checks it in contexts like those it was learned in. A rule about functions
of a package may mean the same, so its violation is a notice. TrainCheck skips and counts rules about the other script's
functions and classes, and rules about its configuration.

Learning has already stored how a rule applies to other programs, see Note [What a rule speaks of] in
inference/named_books.py. So TrainCheck reads only the book before the program starts.
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

    `unused` counts the active rules of other programs, and `others` has the names of these programs. `known_as` is
    another name of this program in the book, or empty.
    """

    book: Book
    unused: int = 0
    others: tuple[str, ...] = ()
    known_as: str = ""


def deploy(book: Book, program: CheckedProgram, *, named: bool) -> Deployment:
    """The rules of `book` for `program`; `deployable` selects the rules to check. `named` says that you named the book.

    See Note [Rules of one program].
    """
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
    """Adapts the rules of a book to a program.

    `own` has the program's names in the book; `named` says that you named the book.
    """

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
        """The rule as it is deployed; None if it belongs to another program."""
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
        """The names of `__main__` in runs of a script."""
        return self._mains.get(script) or frozenset((main_of_name(script),))

    def _renamed(self, rule: Invariant) -> Invariant:
        """An own rule under the current names of the script and the entry module."""
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
