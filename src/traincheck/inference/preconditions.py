"""Preconditions, learned by contrast.

The weakest small conjunction of context facts that is true on occasions where the property held and on none where it
did not. How often the property held is no criterion: the rule that would have saved BLOOM-176B held on 1 pair in 39.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from traincheck.vocab.facts import Facts
from traincheck.vocab.invariant import Clause, Precondition

MOST_CLAUSES = 2
"""Two facts suffice for every honest exception met so far; each further one multiplies the ways to fit by chance."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """How a property fared in one context of one run."""

    context: Facts
    run: int
    held: int
    failed: int
    windows: int


@dataclass(frozen=True, slots=True)
class Inseparable:
    """Why there is no precondition: no clause tells a context where the property held from one where it failed."""

    good: Facts
    bad: Facts

    def __str__(self) -> str:
        differing = [pair for pair in self.good if pair not in self.bad]
        if not differing:
            return f"it both held and failed in the context ({_said(self.good)})"
        return (
            f"no small condition separates ({_said(self.good)}) where it held from ({_said(self.bad)}) where it failed"
        )


def _said(context: Facts) -> str:
    return ", ".join(f"{name} {value}" for name, value in context)


def learn(evidence: Sequence[Evidence]) -> Precondition | Inseparable:
    """The weakest precondition that `evidence` allows.

    Of the conjunctions that no failing context satisfies, the one with the fewest clauses is taken; among equals the
    one that covers most runs, then most contexts, then most occasions, then the first by name (so that the order of the
    runs does not matter). Where several facts separate equally well nothing tells which of them is the reason, and the
    rule is to speak only where they agree: all of them enter.
    """
    bad = [row.context for row in evidence if row.failed]
    good = [row for row in evidence if not row.failed]
    if not bad:
        return Precondition()
    if not good:
        worst = max(evidence, key=lambda row: (row.failed, row.context))
        return Inseparable(worst.context, worst.context)
    for size in range(1, MOST_CLAUSES + 1):
        found = _best(_clauses(good, bad), good, bad, size)
        if found is not None:
            return found
    first = min(good, key=lambda row: row.context)
    nearest = max((row for row in evidence if row.failed), key=lambda row: len(set(row.context) & set(first.context)))
    return Inseparable(first.context, nearest.context)


def _clauses(good: Sequence[Evidence], bad: Sequence[Facts]) -> list[Clause]:
    """Clauses worth trying: a value that some good context has, or the negation of one that some bad context has."""
    names = set.intersection(*({name for name, _ in row.context} for row in good))
    positive = {Clause(name, value) for row in good for name, value in row.context if name in names}
    negative = {Clause(name, value, negated=True) for context in bad for name, value in context if name in names}
    return sorted(positive | negative, key=repr)


SYMPTOMS = frozenset(("held", "grads"))
"""Facts that a defect itself brings about (nobody holds the parameter, there are no gradients): a value of theirs that
no good run ever showed is no reason to keep quiet."""

EXCUSES = (Clause("grads", "zero", negated=True),)
"""Values of such facts that honest runs may come to (a loss at its floor), unless good runs showed otherwise."""


def experience(selected: Sequence[Evidence], precondition: Precondition) -> Precondition:
    """The circumstances that were the same in all evidence that `precondition` selected, less what it says already.

    A rule learned without autocast, closures or evaluation says nothing of runs with them.
    """
    same = set.intersection(*(set(row.context) for row in selected))
    said = {clause.fact for clause in precondition.clauses}
    constant = [Clause(*pair) for pair in sorted(same) if pair[0] not in SYMPTOMS | said]
    seen = {pair for row in selected for pair in row.context}
    told = {name for row in selected for name, _ in row.context}
    excuses = [clause for clause in EXCUSES if clause.fact in told - said]
    return Precondition((*constant, *(clause for clause in excuses if (clause.fact, clause.value) not in seen)))


def _best(clauses: list[Clause], good: Sequence[Evidence], bad: Sequence[Facts], size: int) -> Precondition | None:
    best: tuple[tuple[int, int, int], Precondition] | None = None
    for chosen in combinations(clauses, size):
        candidate = Precondition(chosen)
        if any(candidate.true_in(context) for context in bad):
            continue
        covered = [row for row in good if candidate.true_in(row.context)]
        score = (len({row.run for row in covered}), len({row.context for row in covered}), sum(r.held for r in covered))
        if covered and (best is None or score > best[0]):
            best = (score, candidate)
    if best is None or size > 1:
        return best[1] if best else None
    return Precondition(_agreeing(best[1].clauses[0], clauses, good, bad))


def _agreeing(
    chosen: Clause, clauses: Sequence[Clause], good: Sequence[Evidence], bad: Sequence[Facts]
) -> tuple[Clause, ...]:
    """`chosen` and the clauses on other facts that no evidence tells from it; a value goes before a negation."""
    covered = [chosen.true_in(row.context) for row in good]
    found: dict[str, Clause] = {}
    for clause in sorted(clauses, key=lambda clause: (clause.negated, repr(clause))):
        if clause.fact in found or any(clause.true_in(context) for context in bad):
            continue
        if [clause.true_in(row.context) for row in good] == covered:
            found[clause.fact] = clause
    return tuple(found[fact] for fact in sorted(found))
