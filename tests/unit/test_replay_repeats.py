"""Tests the repeated recordings of the scale benchmarks, which imitate a long run."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from benchmarks.long_recordings import LongRecording, events_in, write_recording

from recorded_runs import training, write_run
from traincheck.trace.folder import RunFolder
from traincheck.vocab.events import Window


def windows_of(folder: Path) -> list[Window]:
    return [window for _, windows in RunFolder.open(folder).windows() for window in windows]


def test_steps_are_repeated_and_nothing_overlaps(tmp_path: Path) -> None:
    source = write_run(tmp_path / "source", "a.py", training(6))
    count = write_recording(LongRecording(tmp_path / "long", source, 5))
    windows = windows_of(tmp_path / "long")
    assert count == sum(map(events_in, windows)) == 5 * sum(map(events_in, windows_of(source)))
    assert [window.index for window in windows] == list(range(30))
    assert [window.step for window in windows] == list(range(1, 31))
    ends = [(min(call.seq for call in window.calls), max(call.end for call in window.calls)) for window in windows]
    assert all(before[1] < after[0] for before, after in pairwise(ends))
    assert all(window.by_seq.get(change.call) for window in windows for change in window.changes)


def test_repetitions_of_one_recording_are_separate_runs(tmp_path: Path) -> None:
    source = write_run(tmp_path / "source", "a.py", training(3))
    folders = [tmp_path / f"long{number}" for number in range(2)]
    for number, folder in enumerate(folders):
        write_recording(LongRecording(folder, source, 2, number))
        assert write_recording(LongRecording(folder, source, 2, number)) > 0, "it is there already"
    assert len({RunFolder.open(folder).manifest.started for folder in folders}) == 2
