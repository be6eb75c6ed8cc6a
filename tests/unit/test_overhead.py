"""The meter: what each source took, as guarded functions tell it, also where several threads are at work."""

from __future__ import annotations

import torch

from traincheck.sources.recording.call_sites import CallSites
from traincheck.sources.recording.overhead import OverheadMeter
from traincheck.sources.recording.recorder import Recorder
from traincheck.sources.tensors.reading import fingerprints


def metered(now: list[float]) -> Recorder:
    """A recorder whose meter reads the time in `now`."""
    meter = OverheadMeter(lambda: now[0])
    return Recorder(CallSites(()), lambda window: None, lambda source, error: None, meter=meter)


def test_what_is_inside_is_left_out() -> None:
    now = [0.0]
    recorder = metered(now)

    def inner() -> None:
        now[0] += 0.75

    guarded = recorder.guarded("calls", inner)

    def outer() -> None:
        now[0] += 0.25
        guarded()

    recorder.guarded("digests", outer)()
    assert recorder.meter.seconds() == {"calls": 0.75, "digests": 0.25}
    assert recorder.meter.lap().overhead == recorder.meter.total == 1.0


def test_no_source_is_told_to_have_taken_less_than_nothing() -> None:
    """Of two threads one may leave out the time of the other, and notes tell of no negative time."""
    now = [0.0]
    recorder = metered(now)

    def amid_another_thread() -> None:
        now[0] += 1.0
        recorder.meter.inside += 3.0

    recorder.guarded("calls", amid_another_thread)()
    assert recorder.meter.seconds() == {}


def test_what_was_hashed_is_told() -> None:
    meter = OverheadMeter()
    before = meter.hashing()
    fingerprints([torch.zeros(1000), torch.zeros(24, dtype=torch.uint8)])
    after = meter.hashing()
    assert after["hashed"] - before["hashed"] == 4024
    assert after["hashing"] > before["hashing"]
