"""Compares the sketched steps of two recorded runs, from the first step on until one has an origin."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from traincheck.comparison.alignment import Rename
from traincheck.comparison.difference import DIFFERENT, ROUNDING, SAME, Difference
from traincheck.comparison.given_names import GivenName, Match
from traincheck.comparison.layouts import Layouts, joined_alike
from traincheck.comparison.marks import NO_MARKS, MarkComparison, compare_marks, marks_of_run
from traincheck.comparison.noise import Noise, OperationKey, explained_by, is_noise, noise_of
from traincheck.comparison.renaming import lacking_variables
from traincheck.comparison.shared_names import share_modules, with_equal_names
from traincheck.comparison.stages import Stages, stages_of
from traincheck.comparison.step_comparison import StepComparison
from traincheck.errors import NothingToCompare
from traincheck.trace.folder import RunFolder
from traincheck.trace.operation_files import read_operations
from traincheck.vocab.operations import BEFORE, INPUT, StepOperations

Ranks = tuple[StepOperations, ...]
"""A step of all ranks."""


class Repetition(NamedTuple):
    """The result of a step whose distance among repetitions of a run was the largest."""

    step: int
    operation: OperationKey
    distance: float


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
    `first` is the comparison of the step with the origins. `noisiest` is known if the first run was repeated and did
    not have the same bits each time. `only_a` and `only_b` are the parameters and buffers that one run lacks.
    `by_hand` are the names that the user matched. If a repetition differs from the first run, this is their
    comparison, and `unrepeated` is the index of the repetition.
    """

    steps: tuple[StepResult, ...]
    origins: tuple[Difference, ...] = ()
    victims: tuple[Difference, ...] = ()
    since: int = 0
    incomplete: tuple[str, ...] = ()
    renamed: dict[str, str] = field(default_factory=dict)
    marks: MarkComparison = NO_MARKS
    repetitions: int = 0
    noisiest: Repetition | None = None
    only_a: tuple[str, ...] = ()
    only_b: tuple[str, ...] = ()
    by_hand: tuple[Match, ...] = ()
    unrepeated: int | None = None
    first: StepComparison | None = field(default=None, repr=False, compare=False)

    @property
    def result(self) -> str:
        """SAME, ROUNDING or DIFFERENT."""
        if self.origins or self.marks.first is not None:
            return DIFFERENT
        rounded = self.marks.rounding or any(step.rounding or step.different for step in self.steps)
        return ROUNDING if rounded else SAME


