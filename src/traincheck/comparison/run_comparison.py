"""Compares the sketched steps of two recorded runs, from the first step on until one has an origin."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from traincheck.comparison.layouts import Layouts, joined_alike
from traincheck.comparison.marks import NO_MARKS, MarkComparison, compare_marks, marks_of_run
from traincheck.comparison.shared_names import share_modules, with_equal_names
from traincheck.comparison.step_comparison import Difference, StepComparison
from traincheck.errors import NothingToCompare
from traincheck.trace.folder import RunFolder
from traincheck.trace.operation_files import read_operations
from traincheck.vocab.operations import BEFORE, INPUT, StepOperations

Ranks = tuple[StepOperations, ...]
"""A step of all ranks."""

SAME, ROUNDING, DIFFERENT = "same", "rounding", "different"
"""Results: equal bits; equal within what rounding explains; different."""


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
    """

    steps: tuple[StepResult, ...]
    origins: tuple[Difference, ...] = ()
    victims: tuple[Difference, ...] = ()
    since: int = 0
    incomplete: tuple[str, ...] = ()
    renamed: dict[str, str] = field(default_factory=dict)
    marks: MarkComparison = NO_MARKS

    @property
    def result(self) -> str:
        """SAME, ROUNDING or DIFFERENT."""
        if self.origins or self.marks.first is not None:
            return DIFFERENT
        rounded = self.marks.rounding or any(step.rounding or step.different for step in self.steps)
        return ROUNDING if rounded else SAME


def compare_runs(a: Path, b: Path) -> Comparison:
    """Compare two runs of one rank or several.

    Runs with common marks need no step in common. If such runs have no module in common either, steps are compared
    where names are equal. Raises NothingToCompare if a run has no sketched operations, or the runs have no sketched
    step in common, and the errors of `RunFolder`.
    """
    marks = compare_marks(marks_of_run(a), marks_of_run(b))
    steps = _steps(a), _steps(b)
    for path, of_run in zip((a, b), steps, strict=True):
        if not of_run and not marks.compared:
            raise NothingToCompare(path, "it has no sketches of operations, and no marks that the other run has")
    return compare_steps(*steps, (a, b), marks)


def _steps(path: Path) -> list[Ranks]:
    """The steps of a run that all ranks have sketched, each of all ranks."""
    ranks = [list(read_operations(file)) for file in RunFolder.open(path).first_operation_files()]
    if not all(ranks) or not ranks:
        return []
    by_step = [{step.step: step for step in steps} for steps in ranks]
    return [tuple(steps[number] for steps in by_step) for number in by_step[0] if all(map(_has(number), by_step))]


def _has(number: int) -> Callable[[dict[int, StepOperations]], bool]:
    return lambda steps: number in steps


def compare_steps(
    a: Sequence[Ranks],
    b: Sequence[Ranks],
    paths: tuple[Path, Path] = (Path("A"), Path("B")),
    marks: MarkComparison = NO_MARKS,
) -> Comparison:
    """Compare sketched steps of two runs, whose marks are compared already; see `compare_runs`."""
    others = {ranks[0].step: ranks for ranks in b}
    common = [(ranks, others[ranks[0].step]) for ranks in a if ranks[0].step in others]
    if not common and not marks.compared:
        raise NothingToCompare(paths[1], f"none of its sketched steps is sketched in {paths[0]}")
    layouts: Layouts | None = None
    by_name = False
    results: list[StepResult] = []
    incomplete = tuple(
        dict.fromkeys(each.incomplete for pair in common for ranks in pair for each in ranks if each.incomplete)
    )
    before: dict[str, float] | None = None
    last = 0
    for ranks in common:
        own, other = joined_alike(*ranks)
        if layouts is None:
            layouts = Layouts(own, other)
            by_name = bool(marks.compared) and not share_modules(own, other, layouts.renaming)
        own, other = layouts.apply(own, other)
        if by_name:
            own, other = with_equal_names(own, other, layouts.renaming)
            if not own.operations:
                continue
        adjacent = own.step == last + 1
        compared = StepComparison(own, other, layouts.renaming, before if adjacent else None)
        all_same = all(result.rounding == result.different == 0 for result in results)
        results.append(StepResult(own.step, compared.same, compared.rounding, compared.different))
        origins = compared.origins if adjacent or all_same else [each for each in compared.origins if not _old(each)]
        if origins:
            victims = tuple(compared.victims)
            return Comparison(tuple(results), tuple(origins), victims, last, incomplete, layouts.shown, marks)
        before, last = compared.updated, own.step
    renamed = layouts.shown if layouts else {}
    return Comparison(tuple(results), incomplete=incomplete, renamed=renamed, marks=marks)


def _old(origin: Difference) -> bool:
    """Whether a difference may be older than its step: rounding grew in steps that were not sketched."""
    operation = origin.operation
    return (operation.phase == BEFORE and operation.name != INPUT) or math.isinf(origin.inputs)
