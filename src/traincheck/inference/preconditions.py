"""Preconditions, learned by contrast.

The weakest small condition on a context that is true on occasions where the property held and on none where it did not.
How often the property held is no criterion: the rule that would have saved BLOOM-176B held on 1 pair in 39.

Note [Search]
Clauses, and pairs of them, that no failing context satisfies are *pure*; pure ones that chance does not explain are
*sound*, see Note [False discovery] in chance.py. Of the sound ones that is taken which covers most runs, then most
contexts, then most occasions, then the first by name. A pair goes before a clause by itself only where what it covers
beyond that is sound as well. The same is done again for what is not covered yet: each further conjunction is an
alternative. It has to be sound without what the others cover, and seen in several runs, because on their account it
will be believed of other programs.

Where several conditions cover the same, nothing tells which of them is the reason. The rule is to speak only where they
agree: all of them enter.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations, groupby
from math import comb
from typing import NamedTuple

from traincheck.inference.chance import ALPHA, Observed, by_context, by_occasion, by_window
from traincheck.inference.contexts import ClauseOrder, Contexts, Evidence, order_of
from traincheck.vocab.facts import Facts
from traincheck.vocab.invariant import Clause, Conjunction, Precondition

MOST_ALTERNATIVES = 3
"""A rule with more cases than this is several rules, or none."""

LEAST_RUNS = 2
"""Runs that bear out an alternative, where there are as many: see Note [Search]."""


@dataclass(frozen=True, slots=True)
class Inseparable:
    """Why there is no precondition: no condition tells a context where the property held from one where it failed."""

    good: Facts
    bad: Facts

    def __str__(self) -> str:
        differing = [pair for pair in self.good if pair not in self.bad]
        if not differing:
            return f"it both held and failed in the context ({_context_text(self.good)})"
        return f"no small condition separates ({_context_text(self.good)}) where it held from ({_context_text(self.bad)}) where it failed"


def _context_text(context: Facts) -> str:
    return ", ".join(f"{name} {value}" for name, value in context)


@dataclass(frozen=True, slots=True)
class Unproven:
    """Why there is no precondition: the best condition may well separate by chance, see Note [False discovery]."""

    condition: Precondition
    everything: Observed
    selected: Observed
    expected: float

    def __str__(self) -> str:
        seen, failing, windows = self.everything.pairs, self.everything.failing, self.selected.windows
        return (
            f"'{self.condition}' may separate by chance: of {seen} observations {failing} failed, none of them in the "
            f"{windows} windows that it selects; where nothing separates, {self.expected:.2g} such conditions are to "
            f"be expected, and {ALPHA:g} at most is allowed"
        )


def learn(evidence: Iterable[Evidence]) -> Precondition | Inseparable | Unproven:
    """The weakest precondition that `evidence` allows, whatever its order; or why there is none.

    See Note [Search]. Equal evidence, as the several levels of one call have it, is judged once.
    """
    merged: dict[tuple[Facts, int], Evidence] = {}
    for row in evidence:
        key = (row.context, row.run)
        merged[key] = merged[key] + row if key in merged else row
    return _learn(frozenset(merged.values()))


@lru_cache(maxsize=4096)
def _learn(evidence: frozenset[Evidence]) -> Precondition | Inseparable | Unproven:
    contexts = Contexts(evidence)
    if not contexts.bad:
        return Precondition()
    if not contexts.good:
        worst = max(evidence, key=lambda row: (row.failed, repr(row.context))).context
        return Inseparable(worst, worst)
    best = _Case(contexts, contexts.good).solved()
    if not isinstance(best, _Choice):
        return best or _nearest(contexts)
    chosen = [best]
    while len(chosen) < MOST_ALTERNATIVES and (rest := contexts.good & ~_union(chosen)):
        best = _Case(contexts, rest).solved(_least_runs(contexts))
        if not isinstance(best, _Choice):
            break
        chosen = _needed([*chosen, best])
    chosen.sort(key=lambda choice: (*contexts.rank(choice.covered), order_of(choice.clauses)))
    return Precondition(chosen[0].clauses, tuple(choice.clauses for choice in chosen[1:]))


def _least_runs(contexts: Contexts) -> int:
    return min(LEAST_RUNS, contexts.runs_in(contexts.good))


def _nearest(contexts: Contexts) -> Inseparable:
    """The good context that arose most often, and the failing one that is most like it."""
    good = contexts.foremost(contexts.good, contexts.pairs)
    facts = set(contexts.facts[good])
    bad = contexts.foremost(contexts.bad, lambda bit: len(facts.intersection(contexts.facts[bit])))
    return Inseparable(contexts.facts[good], contexts.facts[bad])


class _Choice(NamedTuple):
    """A pure conjunction and the good contexts that it is true in."""

    covered: int
    clauses: Conjunction


def _union(chosen: Iterable[_Choice]) -> int:
    covered = 0
    for choice in chosen:
        covered |= choice.covered
    return covered


def _needed(chosen: list[_Choice]) -> list[_Choice]:
    """`chosen` without those of which the others cover everything."""
    for choice in sorted(chosen, key=lambda choice: (choice.covered.bit_count(), order_of(choice.clauses))):
        others = [other for other in chosen if other is not choice]
        if not choice.covered & ~_union(others):
            chosen = others
    return chosen


Ties = dict[int, list[tuple[int, ...]]]
"""For each set of contexts the conjunctions (sets of contexts, to be intersected) that cover just it."""


class _Case:
    """The search for one conjunction that covers most of `rest`, which is good, and nothing that is bad."""

    def __init__(self, contexts: Contexts, rest: int) -> None:
        self._contexts = contexts
        self._rest = rest
        judged = rest | contexts.bad
        self._everything = contexts.observed(judged)
        rivals = [contexts.observed(mask & judged) for mask in contexts.columns]
        self._occasions = sorted(rival.occasions for rival in rivals)
        self._windows = sorted(rival.windows for rival in rivals)
        self._in_contexts = sorted(rival.contexts for rival in rivals)

    def solved(self, least: int = 1) -> _Choice | Unproven | None:
        """The best sound conjunction that was seen in `least` runs; what is nearest to one, if anything, if none is."""
        single, pair = self._best(self._singles(), 1, least), self._best(self._pairs(), 2, least)
        if isinstance(single, _Choice) and isinstance(pair, _Choice):
            return pair if self._earned(pair, single) else single
        if isinstance(single, _Choice) or isinstance(pair, _Choice):
            return single if isinstance(single, _Choice) else pair
        return min(filter(None, (single, pair)), key=lambda doubt: doubt.expected, default=None)

    def _earned(self, pair: _Choice, single: _Choice) -> bool:
        """Whether what a pair covers beyond a single clause is worth the second clause."""
        left = self._rest & ~single.covered
        beyond = pair.covered & left
        enough = self._contexts.runs_in(beyond) >= _least_runs(self._contexts)
        return bool(beyond) and enough and _Case(self._contexts, left)._doubt(beyond, 2) is None

    def _singles(self) -> Ties:
        """Pure clauses by what they cover."""
        ties: Ties = {}
        for mask in self._contexts.columns:
            if not mask & self._contexts.bad and mask & self._rest:
                ties.setdefault(mask & self._rest, []).append((mask,))
        return ties

    def _pairs(self) -> Ties:
        """Pure pairs of clauses, none of them pure by itself, by what they cover."""
        bad, rest = self._contexts.bad, self._rest
        ties: Ties = {}
        impure = [mask for mask in self._contexts.columns if mask & bad and mask & rest]
        for first, second in combinations(impure, 2):
            both = first & second
            if not both & bad and both & rest:
                ties.setdefault(both & rest, []).append((first, second))
        return ties

    def _best(self, ties: Ties, size: int, least: int) -> _Choice | Unproven | None:
        """The first sound one of `found`, or why the first of all is none."""
        first: Unproven | None = None
        fewest = self._fewest_contexts(size)
        for new in self._in_order(ties):
            if self._contexts.runs_in(new) < least or (first and new.bit_count() < fewest):
                continue
            doubt = self._doubt(new, size)
            if doubt is None:
                return self._agreeing(ties[new])
            first = first or replace(doubt, condition=Precondition(self._agreeing(ties[new]).clauses))
        return first

    def _in_order(self, ties: Ties) -> Iterator[int]:
        """What is covered, in the order of Note [Search]; the dearer measures only for equals by the cheaper ones."""

        def roughly(new: int) -> tuple[int, int]:
            return -self._contexts.runs_in(new), -new.bit_count()

        for _, equal in groupby(sorted(ties, key=roughly), key=roughly):
            yield from sorted(
                equal, key=lambda new: (-self._contexts.held(new), min(map(self._clause_order, ties[new])))
            )

    def _clause_order(self, masks: tuple[int, ...]) -> ClauseOrder:
        return tuple(sorted(self._contexts.clause_orders[mask] for mask in masks))

    def _agreeing(self, ties: list[tuple[int, ...]]) -> _Choice:
        """The conditions that cover the same, in one."""
        masks = {mask for conjunction in ties for mask in conjunction}
        covered = self._contexts.good
        for mask in masks:
            covered &= mask
        clauses = {clause for mask in masks for clause in self._contexts.columns[mask].values()}
        return _Choice(covered, tuple(_without_implied(clauses)))

    def _doubt(self, new: int, size: int) -> Unproven | None:
        """Why a condition of `size` clauses that covers `new` is not sound, None where it is."""
        everything, selected = self._everything, self._contexts.observed(new)
        expected = max(
            self._tried(self._occasions, selected.occasions, size) * by_occasion(everything, selected),
            self._tried(self._windows, selected.windows, size) * by_window(everything, selected),
        )
        if self._provable(size):
            tried = self._tried(self._in_contexts, selected.contexts, size)
            expected = max(expected, tried * by_context(everything, selected.contexts))
        return None if expected <= ALPHA else Unproven(Precondition(), everything, selected, expected)

    def _provable(self, size: int) -> bool:
        """Whether a condition that separates all contexts would be sound, whatever number was tried."""
        everything = self._everything
        good = everything.contexts - everything.bad
        return comb(len(self._in_contexts), size) * by_context(everything, good) <= ALPHA

    def _fewest_contexts(self, size: int) -> int:
        """How many contexts a sound condition covers, at the least: the fewer, the more do so by chance."""
        if not self._provable(size):
            return 0
        everything = self._everything
        counts = range(everything.contexts - everything.bad + 1)
        return bisect_left(
            counts, True, key=lambda n: self._tried(self._in_contexts, n, size) * by_context(everything, n) <= ALPHA
        )

    @staticmethod
    def _tried(selected: list[int], least: int, size: int) -> int:
        """Conditions that select as much, at most: a pair selects no more than each of its clauses does."""
        return comb(len(selected) - bisect_left(selected, least), size)


def _without_implied(clauses: Iterable[Clause]) -> Iterator[Clause]:
    """`clauses` in order, without those that another one on the same fact implies."""
    in_order = sorted(clauses, key=lambda clause: (clause.fact, order_of((clause,))))
    for clause in in_order:
        others = (Precondition((other,)) for other in in_order if other != clause and other.fact == clause.fact)
        if not any(other.implies(Precondition((clause,))) for other in others):
            yield clause


SYMPTOMS = frozenset(("held", "grads"))
"""Facts that a defect itself brings about (nobody holds the parameter, there are no gradients): a value of theirs that
no good run ever showed is no reason to keep quiet."""

EXCUSES = (Clause("grads", "zero", negated=True),)
"""Values of such facts that honest runs may come to (a loss at its floor), unless good runs showed otherwise."""


SYMPTOMS_OF_A_PROGRAM = SYMPTOMS | {"same_before", "same_grad", "kept_same", "all_same", "copies"}
"""The same where all evidence is of one program: how its ranks share the model is not going to change."""


def experience(selected: Sequence[Evidence], precondition: Precondition, *, pipeline: bool = False) -> Precondition:
    """The circumstances that were the same in all evidence that `precondition` selected, less what it says already.

    A rule learned without autocast, closures or evaluation says nothing of runs with them. `pipeline` is True where the
    evidence is of one program.
    """
    symptoms = SYMPTOMS_OF_A_PROGRAM if pipeline else SYMPTOMS
    same = set.intersection(*(set(row.context) for row in selected))
    stated_facts = set.intersection(*({clause.fact for clause in clauses} for clauses in precondition.alternatives))
    constant = [Clause(*pair) for pair in sorted(same) if pair[0] not in symptoms | stated_facts]
    seen = {pair for row in selected for pair in row.context}
    fact_names = {name for row in selected for name, _ in row.context}
    excuses = [clause for clause in EXCUSES if clause.fact in fact_names - stated_facts]
    return Precondition((*constant, *(clause for clause in excuses if (clause.fact, clause.value) not in seen)))