class RunComparison:
    """Compares pairs of steps in the order of the runs, until a step has an origin.

    Names and layouts of both runs are matched in the first pair; `given` are those that the user matched. If the runs
    have common marks and no common module, steps are compared where names are equal. `repeated` are comparisons of the
    first run with repetitions of it, and `is_repetition` makes such a comparison, for which noise is no difference.
    """

    def __init__(
        self,
        marks: MarkComparison = NO_MARKS,
        repeated: Sequence[RunComparison] = (),
        given: Sequence[GivenName] = (),
        *,
        is_repetition: bool = False,
    ) -> None:
        self._marks, self._repeated, self._is_repetition = marks, repeated, is_repetition
        self._noisiest: Repetition | None = None
        self._results: list[StepResult] = []
        self._incomplete: dict[str, None] = {}
        self._layouts = PairLayouts(given)
        self._by_name: bool | None = None
        self._compared: StepComparison | None = None
        self._last = 0
        self.different: Comparison | None = None
        """The comparison up to the first step with an origin; None as long as there is none."""

    @property
    def steps(self) -> int:
        """The number of compared steps."""
        return len(self._results)

    def add(self, a: Ranks, b: Ranks, *repetitions: Ranks) -> None:
        """Compare a step of the first run with the same step of the second. Call it only while `different` is None.

        What repetitions of the first run differ in that step explains a difference of the second. Raises BadOption if
        given names do not fit to the first step.
        """
        noise = self._noise(a, repetitions)
        if self.different is not None:
            return
        self._incomplete.update(dict.fromkeys(step.incomplete for step in (*a, *b) if step.incomplete))
        own, other, rename, _ = self._layouts.common_step(a, b)
        if self._by_name is None:
            self._by_name = bool(self._marks.compared) and not share_modules(own, other, rename)
        if self._by_name:
            own, other = with_equal_names(own, other, rename)
            if not own.operations:
                return
        before = self._compared.updated if self._compared is not None and own.step == self._last + 1 else None
        compared = StepComparison(own, other, rename, before, explained_by(noise, own))
        is_certain = own.step == self._last + 1 or all(
            result.rounding == result.different == 0 for result in self._results
        )
        self._results.append(StepResult(own.step, compared.same, compared.rounding, compared.different))
        origins = compared.origins if is_certain else [origin for origin in compared.origins if not _old(origin)]
        if self._is_repetition:
            origins = [origin for origin in origins if not is_noise(origin)]
        if origins:
            self.different = self._comparison(tuple(origins), compared)
        self._compared, self._last = compared, own.step

    def _noise(self, a: Ranks, repetitions: Sequence[Ranks]) -> Noise:
        """The noise of a step among repetitions. The comparison ends with a repetition that is none."""
        for repeated, again in zip(self._repeated, repetitions, strict=True):
            repeated.add(a, again)
            if repeated.different is not None:
                self.different = self._unrepeated
        noise = noise_of(run._compared for run in self._repeated if run._compared is not None)
        for operation, distance in noise.items():
            if self._noisiest is None or distance > self._noisiest.distance:
                self._noisiest = Repetition(a[0].step, operation, distance)
        return noise

    @property
    def _unrepeated(self) -> Comparison | None:
        """The comparison with the first repetition that is none."""
        for index, repeated in enumerate(self._repeated):
            if repeated.comparison.result == DIFFERENT:
                return replace(repeated.comparison, unrepeated=index)
        return None

    @property
    def comparison(self) -> Comparison:
        """The result so far."""
        return self._unrepeated or self.different or self._comparison()

    def _comparison(self, origins: tuple[Difference, ...] = (), compared: StepComparison | None = None) -> Comparison:
        only = ((), ()) if self._by_name else self._layouts.lacking
        return Comparison(
            tuple(self._results),
            origins,
            tuple(compared.victims) if compared is not None else (),
            self._last if origins else 0,
            tuple(self._incomplete),
            self._layouts.shown,
            self._marks,
            len(self._repeated),
            self._noisiest,
            *only,
            self._layouts.by_hand,
            first=compared,
        )


class PairLayouts:
    """Joins the ranks of pairs of steps, and brings both runs into the layout of the first pair."""

    def __init__(self, given: Sequence[GivenName] = ()) -> None:
        self._given = given
        self._layouts: Layouts | None = None
        self._stages: tuple[Stages, Stages] | None = None
        self.lacking: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
        """The parameters and buffers that only the first or only the second run has."""

    @property
    def shown(self) -> dict[str, str]:
        """Names of the second run by those of the first, where they differ."""
        return self._layouts.shown if self._layouts else {}

    @property
    def by_hand(self) -> tuple[Match, ...]:
        """The names that the user matched."""
        return self._layouts.renaming.by_hand if self._layouts else ()

    def common_step(self, a: Ranks, b: Ranks) -> CommonStep:
        """A step of all ranks of both runs as one of each. Raises BadOption in the first if given names do not fit."""
        self._stages = self._stages or (stages_of(a), stages_of(b))
        own, other = joined_alike(a, b, self._stages)
        layouts = self._layouts or Layouts(own, other, self._given)
        own, other = layouts.apply(own, other)
        if self._layouts is None:
            self.lacking = lacking_variables(own, other, layouts.renaming)
        self._layouts = layouts
        return CommonStep(own, other, layouts.renaming, layouts.shown)


