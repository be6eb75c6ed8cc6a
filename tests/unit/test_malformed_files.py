"""Run folders, books and tallies of strangers: bombs, pipes, links, absurd numbers.

None of them fills the memory, keeps us, or leads us out of the folder.
"""

from __future__ import annotations

import gzip
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from malformed_files import build
from recorded_runs import training, write_run
from traincheck.checking.offline import check_folder
from traincheck.checking.results import result_of_live_run
from traincheck.checking.run_status import Watcher
from traincheck.cli.main import main
from traincheck.errors import (
    InputError,
    OutputError,
    ReportUnreadable,
    SessionUnreadable,
    TallyUnreadable,
    TraceOutOfReach,
    TraceUnreadable,
)
from traincheck.inference.learn import learn
from traincheck.inference.tally import Tally
from traincheck.inference.tally_files import read_tallies, write_tallies
from traincheck.invariants.book import Book, read_book, write_book
from traincheck.reporting.html.sink import render_html
from traincheck.reporting.json_report import read_json, write_json
from traincheck.runtime.launching.run_settings import Settings
from traincheck.testing.readable_traces import from_text
from traincheck.trace import message_limits
from traincheck.trace.control_file import change_control, read_control
from traincheck.trace.folder import RunFolder
from traincheck.trace.format import BOOK_FILE
from traincheck.trace.message_limits import MAX_ROWS
from traincheck.trace.reader import follow_windows, last_step, read_windows
from traincheck.trace.run_notes import LARGEST_JOB, Manifest, ProcessNote
from traincheck.trace.schema import COLUMNS, EVENT, TEXT, schema
from traincheck.trace.writer import TraceWriter
from traincheck.vocab.finding import Report
from traincheck.vocab.invariant import Invariant

SMALL = 1 << 20
"""Bytes of a bomb."""


@pytest.fixture
def run(tmp_path: Path, some_report: Report) -> Path:
    return build(tmp_path / "run", some_report)


# -- bombs -------------------------------------------------------------------------------------------------------------


def zeros(rows: int) -> pa.RecordBatch:
    """A window with `rows` rows of zeros."""
    columns = []
    for _, kind, _ in COLUMNS:
        if kind in (TEXT, EVENT):
            codes = pa.array(memoryview(bytes(rows * (4 if kind == TEXT else 1))).cast("i" if kind == TEXT else "b"))
            columns.append(pa.DictionaryArray.from_arrays(codes, pa.array(["window"], pa.utf8())))
        else:
            columns.append(pa.nulls(rows, kind))
    return pa.RecordBatch.from_arrays(columns, schema=schema(0, 0))


def bomb(path: Path, batch: pa.RecordBatch) -> Path:
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, batch.schema, options=options) as stream:
        stream.write_batch(batch)
    assert path.stat().st_size < SMALL
    return path


@pytest.mark.parametrize("rows", [1_000_000, pytest.param(2 * MAX_ROWS, marks=[pytest.mark.slow, pytest.mark.long])])
def test_a_window_of_very_many_rows_is_refused(tmp_path: Path, rows: int) -> None:
    path = bomb(tmp_path / "events-0-0.arrows", zeros(rows))
    for read in (read_windows, lambda path: follow_windows(path, lambda: True)):
        with pytest.raises(TraceUnreadable, match="rows"):
            list(read(path))
    assert last_step(path) == 0


def test_texts_that_unpack_to_very_much_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_limits, "LARGEST", 1 << 22)
    batch = zeros(1)
    huge = pa.DictionaryArray.from_arrays(pa.array([0], pa.int32()), pa.array(["x" * (1 << 23)], pa.utf8()))
    oversized = batch.set_column(2, batch.schema.field(2), huge)
    path = bomb(tmp_path / "events-0-0.arrows", oversized)
    with pytest.raises(TraceUnreadable, match="memory"):
        list(read_windows(path))


def test_written_files_are_within_the_limits(tmp_path: Path) -> None:
    """Also where everything repeats, so that a row takes least."""
    line = "  project app.f args={}\n" * 20_000
    with TraceWriter(tmp_path, 0, 0) as writer:
        for window in from_text(f"window train step=1\n{line}window train step=2\n{line}"):
            writer.write(window)
    assert [len(window.calls) for window in read_windows(writer.path)] == [20_000, 20_000]


def test_tallies_that_unpack_to_very_much_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "tallies.gz"
    write_tallies([Tally("train.py", "d", "r")], path)
    assert read_tallies(path)
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()) + b"\n" * (1 << 27)))
    assert path.stat().st_size < SMALL
    with pytest.raises(TallyUnreadable, match="unpacks"):
        read_tallies(path)


def test_a_file_that_claims_to_be_huge_is_refused(run: Path) -> None:
    for name in ("run.json", "process-0-10.json"):
        before = (run / name).read_bytes()
        os.truncate(run / name, 1 << 40)  # takes no room on the disk
        with pytest.raises(TraceOutOfReach, match="at most"):
            RunFolder.open(run).jobs()
            _ = RunFolder.open(run).manifest
        (run / name).write_bytes(before)
    os.truncate(run / "report.json", 1 << 40)
    with pytest.raises(ReportUnreadable, match="at most"):
        read_json(run / "report.json")


