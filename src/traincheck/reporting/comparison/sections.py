"""Groups the aligned operations of a step by phase and module for the page, and folds what is long and equal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from traincheck.comparison.aligned_operations import UNMATCHED, AlignedOperation
from traincheck.comparison.difference import ORIGIN, ROUNDING, SAME, VICTIM
from traincheck.comparison.spread import module_of_operation

ROWS, ROWS_OF_GROUP, GROUPS = 1_200, 40, 300
"""Rows and groups that a page shows at most: about a kilobyte each. All others are counted."""

OPEN_GROUPS = 3
"""Groups with an origin that are open at first."""

CONTEXT = 2
"""Operations without a difference that are shown before and after an origin."""

_WORDS = {
    SAME: ("equal", "equal"),
    ROUNDING: ("rounding", "rounding"),
    VICTIM: ("victim", "victims"),
    ORIGIN: ("origin", "origins"),
    UNMATCHED: ("in one run only", "in one run only"),
}
"""Words for one operation with a verdict, and for several."""


@dataclass(frozen=True, slots=True)
class Fold:
    """Operations that are counted in one row, and the largest distance among them."""

    verdict: str
    count: int
    largest: float


@dataclass(frozen=True, slots=True)
class Group:
    """The operations of a module in a phase. `counts` are the numbers of operations by verdict."""

    module: str
    counts: tuple[tuple[str, int], ...]
    largest: float
    rows: tuple[AlignedOperation | Fold, ...]
    is_open: bool


@dataclass(frozen=True, slots=True)
class EqualGroups:
    """Consecutive modules without a difference beyond rounding."""

    modules: tuple[str, ...]
    counts: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Section:
    """The operations of a phase. `beyond` counts operations that the page does not show."""

    phase: str
    counts: tuple[tuple[str, int], ...]
    groups: tuple[Group | EqualGroups, ...]
    beyond: int


class _Budget:
    """The rows and groups that the page may still show, and the groups that may still be open."""

    def __init__(self) -> None:
        self.rows, self.groups, self.open_groups = ROWS, GROUPS, OPEN_GROUPS


def sections_of(rows: Sequence[AlignedOperation]) -> tuple[Section, ...]:
    """Return the sections of the page. Phases that come again (several backwards) are sections of their own."""
    budget = _Budget()
    return tuple(
        _section(phase, list(group), budget) for phase, group in groupby(rows, key=lambda row: row.operation.phase)
    )


def _section(phase: str, rows: Sequence[AlignedOperation], budget: _Budget) -> Section:
    groups: list[Group | EqualGroups] = []
    equal: list[tuple[str, list[AlignedOperation]]] = []
    beyond = 0

    def close() -> None:
        if equal:
            every = [row for _, group in equal for row in group]
            groups.append(EqualGroups(tuple(dict.fromkeys(module for module, _ in equal)), _counts(every)))
            equal.clear()

    for module, group in groupby(rows, key=lambda row: module_of_operation(row.operation)):
        own = list(group)
        if all(row.verdict in (SAME, ROUNDING) for row in own):
            equal.append((module, own))
        elif budget.groups > 0:
            close()
            budget.groups -= 1
            groups.append(_group(module, own, budget))
        else:
            beyond += len(own)
    close()
    return Section(phase, _counts(rows), tuple(groups), beyond)


def _group(module: str, rows: Sequence[AlignedOperation], budget: _Budget) -> Group:
    shown = _shown(rows, budget)
    is_open = budget.open_groups > 0 and any(row.verdict == ORIGIN for row in rows)
    budget.open_groups -= is_open
    return Group(module, _counts(rows), _largest(rows), tuple(_folded(rows, shown)), is_open)


def _shown(rows: Sequence[AlignedOperation], budget: _Budget) -> list[bool]:
    """Which rows are shown: origins and their surroundings, then others with a difference."""
    shown = [False] * len(rows)
    left = min(ROWS_OF_GROUP, budget.rows)
    origins = [index for index, row in enumerate(rows) if row.verdict == ORIGIN]
    near = (other for index in origins for other in range(index - CONTEXT, index + CONTEXT + 1))
    others = (index for index, row in enumerate(rows) if row.verdict in (VICTIM, UNMATCHED))
    for index in (*origins, *near, *others):
        if left > 0 and 0 <= index < len(rows) and not shown[index]:
            shown[index] = True
            left -= 1
    budget.rows -= sum(shown)
    return shown


def _folded(rows: Sequence[AlignedOperation], shown: Sequence[bool]) -> Iterator[AlignedOperation | Fold]:
    for (is_shown, verdict), group in groupby(
        zip(rows, shown, strict=True), key=lambda pair: (pair[1], "" if pair[1] else pair[0].verdict)
    ):
        own = [row for row, _ in group]
        if is_shown:
            yield from own
        else:
            yield Fold(verdict, len(own), _largest(own))


def _largest(rows: Sequence[AlignedOperation]) -> float:
    """The largest distance of operations that both runs have."""
    return max((row.distance for row in rows if row.a is not None and row.b is not None), default=0.0)


def _counts(rows: Sequence[AlignedOperation]) -> tuple[tuple[str, int], ...]:
    counts = Counter(row.verdict for row in rows)
    return tuple((verdict, counts[verdict]) for verdict in _WORDS if counts[verdict])


def verdict_text(verdict: str, count: int) -> str:
    """`1 victim`, `212 equal`."""
    return f"{count:,} {_WORDS[verdict][count != 1]}"
