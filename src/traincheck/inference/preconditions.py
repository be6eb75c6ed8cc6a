"""Preconditions, learned by contrast.

The result is the weakest small condition on a context that is true where the property held and never where it failed.
The frequency of the property is no criterion: the rule that would have saved BLOOM-176B held on 1 pair in 39.

Note [Search]
Clauses, and pairs of them, that no failing context satisfies are *pure*. Pure ones that chance does not explain are
*sound*, see Note [False discovery] in chance.py. The search takes the sound one that covers most runs, then most
contexts, then most occasions, then the first by name. It prefers a pair to a single clause only if the pair's
additional coverage is sound as well. Then it repeats this for what is not covered yet: each further conjunction is an
alternative. An alternative has to be sound without the coverage of the others, and supported by several runs, because
it will be applied to other programs.

If several conditions cover the same, nothing shows which of them is the reason. The rule applies only where they agree:
all of them enter. An alternative likewise keeps what the first conjunction demands and all of its own evidence meets:
that it was never otherwise there does not show that it may be.
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

MAX_ALTERNATIVES = 3
"""A rule with more alternatives is several rules, or none."""

MIN_RUNS = 2
"""Runs that support an alternative, if there are as many, see Note [Search]."""


@dataclass(frozen=True, slots=True)
class Inseparable:
    """There is no precondition: no condition separates a context where the property held from one where it failed."""

    good: Facts
    bad: Facts

    def __str__(self) -> str:
        differing = [pair for pair in self.good if pair not in self.bad]
        if not differing:
            return f"it both held and failed in the context ({_context_text(self.good)})"
        good, bad = _context_text(self.good), _context_text(self.bad)
        return f"no small condition separates ({good}) where it held from ({bad}) where it failed"


def _context_text(context: Facts) -> str:
    return ", ".join(f"{name} {value}" for name, value in context)


@dataclass(frozen=True, slots=True)
class Unproven:
    """There is no precondition: the best condition may separate by chance, see Note [False discovery]."""

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
    """The weakest precondition that `evidence` allows, whatever its order, or the reason why there is none.

    See Note [Search]. Equal evidence, as the several levels of one call have, is judged once.
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
    while len(chosen) < MAX_ALTERNATIVES and (rest := contexts.good & ~_union(chosen)):
        best = _Case(contexts, rest).solved(_least_runs(contexts))
        if not isinstance(best, _Choice):
            break
        chosen = _needed([*chosen, best])
    chosen.sort(key=lambda choice: (*contexts.rank(choice.covered), order_of(choice.clauses)))
    first, *others = chosen
    return Precondition(first.clauses, tuple(_with_shared(choice, first, contexts) for choice in others))


def _with_shared(choice: _Choice, first: _Choice, contexts: Contexts) -> Conjunction:
    """The clauses of an alternative, with those of `first` that are true wherever it is."""
    covered = [context for bit, context in contexts.facts.items() if bit & choice.covered]
    shared = [clause for clause in first.clauses if all(map(clause.true_in, covered))]
    return tuple(_without_implied({*choice.clauses, *shared}))


def _least_runs(contexts: Contexts) -> int:
    return min(MIN_RUNS, contexts.runs_in(contexts.good))


def _nearest(contexts: Contexts) -> Inseparable:
    """The most frequent good context, and the failing one that resembles it most."""
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
    """`chosen` without those that the others cover completely."""
    for choice in sorted(chosen, key=lambda choice: (choice.covered.bit_count(), order_of(choice.clauses))):
        others = [other for other in chosen if other is not choice]
        if not choice.covered & ~_union(others):
            chosen = others
    return chosen


Ties = dict[int, list[tuple[int, ...]]]
"""For each set of contexts, the conjunctions (sets of contexts, to be intersected) that cover exactly this set."""


