"""The heartbeat: how often, on which thread, and what it does about a disk that is full."""

from __future__ import annotations

import threading

import pytest

from fake_ranks import wait_for
from traincheck.errors import OutputError
from traincheck.runtime.heartbeat import AT_REST, BEAT, SLOWEST, Heartbeat
from traincheck.runtime.recording.pipeline import Pipeline
from traincheck.vocab.events import Window

WINDOW = Window(1, 1, "train")


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Heart:
    """A heartbeat whose clock the test turns; it counts its beats and faults."""

    def __init__(self) -> None:
        self.beats = 0
        self.urgent = False
        self.takes = 0.0
        self.fails: Exception | None = None
        self.faults: list[str] = []
        self.clock = Clock()
        self.it = Heartbeat(self.write, lambda: self.urgent, lambda error: self.faults.append(str(error)), self.clock)

    def write(self) -> None:
        self.beats += 1
        self.clock.now += self.takes
        if self.fails is not None:
            raise self.fails
        self.urgent = False


@pytest.fixture
def heart() -> Heart:
    return Heart()


def test_it_beats_with_the_first_window_then_now_and_then(heart: Heart) -> None:
    for _ in range(100):
        heart.it.feed(WINDOW)
    assert heart.beats == 1
    heart.clock.now += BEAT
    heart.it.feed(WINDOW)
    assert heart.beats == 2


def test_a_finding_is_not_kept_waiting(heart: Heart) -> None:
    heart.it.feed(WINDOW)
    heart.urgent = True
    heart.it.feed(WINDOW)
    assert heart.beats == 2


def test_the_heartbeat_idles_and_reports_the_last_window(heart: Heart) -> None:
    assert heart.it.rest() == AT_REST
    heart.it.feed(WINDOW)
    assert heart.it.rest() == AT_REST  # all of it was told
    heart.it.feed(WINDOW)
    assert heart.it.rest() == BEAT
    heart.clock.now += 5
    assert heart.it.rest() == 0.0


def test_a_missing_window_is_reported_after_a_while() -> None:
    clock, rests = Clock(), []
    it = Heartbeat(lambda: None, lambda: False, lambda error: None, clock, at_rest=lambda: rests.append(clock.now))
    it.feed(WINDOW)
    clock.now += BEAT
    it.feed(WINDOW)  # a beat between windows
    it.feed(WINDOW)
    clock.now += BEAT
    it.beat()  # this one tells the last window
    assert rests == [] and it.rest() == AT_REST
    clock.now += AT_REST
    it.beat()
    assert rests == [clock.now]


def test_a_slow_disk_is_written_to_less_often(heart: Heart) -> None:
    heart.takes = 1.0
    heart.it.feed(WINDOW)
    heart.it.feed(WINDOW)
    assert heart.it.rest() == pytest.approx(10.0)
    heart.takes = 100.0
    heart.it.beat()
    heart.it.feed(WINDOW)
    assert heart.it.rest() == SLOWEST


def test_a_full_disk_is_reported_once_and_retried(heart: Heart) -> None:
    heart.fails = OutputError("note", "No space left on device")
    heart.urgent = True
    for _ in range(10):
        heart.it.feed(WINDOW)
        heart.clock.now += BEAT
    assert heart.beats == 10 and len(heart.faults) == 1 and "No space left" in heart.faults[0]
    for _ in range(10):
        heart.it.feed(WINDOW)  # what is urgent waits, too, where it cannot be written
    assert heart.beats == 11
    heart.fails = None
    heart.clock.now += BEAT
    heart.it.feed(WINDOW)
    heart.fails = OutputError("note", "No space left on device")
    heart.clock.now += BEAT
    heart.it.feed(WINDOW)
    assert len(heart.faults) == 2  # there was time without trouble in between


def test_the_heartbeat_runs_on_the_pipeline_thread_when_idle() -> None:
    threads: list[str] = []
    heartbeat = Heartbeat(lambda: threads.append(threading.current_thread().name), lambda: False, lambda error: None)
    pipeline = Pipeline([("heartbeat", heartbeat.feed)], lambda name, error: None, heartbeat)
    pipeline.start()
    pipeline.put(WINDOW)
    pipeline.put(WINDOW)
    wait_for(lambda: len(threads) >= 2)  # the second window is told although none comes after it
    pipeline.close()
    assert set(threads) == {"traincheck"}
    assert pipeline.seconds["heartbeat"] >= 0


def test_a_beat_that_fails_in_whatever_way_ends_nothing() -> None:
    faults: list[str] = []

    def write() -> None:
        raise RuntimeError("a fault of ours")

    heartbeat = Heartbeat(write, lambda: False, lambda error: faults.append(str(error)))
    fed: list[Window] = []
    pipeline = Pipeline([("heartbeat", heartbeat.feed), ("next", fed.append)], lambda name, error: None, heartbeat)
    pipeline.start()
    for _ in range(3):
        pipeline.put(WINDOW)
    pipeline.close()
    assert len(fed) == 3 and faults == ["a fault of ours"]
