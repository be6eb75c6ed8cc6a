"""The run folder: created once, readable at any time, with clear errors for invalid folders."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from traincheck.errors import (
    OutputError,
    RunFolderEmpty,
    RunFolderInUse,
    RunFolderNotFound,
    TraceOutOfReach,
    TraceTooNew,
    TraceUnreadable,
)
from traincheck.testing.readable_traces import from_text
from traincheck.trace.folder import Job, RunFolder
from traincheck.trace.format import FORMAT
from traincheck.trace.run_notes import Manifest, ProcessNote, StopRequest
from traincheck.trace.writer import TraceWriter
from traincheck.vocab.events import Window

MANIFEST = Manifest(id="a1b2", mode="run", argv=("train.py", "--lr", "1e-3"), script="train.py", books=("torch",))


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "deep" / "run", MANIFEST)


def write_window(run: RunFolder, rank: int, process: int) -> None:
    with TraceWriter(run.path, rank, process) as writer:
        writer.write(Window(0, 0, "setup", rank=rank, process=process))


def write_windows(run: RunFolder, rank: int, process: int, windows: Sequence[Window]) -> None:
    with TraceWriter(run.path, rank, process) as writer:
        for window in windows:
            writer.write(window)


def test_a_new_folder_has_a_manifest(run: RunFolder) -> None:
    assert run.manifest == MANIFEST
    assert RunFolder.open(run.path).manifest == MANIFEST
    stored = json.loads((run.path / "run.json").read_text())
    assert stored["format"] == FORMAT
    assert stored["argv"] == ["train.py", "--lr", "1e-3"]
    assert "environment" not in stored


def test_a_nonempty_folder_stays_unchanged(run: RunFolder, tmp_path: Path) -> None:
    with pytest.raises(RunFolderInUse, match="TrainCheck did not change it"):
        RunFolder.create(run.path, Manifest())
    assert run.manifest == MANIFEST
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").touch()
    with pytest.raises(RunFolderInUse):
        RunFolder.create(tmp_path / "other", Manifest())


def test_an_empty_folder_may_be_taken(tmp_path: Path) -> None:
    assert RunFolder.create(tmp_path, MANIFEST).manifest == MANIFEST


def test_a_place_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="it is a file, not a folder"):
        RunFolder.create(tmp_path / "file", MANIFEST)
    with pytest.raises(OutputError, match="Not a directory"):
        RunFolder.create(tmp_path / "file" / "below", MANIFEST)


def test_a_folder_without_permission_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(OutputError, match="Permission denied"):
        RunFolder.create(tmp_path / "run", MANIFEST)
    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(TraceOutOfReach, match="Permission denied"):
        RunFolder.open(tmp_path)


def test_opening_another_folder_is_reported(tmp_path: Path) -> None:
    with pytest.raises(RunFolderNotFound):
        RunFolder.open(tmp_path / "nowhere")
    (tmp_path / "file").touch()
    with pytest.raises(RunFolderNotFound):
        RunFolder.open(tmp_path / "file")
    with pytest.raises(RunFolderEmpty, match=r"neither run\.json nor an event file"):
        RunFolder.open(tmp_path)


def test_run_ids_are_unique(tmp_path: Path) -> None:
    words = [RunFolder.create(tmp_path / str(number), Manifest()).manifest.id for number in range(2)]
    assert all(words) and len(set(words)) == 2


def test_events_without_a_manifest_can_be_read(run: RunFolder) -> None:
    write_window(run, 0, 1)
    (run.path / "run.json").unlink()
    assert RunFolder.open(run.path).manifest == Manifest(traincheck="")
    assert [len(list(windows)) for _, windows in RunFolder.open(run.path).windows()] == [1]


def test_update_changes_fields_as_a_whole(run: RunFolder) -> None:
    manifest = run.update(ended="2026-01-01T00:00:00+00:00", exit_code=3, stopped_by_us=True)
    assert run.manifest == manifest
    assert (manifest.exit_code, manifest.stopped_by_us, manifest.script) == (3, True, "train.py")
    assert [entry.name for entry in run.path.iterdir()] == ["run.json"]


def test_a_failed_update_leaves_the_old_manifest(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Path, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", fail)
    with pytest.raises(OutputError, match=r"run\.json': No space left on device"):
        run.update(exit_code=0)
    assert run.manifest == MANIFEST


def test_an_argument_that_is_no_unicode_does_not_harm(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "run", Manifest(argv=("caf\udce9", "café")))
    assert run.manifest.argv == ("caf?", "café")


def test_unknown_fields_are_passed_over_and_a_newer_format_is_not(run: RunFolder) -> None:
    file = run.path / "run.json"
    stored = json.loads(file.read_text())
    file.write_text(json.dumps({**stored, "colour": "red"}))
    assert run.manifest == MANIFEST
    file.write_text(json.dumps({**stored, "format": FORMAT + 1, "argv": {"means": "another thing"}}))
    with pytest.raises(TraceTooNew, match=r"run\.json was written in trace format"):
        _ = run.manifest


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"format": "one"}', b'{"format": 1, "argv": 3}', b"\xff{}"])
def test_garbled_json_is_reported_with_the_file_and_the_cure(run: RunFolder, content: bytes) -> None:
    (run.path / "run.json").write_bytes(content)
    with pytest.raises(TraceUnreadable, match=r"(?s)run\.json' is damaged or was changed: .*Remove it"):
        _ = run.manifest


def test_notes_are_replaced_and_sorted_by_rank_and_process(run: RunFolder) -> None:
    notes = [ProcessNote(rank=rank, process=process) for rank, process in ((10, 3), (2, 100), (2, 20))]
    for note in notes:
        run.write_note(note)
    latest = ProcessNote(rank=2, process=20, windows=5, dropped=1, cost={"fingerprints": 0.25}, ended=True)
    run.write_note(latest)
    assert run.notes() == (latest, notes[1], notes[0])


def test_event_files_are_sorted_by_rank_and_process(run: RunFolder) -> None:
    for rank, process in ((10, 3), (2, 100), (2, 20)):
        write_window(run, rank, process)
    (run.path / "events-1-1.arrows.bak").touch()
    assert [file.name for file in run.event_files()] == [
        "events-2-20.arrows",
        "events-2-100.arrows",
        "events-10-3.arrows",
    ]


def test_windows_go_with_the_note_of_their_process(run: RunFolder) -> None:
    write_window(run, 1, 5)
    write_window(run, 0, 6)
    note = ProcessNote(rank=1, process=5)
    run.write_note(note)
    owners = [(owner, [(window.rank, window.process) for window in windows]) for owner, windows in run.windows()]
    assert owners == [(None, [(0, 6)]), (note, [(1, 5)])]


def test_the_process_that_trains_is_found_for_each_rank(run: RunFolder) -> None:
    steps = from_text("window setup\nwindow train step=1\n  function torch.add\nwindow end step=1")
    for rank, process, windows in ((0, 1, steps[:1]), (0, 2, steps), (0, 30, steps[:2]), (1, 3, steps[:1])):
        write_windows(run, rank, process, windows)
    assert run.jobs() == (Job("", 2, {0: run.path / "events-0-2.arrows", 1: run.path / "events-1-3.arrows"}),)


def test_of_equal_processes_the_one_with_more_events_trains(run: RunFolder) -> None:
    idle, busy = from_text("window setup\nwindow setup\n  function torch.manual_seed site=train.py:1:main")
    for process, window in ((1, idle), (2, busy), (3, idle)):
        write_windows(run, 0, process, [window])
    assert run.jobs() == (), "one rank alone is no job"
    write_windows(run, 1, 4, [idle])
    assert run.jobs()[0].files[0] == run.path / "events-0-2.arrows"


def test_attempts_of_a_job_are_distinguished_and_a_launcher_is_of_none(run: RunFolder) -> None:
    for rank, process, size, job in (
        (0, 1, 1, ""),
        (0, 2, 3, "a-0"),
        (1, 3, 3, "a-0"),
        (0, 4, 2, "a-1"),
        (1, 5, 2, "a-1"),
    ):
        run.write_note(ProcessNote(rank=rank, process=process, world_size=size, job=job))
        write_window(run, rank, process)
    jobs = [(job.name, job.size, sorted(job.files)) for job in run.jobs()]
    assert jobs == [("a-0", 3, [0, 1]), ("a-1", 2, [0, 1])]


def test_a_note_of_a_rank_that_was_not_known_yet_is_withdrawn(run: RunFolder) -> None:
    run.write_note(ProcessNote(rank=0, process=7))
    run.withdraw_note(0, 7)
    run.withdraw_note(0, 8)
    assert run.notes() == ()


def test_a_file_requests_processes_to_stop(run: RunFolder) -> None:
    assert run.stop_request() is None
    run.request_stop("Ranks go apart", 12)
    assert run.stop_request() == StopRequest(title="Ranks go apart", step=12)
    (run.path / "control.json").write_text("{")
    with pytest.raises(TraceUnreadable, match=r"control\.json"):
        run.stop_request()


def test_size_counts_all_files(run: RunFolder) -> None:
    before = run.size
    (run.path / "more").write_bytes(bytes(1000))
    assert run.size == before + 1000
    assert before == (run.path / "run.json").stat().st_size


def test_a_readable_trace_can_be_stored(run: RunFolder) -> None:
    windows = from_text("window train step=1\n  function torch.add\n")
    with TraceWriter(run.path, 0, 0) as writer:
        writer.write(windows[0])
    assert [list(stored) for _, stored in run.windows()] == [windows]