def compare_runs(a: Path, b: Path, repetitions: Sequence[Path] = (), given: Sequence[GivenName] = ()) -> Comparison:
    """Compare two runs of one rank or several.

    `repetitions` are runs of the same program as the first: if one of them is not, it is compared with the first run
    in place of the second. `given` are names that the user matched.

    Runs with common marks need no step in common. Raises NothingToCompare if a run has no sketched operations, or the
    runs have no sketched step in common, BadOption for given names that do not fit, and the errors of `RunFolder`.
    """
    own_marks = marks_of_run(a)
    marks = compare_marks(own_marks, marks_of_run(b))
    paths = (a, b, *repetitions)
    for path in paths:
        if not marks.compared and not _has_steps(path):
            raise NothingToCompare(path, "it has no sketches of operations, and no marks that the other run has")
    repeated = [
        RunComparison(compare_marks(own_marks, marks_of_run(again)), is_repetition=True) for again in repetitions
    ]
    return _compare(RunComparison(marks, repeated, given), _steps(*paths), paths, bool(marks.compared))


def compare_steps(
    a: Sequence[Ranks], b: Sequence[Ranks], marks: MarkComparison = NO_MARKS, given: Sequence[GivenName] = ()
) -> Comparison:
    """Compare sketched steps of two runs, whose marks are compared already; see `compare_runs`."""
    steps = steps_in_common(list(zip(*a, strict=True)), list(zip(*b, strict=True)))
    return _compare(RunComparison(marks, (), given), steps, (Path("A"), Path("B")), bool(marks.compared))


def common_steps(a: Path, b: Path, given: Sequence[GivenName] = ()) -> Iterator[CommonStep]:
    """The steps that both runs have sketched, in their order, one at a time. Raises the errors of `RunFolder`, and
    BadOption for given names that do not fit."""
    return in_one_layout(((own, other) for own, other in _steps(a, b)), given)


def in_one_layout(pairs: Iterable[tuple[Ranks, Ranks]], given: Sequence[GivenName] = ()) -> Iterator[CommonStep]:
    """Join the ranks of each step, and bring both runs into the layout of the first step."""
    layouts = PairLayouts(given)
    return (layouts.common_step(*pair) for pair in pairs)


def _compare(
    run: RunComparison, steps: Iterable[tuple[Ranks, ...]], paths: Sequence[Path], has_marks: bool
) -> Comparison:
    for runs in steps:
        run.add(*runs)
        if run.different is not None:
            break
    if not run.steps and not has_marks and run.different is None:
        others = " and ".join(str(path) for path in paths if path != paths[1])
        raise NothingToCompare(paths[1], f"none of its sketched steps is sketched in {others}")
    return run.comparison


def recorded_ranks(path: Path) -> list[Iterator[StepOperations]]:
    """The steps of each rank of a recorded run. Raises as `compare_runs`, before the first step is read."""
    if not _has_steps(path):
        raise NothingToCompare(path, "it has no sketches of operations")
    return [read_operations(file) for file in RunFolder.open(path).first_operation_files()]


def _has_steps(path: Path) -> bool:
    files = RunFolder.open(path).first_operation_files()
    return bool(files) and all(next(read_operations(file), None) is not None for file in files)


def _steps(*paths: Path) -> Iterator[tuple[Ranks, ...]]:
    ranks = [[read_operations(file) for file in RunFolder.open(path).first_operation_files()] for path in paths]
    return steps_in_common(*ranks)


def steps_in_common(*runs: Sequence[Iterable[StepOperations]]) -> Iterator[tuple[Ranks, ...]]:
    """The steps that all ranks of all runs have sketched, in the order of their numbers, for each run.

    Holds one step of each rank, and reads the ranks in their order: none is read after an earlier one has ended.
    """
    streams = [iter(rank) for ranks in runs for rank in ranks]
    ends = list(itertools.accumulate(map(len, runs), initial=0))
    current: list[StepOperations | None] = [None] * len(streams)
    number = 0
    while all(runs):
        for index, stream in enumerate(streams):
            step = current[index]
            while step is None or step.step < number:
                step = next(stream, None)
                if step is None:
                    return
            current[index], number = step, step.step
        steps = tuple(step for step in current if step is not None)
        if all(step.step == number for step in steps):
            yield tuple(steps[begin:end] for begin, end in itertools.pairwise(ends))
            number += 1


def _old(origin: Difference) -> bool:
    """Whether a difference may be older than its step: rounding grew in steps that were not sketched."""
    operation = origin.operation
    return (operation.phase == BEFORE and operation.name != INPUT) or math.isinf(origin.inputs)
