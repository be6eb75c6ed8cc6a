"""Builds a long recording: repeats a real one with new step numbers and values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from traincheck.trace.folder import RunFolder
from traincheck.trace.reader import read_windows
from traincheck.trace.writer import TraceWriter
from traincheck.vocab.events import Call, Change, Reading, Window

_ODD = 0x9E3779B97F4A7C15
"""Multiples of this number are far apart, so repetitions have different fingerprints."""
_64_BITS = (1 << 64) - 1


class LongRecording(NamedTuple):
    """A recording to write: its folder, the repeated run, the number of repetitions, and its number among equals."""

    folder: Path
    source: Path
    times: int
    number: int = 0

    def __str__(self) -> str:
        return str(self.folder)


def write_recording(long: LongRecording) -> int:
    """Write the run folder if it is missing, and return its number of events."""
    if (long.folder / "events").exists():
        return int((long.folder / "events").read_text())
    windows = list(read_windows(RunFolder.open(long.source).event_files()[0]))
    manifest = RunFolder.open(long.source).manifest
    started = f"2026-01-01T{long.number // 3600:02}:{long.number // 60 % 60:02}:{long.number % 60:02}+00:00"
    RunFolder.create(long.folder, msgspec.structs.replace(manifest, started=started, id=""))
    events = 0
    with TraceWriter(long.folder, 0, 1) as writer:
        for window in repeat_windows(windows, long.times, long.number):
            writer.write(window)
            events += events_in(window)
    (long.folder / "events").write_text(str(events))
    return events


def events_in(window: Window) -> int:
    """Return the number of calls, changes and readings; tensors count with their call."""
    return len(window.calls) + len(window.changes) + len(window.readings)


def repeat_windows(windows: Sequence[Window], times: int, number: int = 0) -> Iterator[Window]:
    """Yield the windows before the first step, then the steps `times` times, then the windows after them."""
    steps = [window for window in windows if window.step and window.stage != "end"]
    first, last = windows.index(steps[0]), windows.index(steps[-1])
    length = max(window.step for window in steps)
    begins = min(_seqs(steps[0]), default=0)
    span = max((seq for window in steps for seq in _seqs(window)), default=0) + 1 - begins
    yield from windows[:first]
    for turn in range(times):
        for window in steps:
            moved = _Moved(begins, turn * span, (turn + number * times) * _ODD & _64_BITS)
            index = window.index + turn * (last + 1 - first)
            yield moved.window(window, index, window.step + turn * length)
    turns = times - 1
    for window in windows[last + 1 :]:
        moved = _Moved(begins, turns * span, 0)
        yield moved.window(window, window.index + turns * (last + 1 - first), window.step + turns * length)


def _seqs(window: Window) -> Iterator[int]:
    for call in window.calls:
        yield call.seq
        yield call.end if call.end >= 0 else call.seq
    yield from (event.seq for event in (*window.changes, *window.readings))


class _Moved(NamedTuple):
    """Shifts events after `begins` by `by` positions, and changes their fingerprints."""

    begins: int
    by: int
    mark: int

    def window(self, window: Window, index: int, step: int) -> Window:
        return Window(
            index,
            step,
            window.stage,
            tuple(map(self._call, window.calls)),
            tuple(map(self._change, window.changes)),
            window.rank,
            1,
            tuple(map(self._reading, window.readings)),
        )

    def _at(self, seq: int) -> int:
        return seq + self.by if seq >= self.begins else seq

    def _print(self, fingerprint: int | None) -> int | None:
        return None if fingerprint is None else fingerprint ^ self.mark

    def _call(self, call: Call) -> Call:
        tensors = tuple(
            tensor if tensor.fingerprint is None else tensor._replace(fingerprint=self._print(tensor.fingerprint))
            for tensor in call.tensors
        )
        seq, end, parent = map(self._at, call[:3])
        return call._replace(seq=seq, end=end, parent=parent, tensors=tensors)

    def _change(self, change: Change) -> Change:
        seq, call = self._at(change.seq), self._at(change.call)
        return change._replace(seq=seq, call=call, fingerprint=self._print(change.fingerprint))

    def _reading(self, reading: Reading) -> Reading:
        value = reading.value
        if reading.attribute == "data" and isinstance(value, int) and not isinstance(value, bool):
            value = self._print(value)
        return reading._replace(seq=self._at(reading.seq), call=self._at(reading.call), value=value)
