"""The meter adds up the time of guarded functions by source, also where several threads run."""

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


def test_the_time_of_inner_functions_is_subtracted() -> None:
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


def test_no_source_has_a_negative_time() -> None:
    """One of two threads may subtract the time of the other, and notes hold no negative time."""
    now = [0.0]
    recorder = metered(now)

    def beside_another_thread() -> None:
        now[0] += 1.0
        recorder.meter.inside += 3.0

    recorder.guarded("calls", beside_another_thread)()
    assert recorder.meter.seconds() == {}


def test_hashed_bytes_and_their_time_are_counted() -> None:
    meter = OverheadMeter()
    before = meter.hashing()
    fingerprints([torch.zeros(1000), torch.zeros(24, dtype=torch.uint8)])
    after = meter.hashing()
    assert after["hashed"] - before["hashed"] == 4024
    assert after["hashing"] > before["hashing"]
