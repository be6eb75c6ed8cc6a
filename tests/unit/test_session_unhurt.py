"""A session whose parts fail, hang or find no room does not concern the program, and leaves nothing behind."""

from __future__ import annotations

import copy
import gc
import importlib
import os
import random
import resource
import shutil
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
import torch
from torch import nn

import traincheck
from small_trainings import same, train
from traincheck.background_threads import NAME
from traincheck.checking.live import LiveChecker
from traincheck.invariants.book import Book, write_book
from traincheck.reporting import quiet_import
from traincheck.runtime import process_session as sessions
from traincheck.runtime.recording import pipeline as pipelines
from traincheck.sources.modules.modules import ModuleSource
from traincheck.sources.recording.recorder import Recorder
from traincheck.testing import faults
from traincheck.testing.leftovers import differences, object_state, process_state
from traincheck.trace.folder import RunFolder
from traincheck.trace.writer import TraceWriter
from traincheck.vocab.invariant import Invariant

STEP = "A call of torch.optim.Optimizer.step changes a parameter."


@pytest.fixture(scope="module", autouse=True)
def expected(tmp_path_factory: pytest.TempPathFactory) -> object:
    """Return the program's results. One-time registrations of the process exist by now."""
    with traincheck.observe(tmp_path_factory.mktemp("first") / "run"):
        train()
    return train()


@pytest.fixture
def book(tmp_path: Path, new_invariant: Callable[..., Invariant]) -> Path:
    write_book(Book((new_invariant(),)), tmp_path / "book.jsonl")
    return tmp_path / "book.jsonl"


@contextmanager
def broken(holder: type, method: str, error: faults.Error) -> Iterator[None]:
    with faults.failing_at(holder, method, error) as fault:
        yield
    assert fault.times


def full() -> OSError:
    return OSError(28, "No space left on device")


PARTS: dict[str, tuple[Callable[[], AbstractContextManager[None]], str]] = {
    "trace": (lambda: broken(TraceWriter, "write", full), "trace"),
    "trace, memory": (lambda: broken(TraceWriter, "write", MemoryError), "trace"),
    "end of the trace": (lambda: broken(TraceWriter, "close", full), "trace"),
    "checking": (lambda: broken(LiveChecker, "feed", RecursionError), "checking"),
    "saving": (lambda: broken(LiveChecker, "save", full), "checking"),
    "cutting": (lambda: broken(Recorder, "_close", MemoryError), "windows"),
    "the end": (lambda: broken(Recorder, "finish", LookupError), "session"),
}


@pytest.mark.parametrize("part", PARTS)
def test_a_failing_part_is_reported_and_training_is_unchanged(
    part: str, tmp_path: Path, book: Path, expected: object, capsys: pytest.CaptureFixture[str]
) -> None:
    fails, name = PARTS[part]
    before = process_state()
    with fails(), traincheck.observe(tmp_path / "run", book):
        result = train()
    gc.collect()
    assert same(result, expected)  # type: ignore[arg-type]
    assert without_random(differences(before, process_state())) == {}
    lines = [line for line in capsys.readouterr().err.splitlines() if f"traincheck: {name}: " in line]
    assert len(lines) == 1 and "the training goes on" in lines[0]
    (note,) = RunFolder.open(tmp_path / "run").notes()
    assert note.ended and any(reason.startswith(f"{name}: ") for reason in note.not_observed)


def without_random(state: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in state.items() if not name.startswith("random")}


def test_an_unwritable_note_is_reported(tmp_path: Path, expected: object, capsys: pytest.CaptureFixture[str]) -> None:
    refused = traincheck.observe(tmp_path / "run")
    with faults.failing_at(RunFolder, "write_note", MemoryError), pytest.raises(MemoryError):
        refused.__enter__()
    with traincheck.observe(tmp_path / "again"), faults.failing_at(RunFolder, "_replace", full):
        assert same(train(), expected)  # type: ignore[arg-type]
    assert sessions.current is None


def test_a_full_disk(tmp_path: Path, book: Path, expected: object, capsys: pytest.CaptureFixture[str]) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with traincheck.observe(tmp_path / "run", book) as run:
        resource.setrlimit(resource.RLIMIT_FSIZE, (512, limits[1]))
        try:
            assert same(train(), expected)  # type: ignore[arg-type]
            sessions.current.stop()  # type: ignore[union-attr]
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    stderr = capsys.readouterr().err
    assert stderr.count("traincheck: trace: ") == 1 and "Traceback" not in stderr
    assert run.report is not None and run.report.run["crashed"]  # its last note could not be written