class _Case:
    """The search for one conjunction that covers most of `rest`, which is good, and nothing bad."""

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
        """The best sound conjunction with evidence of `least` runs; otherwise the nearest to one, if any."""
        single, pair = self._best(self._singles(), 1, least), self._best(self._pairs(), 2, least)
        if isinstance(single, _Choice) and isinstance(pair, _Choice):
            return pair if self._earned(pair, single) else single
        if isinstance(single, _Choice) or isinstance(pair, _Choice):
            return single if isinstance(single, _Choice) else pair
        return min(filter(None, (single, pair)), key=lambda doubt: doubt.expected, default=None)

    def _earned(self, pair: _Choice, single: _Choice) -> bool:
        """Whether the additional coverage of a pair justifies the second clause."""
        left = self._rest & ~single.covered
        beyond = pair.covered & left
        enough = self._contexts.runs_in(beyond) >= _least_runs(self._contexts)
        return bool(beyond) and enough and _Case(self._contexts, left)._doubt(beyond, 2) is None

    def _singles(self) -> Ties:
        """Pure clauses by their coverage."""
        ties: Ties = {}
        for mask in self._contexts.columns:
            if not mask & self._contexts.bad and mask & self._rest:
                ties.setdefault(mask & self._rest, []).append((mask,))
        return ties

    def _pairs(self) -> Ties:
        """Pure pairs of clauses, none of them pure by itself, by their coverage."""
        bad, rest = self._contexts.bad, self._rest
        ties: Ties = {}
        impure = [mask for mask in self._contexts.columns if mask & bad and mask & rest]
        for first, second in combinations(impure, 2):
            both = first & second
            if not both & bad and both & rest:
                ties.setdefault(both & rest, []).append((first, second))
        return ties

    def _best(self, ties: Ties, size: int, least: int) -> _Choice | Unproven | None:
        """The first sound conjunction of `ties`, or why the first of all is not sound."""
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
        """The coverages, in the order of Note [Search]. The expensive measures are used only for ties in the cheap
        ones."""

        def roughly(new: int) -> tuple[int, int]:
            return -self._contexts.runs_in(new), -new.bit_count()

        for _, equal in groupby(sorted(ties, key=roughly), key=roughly):
            yield from sorted(
                equal, key=lambda new: (-self._contexts.held(new), min(map(self._clause_order, ties[new])))
            )

    def _clause_order(self, masks: tuple[int, ...]) -> ClauseOrder:
        return tuple(sorted(self._contexts.clause_orders[mask] for mask in masks))

    def _agreeing(self, ties: list[tuple[int, ...]]) -> _Choice:
        """The conditions with the same coverage, as one conjunction."""
        masks = {mask for conjunction in ties for mask in conjunction}
        covered = self._contexts.good
        for mask in masks:
            covered &= mask
        clauses = {clause for mask in masks for clause in self._contexts.columns[mask].values()}
        return _Choice(covered, tuple(_without_implied(clauses)))

    def _doubt(self, new: int, size: int) -> Unproven | None:
        """Why a condition of `size` clauses that covers `new` is not sound; None if it is."""
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
        """The least number of contexts that a sound condition covers: smaller conditions appear more often by
        chance."""
        if not self._provable(size):
            return 0
        everything = self._everything
        counts = range(everything.contexts - everything.bad + 1)
        return bisect_left(
            counts, True, key=lambda n: self._tried(self._in_contexts, n, size) * by_context(everything, n) <= ALPHA
        )

    @staticmethod
    def _tried(selected: list[int], least: int, size: int) -> int:
        """The number of conditions that select as much, at most: a pair selects no more than each of its clauses
        does."""
        return comb(len(selected) - bisect_left(selected, least), size)


def _without_implied(clauses: Iterable[Clause]) -> Iterator[Clause]:
    """`clauses` in order, without those that another one on the same fact implies."""
    in_order = sorted(clauses, key=lambda clause: (clause.fact, order_of((clause,))))
    for clause in in_order:
        others = (Precondition((other,)) for other in in_order if other != clause and other.fact == clause.fact)
        if not any(other.implies(Precondition((clause,))) for other in others):
            yield clause


SYMPTOMS = frozenset(("held", "grads"))
"""Facts that a defect itself causes (no optimizer holds the parameter, there are no gradients). A rule also applies if
such a fact has a value that no good run showed."""

EXCUSES = (Clause("grads", "zero", negated=True),)
"""Values of such facts that honest runs may reach (a loss at its floor, a batch whose every element is masked). A rule
says nothing there. That it held there in some good runs proves little: without gradients, momentum and weight decay
still change the parameters, and plain SGD does not."""


SYMPTOMS_OF_A_PROGRAM = SYMPTOMS | {"same_before", "same_grad", "all_same", "copies", "data_parallel"}
"""The same if all evidence is of one program: how its ranks share the model will not change. If its model is no longer
wrapped, that is the error."""


def experience(selected: Sequence[Evidence], precondition: Precondition, *, pipeline: bool = False) -> Precondition:
    """The circumstances that were the same in all evidence that `precondition` selected, without those that it states
    already.

    A rule learned without autocast, closures or evaluation does not apply to runs with them. `pipeline` is True if the
    evidence is of one program.
    """
    symptoms = SYMPTOMS_OF_A_PROGRAM if pipeline else SYMPTOMS
    same = set.intersection(*(set(row.context) for row in selected))
    stated_facts = set.intersection(*({clause.fact for clause in clauses} for clauses in precondition.alternatives))
    constant = [Clause(*pair) for pair in sorted(same) if pair[0] not in symptoms | stated_facts]
    fact_names = {name for row in selected for name, _ in row.context}
    excuses = (clause for clause in EXCUSES if clause.fact in fact_names - stated_facts)
    return Precondition((*constant, *excuses))
