"""The pipeline: stages that fail, hang or run out of memory do not concern who hands it windows, nor the end."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from traincheck.background_threads import background
from traincheck.runtime.recording import pipeline as pipelines
from traincheck.runtime.recording.pipeline import BYTES_OF_AN_EVENT, MAX_BYTES, MAX_WAITING, Pipeline
from traincheck.runtime.stderr_log import in_words, log_warning
from traincheck.vocab.events import NO_CALL, Reading, Window

READING = Reading(0, NO_CALL, "run", "run", "steps", 1)


def window(index: int, events: int = 0) -> Window:
    return Window(index, index, "train", readings=(READING,) * events)


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.002)


class StageLog:
    def __init__(self) -> None:
        self.faults: list[tuple[str, str]] = []
        self.windows: list[int] = []

    def fault(self, name: str, error: BaseException) -> None:
        self.faults.append((name, type(error).__name__))

    def take(self, window: Window) -> None:
        self.windows.append(window.index)


@pytest.fixture
def log() -> StageLog:
    return StageLog()


@pytest.mark.parametrize("error", [LookupError, MemoryError, RecursionError, KeyboardInterrupt, SystemExit])
def test_a_failing_stage_is_reported_once_and_others_continue(error: type[BaseException], log: StageLog) -> None:
    def fails(window: Window) -> None:
        raise error("a fault of ours")

    pipeline = Pipeline([("broken", fails), ("good", log.take)], log.fault)
    pipeline.start()
    for index in range(5):
        pipeline.put(window(index))
    assert pipeline.close() == ""
    assert log.windows == list(range(5))
    assert log.faults == [("broken", error.__name__)]


def test_telling_of_a_fault_may_fail_too(log: StageLog) -> None:
    def fails(*_: object) -> None:
        raise MemoryError

    pipeline = Pipeline([("broken", fails), ("good", log.take)], fails)
    pipeline.start()
    pipeline.put(window(0))
    assert pipeline.close() == ""
    assert log.windows == [0]


def test_a_hanging_stage_does_not_block_and_memory_is_bounded(
    log: StageLog, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pipelines, "STILL_SECONDS", 0.3)
    monkeypatch.setattr(pipelines, "PATIENCE", 0.1)
    over = threading.Event()
    pipeline = Pipeline([("hanging", lambda window: over.wait(60)), ("good", log.take)], log.fault)
    pipeline.start()
    for index in range(3 * MAX_WAITING):
        pipeline.put(window(index))
    assert pipeline.closed == 3 * MAX_WAITING
    assert pipeline.dropped == 2 * MAX_WAITING - 1  # one is at work
    assert "hanging" in pipeline.close()
    until(lambda: "Ctrl-C" in capsys.readouterr().err)
    over.set()


def test_windows_that_wait_are_bounded_in_memory_as_well(log: StageLog) -> None:
    over = threading.Event()
    pipeline = Pipeline([("slow", lambda window: over.wait(60)), ("good", log.take)], log.fault)
    pipeline.start()
    half = MAX_BYTES // BYTES_OF_AN_EVENT // 2 + 1
    readings = (READING,) * half
    for index in range(4):
        pipeline.put(Window(index, index, "train", readings=readings))
    assert pipeline.dropped == 3
    over.set()
    assert pipeline.close() == ""
    pipeline = Pipeline([("good", log.take)], log.fault)
    pipeline.put(Window(9, 9, "train", readings=readings * 3))  # one that is too large by itself is not lost
    pipeline.close()
    assert log.windows == [0, 9]


def test_fast_windows_are_processed_in_batches(log: StageLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipelines, "APART_SECONDS", 1.0)
    monkeypatch.setattr(pipelines, "FIRST_WINDOWS", 2)
    at: list[float] = []
    pipeline = Pipeline([("good", lambda window: (log.take(window), at.append(time.monotonic())))], log.fault)
    for index in range(2):  # the first ones are not kept waiting
        pipeline.put(window(index))
        until(lambda index=index: len(log.windows) == index + 1)  # type: ignore[misc]
    for index in range(2, 7):
        pipeline.put(window(index))
    until(lambda: len(log.windows) == 7)
    assert log.windows == list(range(7))
    assert at[1] - at[0] < 0.5
    assert at[2] - at[1] > 0.5
    assert at[6] - at[2] < 0.5
    pipeline.close()


def that_waits(log: StageLog, monkeypatch: pytest.MonkeyPatch) -> Pipeline:
    """A pipeline that has taken one window; the row after it is due in a quarter of an hour."""
    monkeypatch.setattr(pipelines, "APART_SECONDS", 1000.0)
    monkeypatch.setattr(pipelines, "FIRST_WINDOWS", 0)
    pipeline = Pipeline([("good", log.take)], log.fault)
    pipeline.put(window(0))
    until(lambda: log.windows == [0])
    return pipeline


@pytest.mark.parametrize("events, windows", [(0, pipelines.MAX_TOGETHER + 1), (200_000, 2)])
def test_many_or_large_windows_end_a_batch(
    events: int, windows: int, log: StageLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = that_waits(log, monkeypatch)
    for index in range(windows):
        pipeline.put(window(index, events))
    until(lambda: len(log.windows) > windows // 2)
    pipeline.close()


def test_no_window_is_batched_if_findings_stop_the_run(log: StageLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipelines, "APART_SECONDS", 1000.0)
    monkeypatch.setattr(pipelines, "FIRST_WINDOWS", 0)
    pipeline = Pipeline([("good", log.take)], log.fault, promptly=True)
    for index in range(3):
        pipeline.put(window(index))
        until(lambda index=index: len(log.windows) == index + 1)  # type: ignore[misc]
    pipeline.close()


@pytest.mark.parametrize("ends", [Pipeline.close, Pipeline.rest, lambda pipeline: pipeline.say("a word")])
def test_batches_are_flushed_at_the_end_at_a_fork_and_on_request(
    ends: Callable[[Pipeline], object], log: StageLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = that_waits(log, monkeypatch)
    pipeline.put(window(1))
    began = time.monotonic()
    ends(pipeline)
    until(lambda: log.windows == [0, 1])
    assert time.monotonic() - began < 60
    pipeline.close()
    assert log.windows == [0, 1]


def test_an_interrupt_ends_the_waiting_at_once(log: StageLog) -> None:
    over = threading.Event()
    pipeline = Pipeline([("hanging", lambda window: over.wait(60))], log.fault)
    pipeline.put(window(0))
    background(lambda: (time.sleep(0.2), os.kill(os.getpid(), signal.SIGINT)), "traincheck-test")
    with pytest.raises(KeyboardInterrupt):
        pipeline.close()
    over.set()


def test_final_actions_run_separately_after_all_windows(log: StageLog) -> None:
    def fails() -> None:
        raise OSError("no space left")

    order: list[str] = []
    last = [("trace", fails), ("note", lambda: order.append(f"after {len(log.windows)}"))]
    pipeline = Pipeline([("good", log.take)], log.fault, last=last)
    for index in range(50):
        pipeline.put(window(index))
    assert pipeline.close() == ""
    assert order == ["after 50"] and log.faults == [("trace", "OSError")]


def test_a_fork_has_no_background_thread(log: StageLog) -> None:
    pipeline = Pipeline([("good", log.take)], log.fault)
    pipeline.start()
    pipeline.put(window(0))
    pipeline.rest()
    assert log.windows == [0]
    assert not [thread for thread in threading.enumerate() if thread.name == "traincheck"]
    pipeline.put(window(1))  # which starts it again
    assert pipeline.close() == ""
    assert log.windows == [0, 1]


def test_a_fork_does_not_wait_for_a_stage_that_hangs_more_than_once(
    log: StageLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipelines, "FORK_SECONDS", 0.2)
    over = threading.Event()
    pipeline = Pipeline([("hanging", lambda window: over.wait(60)), ("good", log.take)], log.fault)
    pipeline.put(window(0))
    pipeline.rest()
    began = time.monotonic()
    for _ in range(1000):
        pipeline.rest()
    assert time.monotonic() - began < 60
    over.set()
    assert pipeline.close() == "" and log.windows == [0]


def test_there_may_be_no_more_threads(log: StageLog, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    pipeline = Pipeline([("good", log.take)], log.fault)
    monkeypatch.setattr(pipelines, "background", refuses)
    pipeline.put(window(0))
    monkeypatch.undo()
    pipeline.put(window(1))
    assert pipeline.close() == "" and log.windows == [0, 1]


def test_idle_stages_run_without_windows(log: StageLog) -> None:
    class Idle:
        beats = 0

        def rest(self) -> float:
            return 0.01

        def beat(self) -> None:
            self.beats += 1
            if self.beats == 3:
                raise LookupError

    idle = Idle()
    pipeline = Pipeline([("good", log.take)], log.fault, idle)
    pipeline.start()
    until(lambda: idle.beats == 3)
    pipeline.put(window(0))
    assert pipeline.close() == ""
    assert log.faults == [("idle", "LookupError")] and idle.beats == 3


def test_a_signal_handler_may_hand_over_windows_in_the_midst_of_that(log: StageLog) -> None:
    """As in an evaluation: no code here takes a lock that this thread may already hold."""
    pipeline = Pipeline([("good", log.take)], log.fault)
    indices = iter(range(10**9))
    before = signal.signal(signal.SIGALRM, lambda *_: pipeline.put(window(next(indices))))
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    deadline = time.monotonic() + 0.5
    while time.monotonic() < deadline:
        pipeline.put(window(next(indices)))
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)
    assert pipeline.close() == ""
    assert len(log.windows) == len(set(log.windows)) == pipeline.closed - pipeline.dropped


def test_our_threads_take_none_of_the_programs_signals() -> None:
    masks: list[set[int]] = []
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    background(lambda: masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, ())), "traincheck-test").join(60)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
    assert {signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGALRM} <= masks[0]
    assert signal.SIGSEGV not in masks[0]


class Broken:
    """A stderr that fails in its own way."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def write(self, text: str) -> int:
        raise self._error

    def flush(self) -> None: ...


class Unsayable(Exception):
    def __str__(self) -> str:
        raise LookupError


@pytest.mark.parametrize("stream", [None, Broken(BrokenPipeError()), Broken(RuntimeError()), Broken(MemoryError()), 5])
def test_failing_logs_do_not_raise(stream: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    log_warning("no one hears this")
    assert in_words(Unsayable()) == "Unsayable"


def test_complaints_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    log_warning("two\nlines")
    assert capsys.readouterr().err == "traincheck: two lines\n"
    assert in_words(ValueError("why")) == "ValueError: why" and in_words(KeyboardInterrupt()) == "KeyboardInterrupt"


def test_a_closed_stderr_and_stdout_stay_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = (tmp_path / "closed").open("w")
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    log_warning("no one hears this")
