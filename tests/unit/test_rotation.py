"""A recording stays within its size, and keeps its beginning, its end and windows with findings."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from recorded_runs import training, write_run
from traincheck.cli.commands.collect import count_events
from traincheck.errors import OutputError
from traincheck.inference.tally_runs import gather
from traincheck.trace.folder import RunFolder, bytes_of
from traincheck.trace.reader import count_windows, follow_windows, last_step, read_windows, removed_steps
from traincheck.trace.rotation import MAX_KEPT, SEGMENTS, RotatingWriter
from traincheck.trace.run_notes import Manifest
from traincheck.trace.segments import segments
from traincheck.vocab.events import Window

SEGMENT = 14_000
MOST = SEGMENTS * SEGMENT
NAME = "events-0-1.arrows"


def windows(steps: int) -> list[Window]:
    return [
        Window(step, step, "train", template.calls, template.changes, 0, 1)
        for step, template in enumerate(training(steps), start=1)
    ]


def write(folder: Path, written: list[Window], most: int = MOST) -> RotatingWriter:
    writer = RotatingWriter(folder, 0, 1, most)
    for window in written:
        writer.write(window)
    return writer


def bytes_in(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())


def test_a_recording_stays_within_its_size_and_keeps_beginning_and_end(tmp_path: Path) -> None:
    written, largest = windows(400), 0
    writer = RotatingWriter(tmp_path, 0, 1, MOST)
    for window in written:
        writer.write(window)
        largest = max(largest, bytes_in(tmp_path))
    writer.close()
    assert MOST / 2 < largest <= MOST + SEGMENT  # a window may come on top, and the beginning of a segment
    there = list(read_windows(tmp_path / NAME))
    (removed,) = removed_steps(tmp_path / NAME)
    assert there == written[: removed[0] - 1] + written[removed[1] :]
    assert 1 < removed[0] < removed[1] < 400
    assert count_windows(tmp_path / NAME) == len(there)
    assert last_step(tmp_path / NAME) == 400
    assert count_events(tmp_path / NAME)[:2] == (400, len(there))
    assert bytes_of(tmp_path / NAME) == bytes_in(tmp_path)


def test_without_a_limit_and_below_it_nothing_is_removed(tmp_path: Path) -> None:
    for most, name in ((0, "none"), (10**9, "far")):
        (tmp_path / name).mkdir()
        write(tmp_path / name, windows(60), most).close()
        assert [file.name for file in (tmp_path / name).iterdir()] == [NAME]
        assert list(read_windows(tmp_path / name / NAME)) == windows(60)
        assert removed_steps(tmp_path / name / NAME) == ()


def test_each_segment_can_be_read_by_other_tools(tmp_path: Path) -> None:
    write(tmp_path, windows(60)).close()
    for segment in segments(tmp_path / NAME):
        with pa.ipc.open_stream(segment) as stream:
            assert stream.read_all().num_rows > 0
    assert len(segments(tmp_path / NAME)) > 2


def test_segments_with_findings_are_kept(tmp_path: Path) -> None:
    writer = RotatingWriter(tmp_path, 0, 1, MOST)
    for window in windows(400):
        writer.write(window)
        if window.step in (100, 101, 250):
            writer.keep()
    writer.close()
    steps = {window.step for window in read_windows(tmp_path / NAME)}
    assert {1, 100, 250, 400} < steps
    removed = removed_steps(tmp_path / NAME)
    assert len(removed) == 3 and steps.isdisjoint(step for first, last in removed for step in range(first, last + 1))
    assert steps | {step for first, last in removed for step in range(first, last + 1)} == set(range(1, 401))


def test_constant_findings_do_not_fill_the_disk(tmp_path: Path) -> None:
    writer = RotatingWriter(tmp_path, 0, 1, MOST)
    for window in windows(400):
        writer.write(window)
        writer.keep()
    writer.close()
    assert bytes_in(tmp_path) <= MOST + SEGMENT
    steps = [window.step for window in read_windows(tmp_path / NAME)]
    assert steps[-1] == 400 and steps[0] == 1 and MAX_KEPT < SEGMENTS / 2


def test_a_window_larger_than_all_is_written_and_others_go(tmp_path: Path) -> None:
    written = windows(40)
    huge = Window(41, 41, "train", tuple(call for window in windows(4000) for call in window.calls), (), 0, 1)
    write(tmp_path, [*written, huge, Window(42, 42, "train", rank=0, process=1)], MOST // 16).close()
    steps = [window.step for window in read_windows(tmp_path / NAME)]
    assert steps[0] == 1 and steps[-1] == 42


def test_a_segment_begins_where_all_was_written_again(tmp_path: Path) -> None:
    requests: list[bool] = []
    writer = RotatingWriter(tmp_path, 0, 1, MOST, on_full=lambda: requests.append(True))
    for window in windows(40):
        writer.write(window)
        if window.step == 20:
            assert len(requests) == 1 and len(segments(tmp_path / NAME)) == 1, "it waits, however large it gets"
            writer.begin_at(25)
    writer.close()
    _, second, *_ = segments(tmp_path / NAME)
    assert next(read_windows(second)).step == 25


def test_a_recording_is_followed_from_segment_to_segment(tmp_path: Path) -> None:
    writer, written, over, read = RotatingWriter(tmp_path, 0, 1, MOST), windows(300), threading.Event(), []
    writer.write(written[0])
    following = follow_windows(tmp_path / NAME, over.is_set, pause=0.01)
    for window, after in zip(written, [*written[1:], None], strict=True):
        read.append(next(following))
        assert read[-1] == window
        if after is not None:
            writer.write(after)
    writer.close()
    over.set()
    assert next(following, None) is None


def test_a_slow_reader_misses_removed_segments(tmp_path: Path) -> None:
    writer, written = RotatingWriter(tmp_path, 0, 1, MOST), windows(300)
    writer.write(written[0])
    following = follow_windows(tmp_path / NAME, lambda: True, pause=0.01)
    assert next(following) == written[0]
    for window in written[1:]:
        writer.write(window)
    writer.close()
    rest = [window.step for window in following]
    assert rest == sorted(rest) and rest[-1] == 300 and len(rest) < 299


def test_a_killed_process_loses_no_more_than_before(tmp_path: Path) -> None:
    write(tmp_path, windows(300))  # never closed
    last = segments(tmp_path / NAME)[-1]
    last.write_bytes(last.read_bytes()[:-100])
    steps = [window.step for window in read_windows(tmp_path / NAME)]
    assert steps[-1] == 299
    (removed,) = removed_steps(tmp_path / NAME)
    last.write_bytes(b"")  # killed when it had just begun a segment
    assert [window.step for window in read_windows(tmp_path / NAME)][-1] < 299
    assert removed_steps(tmp_path / NAME)[0][0] == removed[0]


def test_a_segment_that_cannot_be_removed_ends_the_recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: Path, missing_ok: bool = False) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "unlink", refused)
    with pytest.raises(OutputError, match="Permission denied"):
        write(tmp_path, windows(400))
    assert bytes_in(tmp_path) <= MOST + SEGMENT


def test_learning_from_a_recording_with_gaps_is_reported(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", Manifest(script="train.py"))
    write(folder.path, windows(400)).close()
    whole = write_run(tmp_path / "whole", "train.py", windows(10))
    gathered = gather([folder.path, whole])
    (first, last) = removed_steps(folder.path / NAME)[0]
    words = f"steps {first:,} to {last:,} are no longer in the recording"
    assert any(words in remark for remark in gathered.remarks)
    assert folder.removed()[0].startswith(words)
    assert RunFolder.open(whole).removed() == ()
    (job,) = _steps(gathered)
    assert job == count_windows(folder.path / NAME)


def _steps(gathered: object) -> Iterator[int]:
    yield max(tally.windows for tally in gathered.tallies)  # type: ignore[attr-defined]
