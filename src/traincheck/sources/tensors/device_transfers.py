"""Delays conclusions that need values from an accelerator, and fetches these values once per window.

Note [One transfer a step]
An accelerator works far behind the program that issues its work. Reading a number makes the program wait until all of
that work is done, so TrainCheck must not read numbers around each call. Values measured by sources stay on the device
(`DeferredValue`). Conclusions from them are delayed (`DeviceTransfers.when_ready`) until the window of the step closes.
Then TrainCheck fetches all numbers, with one transfer for each device, and draws the conclusions in their original
order. Their events get positions that were reserved earlier. Values on the CPU delay nothing, unless an earlier
conclusion is delayed.

Note [Late windows]
At the end of a step, the transfer of its numbers starts and the program goes on. TrainCheck draws the conclusions at
the next backward, and then hands the window on. By then the accelerator has computed the numbers, and it is busy with
the next forward. The window is not late if the next step is not watched, if the window is no training step, or if its
end needs a conclusion (`before_close`).
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import torch

from traincheck.sources.recording.call_stack import OpenCall
from traincheck.sources.recording.window_buffer import WindowBuffer
from traincheck.sources.tensors.deferred_values import DeferredValue, Fetch, is_capturing
from traincheck.sources.tensors.reading import hidden_from_modes

NextSeq: TypeAlias = Callable[[], int]
"""Returns the position of the next event."""

Conclude: TypeAlias = Callable[[list[Any], NextSeq], object]
"""Takes the fetched values and records the events that follow from them."""


MAX_PENDING = 20_000
"""Maximum number of deferred values, which take memory of the device. An epoch of evaluation is one window."""


class _Deferred(NamedTuple):
    """A delayed conclusion: its source, the values it needs, the call it is about, and the reserved positions of its
    events."""

    source: str
    values: list[Any]
    conclude: Conclude
    call: OpenCall | None
    seqs: list[int]


class RecorderProtocol(Protocol):
    """The part of the recorder that `DeviceTransfers` uses."""

    next_seq: NextSeq

    def fault(self, source: str, error: BaseException) -> None:
        """Report that a source failed."""

    def drop_window(self) -> None:
        """Drop the open window."""

    def finish_late_window(self) -> None:
        """Draw the conclusions of the window before the open one, if they are late."""


class StartedTransfer(NamedTuple):
    """Delayed conclusions, and the transfer of their values."""

    conclusions: list[_Deferred]
    fetch: Fetch


class DeviceTransfers:
    """Delays conclusions from values on accelerators, for one recorder, its window, and all threads."""

    def __init__(self, recorder: RecorderProtocol, window: WindowBuffer) -> None:
        self._recorder = recorder
        self._window = window
        self._deferred: list[_Deferred] = []
        self._pending = 0
        self._streams: dict[torch.device, set[Any]] = {}
        self.late = False  # whether the conclusions of the window before wait for their transfer
        self._needed = False  # whether the close of the open window needs a conclusion
        self._lock = threading.Lock()

    def when_ready(
        self,
        source: str,
        values: Sequence[Any],
        conclude: Conclude,
        *,
        call: OpenCall | None = None,
        events: int = 0,
        before_close: bool = False,
    ) -> None:
        """Call `conclude` with `values` as soon as none of them is deferred: at once if that holds now and no earlier
        conclusion waits.

        `call` is the call that `conclude` may extend, `events` the maximum number of events that it records. If it
        computes with tensors, call this method inside `hidden_from_modes()`. `conclude` must hold neither parameters
        nor gradients. With `before_close`, `RecorderListener.window_closing` needs the conclusion.
        """
        if not self._deferred and not self.late and DeferredValue not in map(type, values):
            conclude(values if type(values) is list else list(values), self._recorder.next_seq)
            return
        seqs = [self._recorder.next_seq() for _ in range(events)]
        with self._lock:
            self._deferred.append(_Deferred(source, list(values), conclude, call, seqs))
            self._pending += len(values)
            self._needed = self._needed or before_close
            self._note_streams(values)
        if self._pending > MAX_PENDING:
            self.flush()

    def _note_streams(self, values: Sequence[Any]) -> None:
        """Note the streams of this thread that compute deferred values."""
        for device in {value.numbers[0].device for value in values if type(value) is DeferredValue}:
            if device.type == "cuda":
                self._streams.setdefault(device, set()).add(torch.cuda.current_stream(device))

    def flush(self) -> None:
        """Fetch all deferred values and draw the delayed conclusions now."""
        started = self.start()
        if started is not None:
            self.conclude(started, (self._window,))

    def start(self) -> StartedTransfer | None:
        """Begin to fetch all deferred values; pass the result to `conclude`. None if no conclusion is delayed."""
        if self.late:
            self._recorder.finish_late_window()
        if not self._deferred:
            return None
        with self._lock:
            conclusions, self._deferred, self._pending, self._needed = self._deferred, [], 0, False
            streams, self._streams = self._streams, {}
        if is_capturing():  # the late window stays late
            self._recorder.drop_window()
            return None
        with hidden_from_modes():
            fetch = Fetch([value for conclusion in conclusions for value in conclusion.values], streams)
        self.late = True
        return StartedTransfer(conclusions, fetch)

    def conclude(self, started: StartedTransfer, buffers: Sequence[WindowBuffer]) -> bool:
        """Draw conclusions, and update their calls in these buffers; whether none failed."""
        self.late, succeeded = False, True
        changed_calls: dict[int, OpenCall] = {}
        with hidden_from_modes():
            fetched_values = iter(started.fetch.wait())
            for conclusion in started.conclusions:
                values = list(itertools.islice(fetched_values, len(conclusion.values)))
                try:
                    conclusion.conclude(values, iter(conclusion.seqs).__next__)
                except Exception as error:
                    succeeded = False
                    self._recorder.fault(conclusion.source, error)
                if conclusion.call is not None:
                    changed_calls[conclusion.call.seq] = conclusion.call
        for buffer in buffers:
            buffer.update_calls(changed_calls)
        return succeeded

    @property
    def may_be_late(self) -> bool:
        """Whether no delayed conclusion is necessary before the open window closes."""
        return not self._needed

    def __bool__(self) -> bool:
        return bool(self._deferred)
