"""Contexts as the bits of an integer, and the counts of each set of contexts.

A clause is the set of contexts in which it is true. So a conjunction of two is one `&`, and so is the test whether it
covers a failure. Hundreds of contexts and thousands of conjunctions take milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from traincheck.inference.chance import Observed
from traincheck.vocab.facts import JOINED, Facts, FactValue, names_in
from traincheck.vocab.invariant import Clause

SKETCH = 256
"""Bits of a sketch: the i-th stands for the windows whose index leaves i when divided by it. Sketches of several
contexts show how many distinct windows they have together: exactly up to this number, at the least beyond. So many
prove anything."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """The counts of a property in one context of one run: occasions and distinct windows.

    `seen` and `missed` are sketches of the windows in which it was judged and in which it failed, 0 if none was kept.
    `failing` counts the windows with a failure. If that is unknown, it is the least number that is possible when all
    windows held as many occasions.
    """

    context: Facts
    run: int
    held: int
    failed: int
    windows: int
    seen: int = 0
    missed: int = 0
    failing: int = -1

    def __post_init__(self) -> None:
        if self.failing < 0:
            share = -(-self.windows * self.failed // max(1, self.held + self.failed))
            failing_windows = max(share, self.windows - self.held, self.missed.bit_count()) if self.failed else 0
            object.__setattr__(self, "failing", failing_windows)

    def __add__(self, other: Evidence) -> Evidence:
        """The sum for the same context and run, over other windows."""
        counts = (self.held + other.held, self.failed + other.failed, self.windows + other.windows)
        sketches = (self.seen | other.seen, self.missed | other.missed)
        return Evidence(self.context, self.run, *counts, *sketches, self.failing + other.failing)


ClauseOrder = tuple[tuple[bool, bool, str, str], ...]


def order_of(clauses: Iterable[Clause]) -> ClauseOrder:
    """The order of conjunctions by name: a value goes before a name in it, and both before negated clauses."""
    return tuple((clause.negated, clause.contains, clause.fact, repr(clause.value)) for clause in clauses)


Columns = dict[int, dict[str, Clause]]
"""For each set of contexts, the clauses that are true exactly there, the first by name for each fact."""


class Contexts:
    """Contexts as bits, and their counts; a mask is a set of contexts.

    `bad` are the contexts in which the property failed in any run, `good` all others. `facts` maps each bit to its
    context, `columns` holds the clauses worth trying, `clause_orders` their order by name.
    """

    def __init__(self, evidence: Iterable[Evidence]) -> None:
        bits: dict[Facts, int] = {}
        rows = [(bits.setdefault(row.context, 1 << len(bits)), row) for row in evidence]
        self.facts = {bit: context for context, bit in bits.items()}
        self.all = (1 << len(bits)) - 1
        self.bad = 0
        self.runs: dict[int, int] = {}
        for bit, row in rows:
            self.bad |= bit if row.failed else 0
            self.runs[row.run] = self.runs.get(row.run, 0) | bit
        self.good = self.all & ~self.bad
        self.windows = _Distinct((bit, row.run, row.windows, row.seen) for bit, row in rows)
        self.failures = _Distinct((bit, row.run, row.failing, row.missed) for bit, row in rows)
        self.held = _Sum((bit, row.held) for bit, row in rows)
        self.failed = _Sum((bit, row.failed) for bit, row in rows)
        self.pairs = _Sum((bit, row.windows) for bit, row in rows)
        self.failing = _Sum((bit, row.failing) for bit, row in rows)
        self.columns = self._columns()
        self.clause_orders = {mask: order_of(clauses.values())[0] for mask, clauses in self.columns.items()}

    def _columns(self) -> Columns:
        values: dict[str, dict[FactValue, int]] = {}
        for bit, context in self.facts.items():
            for fact, value in context:
                masks = values.setdefault(fact, {})
                masks[value] = masks.get(value, 0) | bit
        clauses = [clause_and_mask for fact, masks in values.items() for clause_and_mask in self._clauses(fact, masks)]
        columns: Columns = {}
        for clause, mask in sorted(clauses, key=lambda clause_and_mask: order_of(clause_and_mask[:1])):
            if mask not in (0, self.all):
                columns.setdefault(mask, {}).setdefault(clause.fact, clause)
        return columns

    def _clauses(self, fact: str, masks: dict[FactValue, int]) -> Iterator[tuple[Clause, int]]:
        """Every clause on one fact, given the contexts of each of its values, with the contexts in which it is true."""
        positive = [(Clause(fact, value), mask) for value, mask in masks.items()]
        if fact in JOINED:
            by_name: dict[str, int] = {}
            for value, mask in masks.items():
                for name in names_in(value):
                    by_name[name] = by_name.get(name, 0) | mask
            positive += [(Clause(fact, name, contains=True), mask) for name, mask in by_name.items()]
        yield from positive
        # If some context lacks the fact, negated clauses on it are left out.
        if sum(masks.values()) == self.all:
            yield from ((~clause, self.all & ~mask) for clause, mask in positive)

    def observed(self, mask: int) -> Observed:
        """The counts in the contexts of `mask`."""
        held, failed = self.held(mask), self.failed(mask)
        windows, failing = self.windows(mask), self.failures(mask)
        contexts, bad = mask.bit_count(), (mask & self.bad).bit_count()
        return Observed(held + failed, failed, self.pairs(mask), self.failing(mask), windows, failing, contexts, bad)

    def rank(self, mask: int) -> tuple[int, int, int]:
        """A sort key: the more runs, contexts and occasions `mask` covers, the lower."""
        return -self.runs_in(mask), -mask.bit_count(), -self.held(mask)

    def runs_in(self, mask: int) -> int:
        """The number of runs with one of these contexts."""
        return sum(1 for run in self.runs.values() if run & mask)

    def foremost(self, mask: int, measure: Callable[[int], int]) -> int:
        """The context in `mask` with the highest measure, the first by its facts among equals."""
        return min((bit for bit in self.facts if bit & mask), key=lambda bit: (-measure(bit), repr(self.facts[bit])))


Row = tuple[int, int, int, int]
"""The bit of a context, the run, the count of its windows there, and their sketch."""


class _Distinct:
    """Counts the distinct windows of a set of contexts, at the least."""

    def __init__(self, rows: Iterable[Row]) -> None:
        by_run: dict[int, list[Row]] = {}
        for row in rows:
            by_run.setdefault(row[1], []).append(row)
        self._largest: list[list[tuple[int, int]]] = []
        together: dict[int, int] = {}
        for of_run in by_run.values():
            if all(sketch for _, _, count, sketch in of_run if count):
                for present in _windows(of_run):
                    together[present] = together.get(present, 0) + 1
            else:  # it is unknown which windows two contexts share, so the one with most windows counts
                self._largest.append(sorted(((count, bit) for bit, _, count, _ in of_run), reverse=True))
        self._together = tuple(together.items())

    def __call__(self, mask: int) -> int:
        distinct = sum(times for present, times in self._together if present & mask)
        return distinct + sum(next((count for count, bit in of_run if bit & mask), 0) for of_run in self._largest)


def _windows(rows: Iterable[Row]) -> Iterator[int]:
    """For each window of a run, its contexts."""
    present: dict[int, int] = {}
    for bit, _, _, sketch in rows:
        while sketch:
            lowest = sketch & -sketch
            present[lowest] = present.get(lowest, 0) | bit
            sketch ^= lowest
    return iter(present.values())


class _Sum:
    """Adds up the weights of contexts, bit plane by bit plane, so that a set of contexts costs a few operations."""

    def __init__(self, weights: Iterable[tuple[int, int]]) -> None:
        total: dict[int, int] = {}
        for bit, weight in weights:
            total[bit] = total.get(bit, 0) + weight
        planes: dict[int, int] = {}
        for bit, weight in total.items():
            while weight > 0:
                lowest = weight & -weight
                planes[lowest] = planes.get(lowest, 0) | bit
                weight ^= lowest
        self._planes = tuple(planes.items())

    def __call__(self, mask: int) -> int:
        return sum(value * (mask & plane).bit_count() for value, plane in self._planes)
