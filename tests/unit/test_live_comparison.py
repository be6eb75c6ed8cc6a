"""A run is compared with an earlier one while its ranks write their files."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from traincheck.comparison.difference import SAME
from traincheck.comparison.live_comparison import LiveComparison
from traincheck.comparison.run_comparison import Comparison, compare_runs, steps_in_common
from traincheck.errors import TraceUnreadable
from traincheck.trace.folder import RunFolder
from traincheck.trace.operation_files import OperationWriter, read_operations
from traincheck.trace.run_notes import Manifest, ProcessNote
from traincheck.vocab.events import TRAIN, Window
from traincheck.vocab.operations import BEFORE, FORWARD, INPUT, Operation, Sketch, StepOperations, packed

SECONDS = 30.0
"""The longest wait of a test for what happens at once."""


def step(number: int, scale: float = 1.0) -> StepOperations:
    """A step with one input and one operation, whose result is scaled."""
    values = [Sketch("float32", (4,), int(factor * 8), factor, factor, packed([factor] * 8)) for factor in (1.0, scale)]
    batch = Operation(BEFORE, INPUT, "input 1", outputs=(0,))
    return StepOperations(number, tuple(values), (batch, Operation(FORWARD, "mul", "Net", "", "", (0,), (1,))))


class Rank:
    """Writes the steps of a rank of a run."""

    def __init__(self, folder: RunFolder, rank: int = 0) -> None:
        self._writer, self._window = OperationWriter(folder.path, rank + 100), Window(0, 1, TRAIN, rank=rank)

    def write(self, *steps: StepOperations) -> None:
        for each in steps:
            self._writer.add(each)
        self._writer.feed(self._window)


def run(path: Path, *steps: StepOperations) -> RunFolder:
    folder = RunFolder.create(path, Manifest(traincheck="1"))
    Rank(folder).write(*steps)
    return folder


class Shown(list[Comparison]):
    """The differences that were shown, and an event that says so."""

    def __init__(self) -> None:
        self.event = threading.Event()

    def __call__(self, comparison: Comparison) -> None:
        self.append(comparison)
        self.event.set()


def test_a_difference_is_shown_while_the_run_goes_on(tmp_path: Path) -> None:
    earlier = run(tmp_path / "a", *map(step, range(1, 6)))
    later, shown = run(tmp_path / "b"), Shown()
    with LiveComparison(earlier.path, later, shown, pause=0.01) as live:
        rank = Rank(later)
        rank.write(step(1), step(2))
        assert not shown.event.wait(0.05)
        rank.write(step(3, scale=1.5), step(4, scale=2.0))
        assert shown.event.wait(SECONDS)
    assert live.comparison is shown[0] and len(shown) == 1
    assert [origin.step for origin in shown[0].origins] == [3] and not live.fault
    assert shown[0].origins == compare_runs(earlier.path, later.path).origins


def test_equal_steps_are_compared_to_the_end_of_the_shorter_run(tmp_path: Path) -> None:
    earlier = run(tmp_path / "a", step(1), step(3), step(4))
    later, shown = run(tmp_path / "b"), Shown()
    with LiveComparison(earlier.path, later, shown, pause=0.01) as live:
        Rank(later).write(*map(step, range(1, 9)))
    assert live.comparison is not None and live.comparison.result == SAME and not (shown or live.fault)
    assert [each.step for each in live.comparison.steps] == [1, 3, 4]


def test_steps_wait_for_all_ranks(tmp_path: Path) -> None:
    earlier = run(tmp_path / "a", step(1, scale=2.0))
    later, shown = run(tmp_path / "b"), Shown()
    for rank in (0, 1):
        later.write_note(ProcessNote(rank=rank, process=rank + 100, world_size=2))
    with LiveComparison(earlier.path, later, shown, pause=0.01) as live:
        Rank(later).write(step(1))
        assert not shown.event.wait(0.05), "one rank has a half of the result"
        Rank(later, 1).write(step(1))
    assert live.comparison is not None and not live.comparison.origins, "the sum of both is right"


def test_runs_without_a_step_in_common_are_not_compared(tmp_path: Path) -> None:
    earlier, later = run(tmp_path / "a", step(1)), run(tmp_path / "b", step(2))
    with LiveComparison(earlier.path, later, Shown(), pause=0.01) as live:
        pass
    assert live.comparison is None and live.fault == "none of its sketched steps is sketched there"
    with LiveComparison(earlier.path, run(tmp_path / "c"), Shown(), pause=0.01) as live:
        pass
    assert live.comparison is None and live.fault


def test_a_damaged_file_ends_the_comparison_with_a_reason(tmp_path: Path) -> None:
    earlier, later = run(tmp_path / "a", step(1), step(2)), run(tmp_path / "b", step(1))
    (file,) = later.first_operation_files()
    with file.open("ab") as end:
        end.write(b"\x03\x00\x00\x00\xc1\xc1\xc1")
    with LiveComparison(earlier.path, later, Shown(), pause=0.01) as live:
        pass
    assert live.comparison is not None and live.comparison.result == SAME
    assert live.fault.startswith("none after step 1: ") and file.name in live.fault


def test_a_growing_file_is_read_once_and_its_last_record_may_be_incomplete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(tmp_path / "whole", *map(step, range(1, 4)))
    (source,) = whole.first_operation_files()
    contents = source.read_bytes()
    file, ended = tmp_path / "growing.msgpack", threading.Event()
    file.write_bytes(contents[:2])
    monkeypatch.setattr(Path, "read_bytes", lambda path: pytest.fail("the file is read as a whole"))
    steps: list[StepOperations] = []
    reader = threading.Thread(target=lambda: steps.extend(read_operations(file, ended.is_set, 0.001)))
    reader.start()
    for begin in range(2, len(contents) - 1, 50):
        with file.open("ab") as end:
            end.write(contents[begin : min(begin + 50, len(contents) - 1)])
    ended.set()
    reader.join(SECONDS)
    assert [each.step for each in steps] == [1, 2] and steps == list(map(step, (1, 2)))


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(TraceUnreadable, match="nowhere"):
        next(read_operations(tmp_path / "nowhere"))


def test_ranks_meet_at_the_steps_that_all_have() -> None:
    ranks = [[step(number) for number in numbers] for numbers in ((1, 2, 4, 6, 7), (2, 3, 4, 7), (1, 2, 4, 5, 7, 9))]
    pairs = [[each.step for each in (*a, *b)] for a, b in steps_in_common(ranks[:1], ranks[1:]) if len(b) == 2]
    assert pairs == [[2, 2, 2], [4, 4, 4], [7, 7, 7]]
    assert list(steps_in_common([], ranks)) == []
    assert [len(runs) for runs in steps_in_common(ranks[:1], ranks[1:2], ranks[2:])] == [3, 3, 3]