# -- numbers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [LARGEST_JOB + 1, 10**18, -1])
def test_a_job_of_more_ranks_than_there_can_be_is_refused(run: Path, size: int) -> None:
    note = msgspec.json.decode((run / "process-0-10.json").read_bytes())
    (run / "process-0-10.json").write_bytes(msgspec.json.encode({**note, "world_size": size}))
    with pytest.raises(TraceUnreadable, match=r"process-0-10\.json"):
        check_folder(run, read_book(run / BOOK_FILE))
    with pytest.raises(TraceUnreadable, match=r"process-0-10\.json"):
        result_of_live_run(run, read_book(run / BOOK_FILE))
    assert any("process-0-10.json" in reason for reason in Watcher(run).look().status.unread)


def test_a_call_inside_itself_is_refused(tmp_path: Path) -> None:
    (window,) = from_text("window train step=1\n  project app.f\n  project app.g\n")
    for parent in (window.calls[0].seq, window.calls[1].seq):
        call = window.calls[0]._replace(parent=parent)
        path = tmp_path / str(parent)
        path.mkdir()
        with TraceWriter(path, 0, 0) as writer:
            writer.write(replace(window, calls=(call,)))
        with pytest.raises(TraceUnreadable, match="begins later"):
            list(read_windows(writer.path))


# -- what is no file, and what lies elsewhere --------------------------------------------------------------------------

NAMES = (
    *("run.json", "process-0-10.json", "events-0-10.arrows", "live-0-10.json", "ranks-10.json", BOOK_FILE),
    *("report.json", "control.json", "controlled-0-10.json", "session.json"),
)


def _use(run: Path) -> None:
    """All that reads a run folder, each for itself."""
    book = Book(())

    def report() -> object:
        return read_json(run / "report.json")

    works: tuple[Callable[[], object], ...] = (
        lambda: check_folder(run, book),
        lambda: result_of_live_run(run, book),
        lambda: Watcher(run).look(),
        lambda: RunFolder.open(run).jobs(),
        lambda: read_control(run),
        lambda: learn([run]),
        lambda: Settings.read(run / "session.json"),
        report,
    )
    for work in works:
        try:
            work()
        except (InputError, SessionUnreadable) as error:
            assert str(run) in str(error)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with names here")
@pytest.mark.parametrize("name", NAMES)
def test_a_pipe_instead_of_a_file_does_not_block(run: Path, name: str) -> None:
    (run / name).unlink()
    os.mkfifo(run / name)
    _use(run)


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="there is no such device here")
@pytest.mark.parametrize("name", NAMES)
def test_a_link_to_a_device_is_not_read(run: Path, name: str) -> None:
    (run / name).unlink()
    (run / name).symlink_to("/dev/zero")
    _use(run)


def test_control_requests_are_not_written_through_a_link(run: Path, tmp_path: Path) -> None:
    outside, control = tmp_path / "outside.json", run / "control.json"
    control.unlink()
    control.symlink_to(outside)
    change_control(run, lambda control: msgspec.structs.replace(control, sample=3))
    assert not outside.exists() and read_control(run).sample == 3 and not control.is_symlink()
    lock = run / ".control.lock"
    lock.unlink(missing_ok=True)
    lock.symlink_to(outside)
    with pytest.raises(OutputError, match="lock"):
        change_control(run, lambda control: msgspec.structs.replace(control, sample=4))
    assert not outside.exists()


def test_names_in_files_lead_nowhere(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Books, snapshots and folders that a run folder names are words to show, and nothing is opened by them."""
    outside = tmp_path / "outside.jsonl"
    outside.write_text("not a book")
    folder = RunFolder(run)
    folder.update(books=(str(outside), "../outside.jsonl"), script="../outside.jsonl", argv=("../outside.jsonl",))
    settings = run / "session.json"
    settings.write_text('{"run_folder": "/elsewhere", "mode": "run", "books": ["../outside.jsonl"]}')
    before = outside.stat().st_atime_ns
    assert main(["check", str(run), "--book", str(run / BOOK_FILE), "--fail-on", "never"]) == 0
    assert main(["report", str(run), "--fail-on", "never"]) == 0
    assert outside.stat().st_atime_ns == before
    assert Settings.read(settings).run_folder == str(run)


# -- the umask ---------------------------------------------------------------------------------------------------------


@pytest.fixture(params=[0o027, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def test_files_are_made_with_the_umask(
    umask: int, tmp_path: Path, some_report: Report, some_invariants: tuple[Invariant, ...]
) -> None:
    run = build(tmp_path / "deep" / "run", some_report)
    write_json(some_report, tmp_path / "deep" / "report.json")
    render_html(some_report, (), tmp_path / "deep" / "report.html")
    write_book(Book(some_invariants), tmp_path / "deep" / "books" / "good.jsonl")
    change_control(run, lambda control: msgspec.structs.replace(control, sample=3))
    RunFolder(run).update(ended="now")
    made = [*(tmp_path / "deep").rglob("*"), tmp_path / "deep"]
    assert len(made) > 20
    for path in made:
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o777 if path.is_dir() else 0o666) & ~umask, f"{path} {mode:o}"


def test_notes_accept_values_of_valid_runs(tmp_path: Path) -> None:
    folder = RunFolder(write_run(tmp_path / "run", "train.py", training(2)))
    folder.write_note(ProcessNote(rank=-1, process=4_194_304, world_size=LARGEST_JOB, steps=10**12, seconds=1e9))
    assert folder.notes()[0].steps == 10**12
    assert Manifest(exit_code=-9).exit_code == -9