def test_a_folder_that_is_deleted(
    tmp_path: Path, book: Path, expected: object, capsys: pytest.CaptureFixture[str]
) -> None:
    with traincheck.observe(tmp_path / "run", book):
        assert same(train(), expected)  # type: ignore[arg-type]
        shutil.rmtree(tmp_path / "run")
        assert same(train(), expected)  # type: ignore[arg-type]
    assert "Traceback" not in capsys.readouterr().err


def test_internal_errors_do_not_hide_program_errors(tmp_path: Path, book: Path) -> None:
    run = traincheck.observe(tmp_path / "run", book)
    with pytest.raises(ValueError, match="the program's own"), run, faults.failing_at(RunFolder, "_replace", full):
        raise ValueError("the program's own")


@pytest.fixture
def settle() -> Callable[[], None]:
    """Waits for the threads of TrainCheck that the test started; earlier tests may have left some that stay."""
    earlier = set(threading.enumerate())

    def wait() -> None:
        for thread in set(threading.enumerate()) - earlier:
            if thread.name.startswith(NAME):
                thread.join(60)
        gc.collect()

    return wait


def test_a_stage_that_hangs_keeps_the_end_for_a_bounded_time(
    tmp_path: Path,
    expected: object,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    settle: Callable[[], None],
) -> None:
    monkeypatch.setattr(pipelines, "STILL_SECONDS", 0.3)
    with faults.hanging_at(TraceWriter, "write", after=1):
        with traincheck.observe(tmp_path / "run"):
            assert same(train(), expected)  # type: ignore[arg-type]
        assert "could not be written and checked" in capsys.readouterr().err
        (note,) = RunFolder.open(tmp_path / "run").notes()
        assert any("(trace)" in reason for reason in note.not_observed)
    settle()


def test_an_interrupt_at_the_end_is_the_programs(tmp_path: Path, expected: object, settle: Callable[[], None]) -> None:
    before = process_state()
    interrupted = pytest.raises(KeyboardInterrupt)
    with faults.hanging_at(TraceWriter, "close"), interrupted, traincheck.observe(tmp_path / "run"):
        assert same(train(), expected)  # type: ignore[arg-type]
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    settle()
    assert without_random(differences(before, process_state())) == {}


class Idle(torch.optim.SGD):
    """Takes steps that change nothing."""

    def step(self, closure: object = None) -> None: ...


