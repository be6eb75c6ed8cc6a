"""The recording of a checked process: what is on disk when, how it ends, and that nothing of it piles up."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from recorded_runs import training
from traincheck.errors import OutputError
from traincheck.runtime.recording.retention import AFTER, BEFORE, FIRST_STEPS, LENGTH
from traincheck.runtime.recording.window_recorder import WindowRecorder
from traincheck.trace.reader import read_windows, removed_steps
from traincheck.trace.rotation import SEGMENTS
from traincheck.trace.segments import segments
from traincheck.vocab.events import Window

NAME = "events-0-1.arrows"
STEPS = 600


class Run:
    """A training process whose windows are fed `behind` windows late."""

    def __init__(self, folder: Path, *, most: int = 0, behind: int = 0, in_full: bool = False) -> None:
        self.folder = folder
        self.restarts: list[int] = []
        self.in_full = in_full
        self.keeping = WindowRecorder(folder, 1, most, lambda: self.restarts.append(self.at + 1), lambda: self.in_full)
        self.windows = training(STEPS)
        self.behind = behind
        self.at = self.fed = -1

    def train(self, steps: int, is_burst: bool = False) -> None:
        """Windows are handed on, and fed in the background."""
        for _ in range(steps):
            self.at += 1
            self.keeping.window_closed(self.window(self.at), is_burst=is_burst)
            self.feed(self.at - self.behind)

    def feed(self, last: int) -> None:
        while self.fed < last:
            self.fed += 1
            self.keeping.feed(self.window(self.fed))

    def window(self, index: int) -> Window:
        template = self.windows[index % len(self.windows)]
        return Window(index, index + 1, "train", template.calls, template.changes, 0, 1)

    @property
    def steps(self) -> list[int]:
        return [window.step for window in read_windows(self.folder / NAME)]


def test_the_first_steps_are_there_at_once_and_the_last_at_the_end(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for step in range(1, FIRST_STEPS + 1):
        run.train(1)
        assert run.steps[-1] == step
    run.train(STEPS - FIRST_STEPS)
    assert run.steps[-1] < STEPS - BEFORE
    run.keeping.close()
    assert run.steps[-BEFORE:] == list(range(STEPS - BEFORE + 1, STEPS + 1)) and len(run.steps) < 80
    assert run.keeping.skipped_steps == STEPS - len(run.steps)


@pytest.mark.parametrize("behind", [0, 3, 40])
def test_findings_are_on_disk_when_their_window_is_written(behind: int, tmp_path: Path) -> None:
    run = Run(tmp_path, behind=behind)
    run.train(300)
    run.at += 1
    run.keeping.window_closed(run.window(run.at))
    run.keeping.record_around()  # the check is a stage before this one
    run.feed(run.at - behind)
    finding_index = run.fed + 1
    assert run.steps[-BEFORE - 1 :] == list(range(finding_index - BEFORE, finding_index + 1))
    run.train(100 + behind)  # and those behind it, before the process is killed
    assert set(range(finding_index - BEFORE, finding_index + AFTER + 1)) <= set(run.steps)
    behind_a_gap = [step for before, step in zip(run.steps, run.steps[1:], strict=False) if step != before + 1]
    assert {step - 1 for step in behind_a_gap} <= set(run.restarts), "they begin where all was told anew"


def test_one_time_values_repeat_in_the_same_steps_on_all_ranks(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.train(100)
    assert [index + 1 for index in run.restarts] == list(range(LENGTH, 100, LENGTH))


def test_steps_that_are_looked_at_more_closely_are_recorded(tmp_path: Path) -> None:
    run = Run(tmp_path, behind=2)
    run.train(200)
    run.train(30, is_burst=True)
    run.train(100)
    assert set(range(201, 231)) < set(run.steps)


def test_runs_with_a_live_reader_are_recorded_in_full(tmp_path: Path) -> None:
    run = Run(tmp_path, in_full=True)
    run.train(200)
    assert run.steps == list(range(1, 201)) and run.restarts == []
    run.in_full = False  # the ranks compare themselves, as has turned out
    run.train(300)
    run.keeping.close()
    assert run.steps[:200] == list(range(1, 201)) and len(run.steps) < 300 and run.steps[-1] == 500
    assert run.keeping.skipped_steps == 500 - len(run.steps)


def test_a_program_that_hangs_has_its_last_windows_on_disk(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.train(300)
    assert run.steps[-1] < 300
    run.keeping.at_rest()
    assert run.steps[-BEFORE:] == list(range(301 - BEFORE, 301))
    before = len(run.steps)
    run.train(200)
    assert len(run.steps) < before + 20
    gaps = [step for last, step in zip(run.steps, run.steps[1:], strict=False) if step != last + 1]
    assert {step - 1 for step in gaps} <= set(run.restarts)


def test_partial_recordings_begin_with_repeated_values(tmp_path: Path) -> None:
    run = Run(tmp_path, most=SEGMENTS * 14_000)
    for _ in range(20):
        run.train(25)
        run.keeping.record_around()
        run.keeping.keep_file()
    run.keeping.close()
    begun, *later = segments(tmp_path / NAME)
    assert later and next(read_windows(begun)).step == 1
    assert {next(read_windows(file)).index for file in later} <= set(run.restarts)
    assert run.steps == sorted(set(run.steps)) and run.steps[-1] == 500
    assert all(set(range(first, last + 1)).isdisjoint(run.steps) for first, last in removed_steps(tmp_path / NAME))


def test_an_unwritable_recording_is_empty_and_reported_once(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.train(200)
    os.unlink(tmp_path / NAME)  # noqa: PTH108  # as somebody does who tidies up
    run.keeping.record_around()
    with pytest.raises(OutputError, match="No such file"):
        run.train(1)
    restarts = len(run.restarts)
    for index in range(201, 400):
        run.keeping.window_closed(run.window(index))
    assert len(run.restarts) == restarts
    run.keeping.close()


def test_a_full_disk_during_idle_time_is_reported_with_the_next_window(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.train(200)
    os.unlink(tmp_path / NAME)  # noqa: PTH108
    run.keeping.at_rest()
    run.keeping.record_around()
    with pytest.raises(OutputError, match="No such file"):
        run.train(1)
