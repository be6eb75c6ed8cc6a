"""Compares the sketched steps of two recorded runs, from the first step on until one has an origin."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from traincheck.comparison.alignment import Rename
from traincheck.comparison.layouts import Layouts, joined_alike
from traincheck.comparison.step_comparison import Difference, StepComparison
from traincheck.errors import NothingToCompare
from traincheck.trace.folder import RunFolder
from traincheck.trace.operation_files import read_operations
from traincheck.vocab.operations import BEFORE, INPUT, StepOperations

Ranks = tuple[StepOperations, ...]
"""A step of all ranks."""

SAME, ROUNDING, DIFFERENT = "same", "rounding", "different"
"""Results: equal bits; equal within what rounding explains; different."""


class CommonStep(NamedTuple):
    """A step of both runs in one layout. `rename` gives names of the second run those of the first."""

    own: StepOperations
    other: StepOperations
    rename: Rename
    renamed: dict[str, str]


@dataclass(frozen=True)
class StepResult:
    """How many operations of a step have the same bits, differ by rounding, and differ by more."""

    step: int
    same: int
    rounding: int
    different: int


@dataclass(frozen=True)
class Comparison:
    """The result of a comparison: the origins in the first step that has some, and the operations behind them.

    `since` is the last step before the origins that was compared, 0 for none. `incomplete` says what was not recorded.
    `first` is the comparison of the step with the origins.
    """

    steps: tuple[StepResult, ...]
    origins: tuple[Difference, ...] = ()
    victims: tuple[Difference, ...] = ()
    since: int = 0
    incomplete: tuple[str, ...] = ()
    renamed: dict[str, str] = field(default_factory=dict)
    first: StepComparison | None = field(default=None, repr=False, compare=False)

    @property
    def result(self) -> str:
        """SAME, ROUNDING or DIFFERENT."""
        if self.origins:
            return DIFFERENT
        return ROUNDING if any(step.rounding or step.different for step in self.steps) else SAME


def compare_runs(a: Path, b: Path) -> Comparison:
    """Compare two runs of one rank or several.

    Raises NothingToCompare if a run has no sketched operations, or the runs have no sketched step in common, and the
    errors of `RunFolder`.
    """
    return compare_steps(_steps(a), _steps(b), (a, b))


def common_steps(a: Path, b: Path) -> Iterator[CommonStep]:
    """The steps that both runs have sketched, in their order. Raises as `compare_runs`."""
    return in_one_layout(_common(_steps(a), _steps(b)))


def _steps(path: Path) -> list[Ranks]:
    """The steps of a run that all ranks have sketched, each of all ranks."""
    ranks = [list(read_operations(file)) for file in RunFolder.open(path).first_operation_files()]
    if not all(ranks) or not ranks:
        raise NothingToCompare(path, "it has no sketches of operations")
    by_step = [{step.step: step for step in steps} for steps in ranks]
    return [tuple(steps[number] for steps in by_step) for number in by_step[0] if all(map(_has(number), by_step))]


def _has(number: int) -> Callable[[dict[int, StepOperations]], bool]:
    return lambda steps: number in steps


def _common(a: Sequence[Ranks], b: Sequence[Ranks]) -> list[tuple[Ranks, Ranks]]:
    others = {ranks[0].step: ranks for ranks in b}
    return [(ranks, others[ranks[0].step]) for ranks in a if ranks[0].step in others]


def in_one_layout(common: Iterable[tuple[Ranks, Ranks]]) -> Iterator[CommonStep]:
    """Join the ranks of each step, and bring both runs into the layout of the first step."""
    layouts: Layouts | None = None
    for ranks in common:
        own, other = joined_alike(*ranks)
        layouts = layouts or Layouts(own, other)
        yield CommonStep(*layouts.apply(own, other), layouts.renaming, layouts.shown)


def compare_steps(
    a: Sequence[Ranks],
    b: Sequence[Ranks],
    paths: tuple[Path, Path] = (Path("A"), Path("B")),
) -> Comparison:
    """Compare sketched steps of two runs, see `compare_runs`."""
    common = _common(a, b)
    if not common:
        raise NothingToCompare(paths[1], f"none of its sketched steps is sketched in {paths[0]}")
    results: list[StepResult] = []
    incomplete = tuple(
        dict.fromkeys(each.incomplete for pair in common for ranks in pair for each in ranks if each.incomplete)
    )
    before: dict[str, float] | None = None
    last = 0
    shown: dict[str, str] = {}
    for own, other, rename, shown in in_one_layout(common):
        adjacent = own.step == last + 1
        compared = StepComparison(own, other, rename, before if adjacent else None)
        all_same = all(result.rounding == result.different == 0 for result in results)
        results.append(StepResult(own.step, compared.same, compared.rounding, compared.different))
        origins = compared.origins if adjacent or all_same else [each for each in compared.origins if not _old(each)]
        if origins:
            found = tuple(origins), tuple(compared.victims)
            return Comparison(tuple(results), *found, last, incomplete, shown, compared)
        before, last = compared.updated, own.step
    return Comparison(tuple(results), incomplete=incomplete, renamed=shown)


def _old(origin: Difference) -> bool:
    """Whether a difference may be older than its step: rounding grew in steps that were not sketched."""
    operation = origin.operation
    return (operation.phase == BEFORE and operation.name != INPUT) or math.isinf(origin.inputs)