def stand_still(steps: int) -> None:
    """A training in which nothing changes."""
    model = nn.Linear(2, 1)
    optimizer = Idle(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()


def test_a_finding_that_cannot_be_shown_still_stops(tmp_path: Path, book: Path) -> None:
    from traincheck.reporting.terminal import TerminalSink

    mute, disk = broken(TerminalSink, "show", BrokenPipeError), faults.failing_at(RunFolder, "update", full)
    observing = traincheck.observe(tmp_path / "run", book, on_violation="stop")
    with mute, disk, pytest.raises(traincheck.StopTraining), observing as run:
        stand_still(100_000)
    assert run.report is not None and [finding.severity for finding in run.report.findings] == ["error"]


def test_odd_program_texts_raise_nothing(tmp_path: Path) -> None:
    from traincheck.sources.recording.step_tracker import StepTracker

    with traincheck.observe(tmp_path / "run"), broken(StepTracker, "explicit_step", MemoryError):
        traincheck.step()
        with traincheck.stage("eval"):
            pass


# -- nothing is left -------------------------------------------------------------------------------------------------


def test_observing_again_and_again_leaves_nothing(tmp_path: Path, book: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    optimizer = torch.optim.Adam(model.parameters())

    def use() -> None:
        optimizer.zero_grad()
        model(torch.ones(4, 4)).sum().backward()
        optimizer.step()
        torch.optim.SGD(model.parameters(), lr=0.1)
        train()

    use()
    with traincheck.observe(tmp_path / "first"):
        use()
    gc.collect()
    before, objects = process_state(), object_state(model, optimizer)
    recorders = []
    for number in range(3):
        with traincheck.observe(tmp_path / f"run-{number}", book if number else ()):
            recorders.append(weakref.ref(sessions.current.recorder))  # type: ignore[union-attr]
            use()
        gc.collect()
        assert without_random(differences(before, process_state())) == {}
        assert differences(objects, object_state(model, optimizer)) == {}
    assert [recorder() for recorder in recorders] == [None, None, None]


def test_a_failed_start_leaves_no_traces(tmp_path: Path) -> None:
    before, refused = process_state(), traincheck.observe(tmp_path / "run")
    with faults.failing_at(ModuleSource, "attach", KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        refused.__enter__()
    assert without_random(differences(before, process_state())) == {}
    assert sessions.current is None


def test_hooks_stay_at_the_exit_if_another_thread_trains(tmp_path: Path) -> None:
    """To take them away would break what the thread is going through; they do nothing any more."""
    over = threading.Event()
    trains = threading.Thread(target=over.wait)
    trains.start()
    zero_grad = torch.optim.Optimizer.zero_grad
    try:
        with traincheck.observe(tmp_path / "run"):
            running = sessions.current
            assert running is not None
            running.on_exit()
            assert torch.optim.Optimizer.zero_grad is not zero_grad
            train()
            running.detach()
        assert torch.optim.Optimizer.zero_grad is zero_grad
    finally:
        over.set()
        trains.join()


def test_a_forked_child_trains_on_its_own(tmp_path: Path, expected: object) -> None:
    with traincheck.observe(tmp_path / "run"):
        assert same(train(), expected)  # type: ignore[arg-type]
        child = os.fork()
        if child == 0:
            fine = same(train(), expected) and sessions.current is None  # type: ignore[arg-type]
            os._exit(0 if fine else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert same(train(), expected)  # type: ignore[arg-type]
    (note,) = RunFolder.open(tmp_path / "run").notes()
    assert note.ended and note.dropped == 0 and note.steps == 12
    assert len(RunFolder.open(tmp_path / "run").event_files()) == 1


def test_a_file_of_the_programs_under_our_number_is_not_written_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with traincheck.observe(tmp_path / "run"):
        train()
        running = sessions.current
        assert running is not None
        running.pause()  # all windows so far are written
        running.resume()
        number = running._window_recorder._writer._writer._file.fileno()  # type: ignore[union-attr]
        os.close(number)
        mine = os.open(tmp_path / "mine", os.O_CREAT | os.O_RDWR)
        assert mine == number
        train()
    os.write(mine, b"mine")
    os.close(mine)
    assert (tmp_path / "mine").read_bytes() == b"mine"
    assert capsys.readouterr().err.count("traincheck: trace: ") == 1


def test_to_show_a_finding_draws_no_random_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """rich draws one when it is imported, which may be in the midst of a training."""
    for name in [name for name in sys.modules if name.split(".")[0] == "rich"]:
        monkeypatch.delitem(sys.modules, name)
    state = random.getstate()
    quiet_import.import_terminal()
    importlib.import_module("rich.console")
    importlib.import_module("rich.table")
    assert random.getstate() == state


def _train_with_average() -> list[torch.Tensor]:
    """Train a model whose layers start alike, next to an average of it; return the tensors of the last step."""
    layers = []
    for _ in range(2):
        torch.manual_seed(0)
        layers.append(nn.Linear(8, 8))
    model = nn.Sequential(*layers, nn.BatchNorm1d(8), nn.Linear(8, 3))
    average = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(6):
        inputs, targets = torch.randn(16, 8), torch.randint(3, (16,))
        outputs = model(inputs)
        optimizer.zero_grad()
        nn.functional.cross_entropy(outputs, targets).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        with torch.no_grad():
            for kept, parameter in zip(average.parameters(), model.parameters(), strict=True):
                kept.lerp_(parameter, 0.1)
            average.eval()(inputs)
    state = [value for of_one in optimizer.state.values() for value in of_one.values()]
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    own = [*model.parameters(), *model.buffers(), *average.parameters(), *average.buffers()]
    return [inputs, targets, outputs, *own, *gradients, *state]


@pytest.mark.parametrize("collects", [False, True])
def test_the_program_may_resize_its_memory(tmp_path: Path, collects: bool) -> None:
    """Sharded training frees parameters by resizing their storage, which an array of numpy over it would forbid."""
    block = traincheck.observe(tmp_path) if collects else traincheck.checked(tmp_path, packs="shipped", verify_every=2)
    with block:
        tensors = _train_with_average()
    assert all(tensor.untyped_storage().resizable() for tensor in tensors)
