"""Listeners of the recorder are called in order, once for each event that they override."""

from __future__ import annotations

from traincheck.sources.recording.call_sites import CallSites
from traincheck.sources.recording.listener import Listeners, RecorderListener
from traincheck.sources.recording.recorder import Recorder
from traincheck.sources.recording.step_tracker import Cut


class Log(RecorderListener):
    def __init__(self, name: str, events: list[str]) -> None:
        self.name = name
        self.events = events

    def between_calls(self) -> None:
        self.events.append(f"{self.name} between calls")

    def window_closing(self, cut: Cut) -> None:
        self.events.append(f"{self.name} closing {cut.stage}")

    def window_closed(self, cut: Cut) -> None:
        self.events.append(f"{self.name} closed")


def test_listeners_are_called_in_the_order_in_which_they_were_added() -> None:
    events: list[str] = []
    recorder = Recorder(CallSites(()), lambda window: events.append("window"), lambda source, error: None)
    first, second = Log("first", events), Log("second", events)
    for listener in (first, RecorderListener(), second, first):
        recorder.add_listener(listener)
    recorder.between_calls()
    recorder.steps.explicit_step(recorder.next_seq())
    assert events[:2] == ["first between calls", "second between calls"]
    training = events[events.index("first closing train") :]
    assert training == ["first closing train", "second closing train", "window", "first closed", "second closed"]


def test_empty_methods_are_not_called() -> None:
    listeners = Listeners()
    listeners.add(RecorderListener())
    assert listeners.window_closed == listeners.window_measured == listeners.storage_names == ()
    only = Log("only", [])
    listeners.add(only)
    assert listeners.between_calls == only.between_calls
