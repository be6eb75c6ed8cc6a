"""Buffers the events of the open window until the recorder closes it."""

from __future__ import annotations

from collections.abc import Iterator

from traincheck.sources.recording.call_stack import OpenCall, with_storage_names
from traincheck.vocab.events import Call, Change, Reading, TensorSummary

MAX_EVENTS = 500_000
"""Events of one window, some 200 MB. An epoch of evaluation of a large model comes near this number. A program whose
steps TrainCheck never sees end would otherwise fill the memory."""


class WindowBuffer:
    """Events in the order in which sources recorded them. Several threads may add to it while one closes it."""

    def __init__(self) -> None:
        self.start = 0  # the position at which the window begins
        self.clear()

    def clear(self) -> None:
        """Drop all events."""
        self.calls: list[Call] = []
        self.changes: list[Change] = []
        self.readings: list[Reading] = []

    def discard_before(self, seq: int) -> None:
        """Begin the window at `seq` and drop earlier events. Calls that began earlier are not recorded as they end."""
        self.calls = [call for call in self.calls if call.seq >= seq]
        self.changes = [change for change in self.changes if change.seq >= seq]
        self.readings = [reading for reading in self.readings if reading.seq >= seq]
        self.start = seq

    def update_calls(self, updated: dict[int, OpenCall]) -> None:
        """Copy the facts that were added to calls after they ended; `updated` holds these calls by their positions.

        Drops events that were recorded late, from before the window.
        """
        for index, call in enumerate(self.calls):
            newer = updated.get(call.seq)
            if newer is not None:
                self.calls[index] = call._replace(
                    context=newer.context, result=newer.result or call.result, tensors=newer.tensors
                )
        self.discard_before(self.start)

    def take_until(
        self, seq: int, storage_names: dict[str, str] | None
    ) -> tuple[tuple[Call, ...], tuple[Change, ...], tuple[Reading, ...]]:
        """Remove and return the events that began and ended before `seq`, in order; the next window begins there.

        `storage_names` are names of variables for storages that have a number so far.
        """
        if storage_names:
            self.calls = [with_storage_names(call, storage_names) for call in self.calls]
        calls, changes, readings = self.calls, self.changes, self.readings
        self.discard_before(seq)
        return (
            tuple(sorted([call for call in calls if call.seq < seq and call.end < seq])),
            tuple(sorted([change for change in changes if change.seq < seq])),
            tuple(sorted([reading for reading in readings if reading.seq < seq])),
        )

    def tensor_summaries(self, open_calls: list[OpenCall]) -> Iterator[TensorSummary]:
        """The tensor summaries recorded so far, including those of calls that are still open."""
        calls: list[Call | OpenCall] = [*self.calls, *open_calls]
        for call in calls:
            if call.seq >= self.start:
                yield from call.tensors
