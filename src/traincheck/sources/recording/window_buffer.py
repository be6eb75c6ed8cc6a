"""The open window: the events of this process that no window was closed over yet."""

from __future__ import annotations

from collections.abc import Iterator

from traincheck.sources.recording.call_stack import OpenCall, renamed
from traincheck.vocab.events import Call, Change, Reading, TensorSummary

MOST_EVENTS = 500_000
"""Events of one window: some 200 MB. An epoch of evaluation of a large model may come near; a program in which no step
is ever seen to end would grow without bound."""


class OpenWindow:
    """Events, as sources have told them. Several threads may add to it while one of them closes it."""

    def __init__(self) -> None:
        self.start = 0  # the place at which it begins
        self.throw_away()

    def throw_away(self) -> None:
        """Let go of all events."""
        self.calls: list[Call] = []
        self.changes: list[Change] = []
        self.readings: list[Reading] = []

    def keep_from(self, seq: int) -> None:
        """Let go of what began before `seq`; a call that began then is told no more."""
        self.calls = [call for call in self.calls if call.seq >= seq]
        self.changes = [change for change in self.changes if change.seq >= seq]
        self.readings = [reading for reading in self.readings if reading.seq >= seq]
        self.start = seq

    def add_to(self, calls: dict[int, OpenCall]) -> None:
        """What has been added to these calls, by their places, since they ended; and let go of what was told late of
        what began before the window."""
        for place, call in enumerate(self.calls):
            added = calls.get(call.seq)
            if added is not None:
                self.calls[place] = call._replace(
                    context=added.context, result=added.result or call.result, tensors=added.tensors
                )
        self.keep_from(self.start)

    def take_until(
        self, seq: int, names: dict[str, str] | None
    ) -> tuple[tuple[Call, ...], tuple[Change, ...], tuple[Reading, ...]]:
        """What began and ended before `seq`, in order; the window goes on from there. `names` are others for the memory
        of tensors."""
        if names:
            self.calls = [renamed(call, names) for call in self.calls]
        calls, changes, readings = self.calls, self.changes, self.readings
        self.keep_from(seq)
        return (
            tuple(sorted([call for call in calls if call.seq < seq and call.end < seq])),
            tuple(sorted([change for change in changes if change.seq < seq])),
            tuple(sorted([reading for reading in readings if reading.seq < seq])),
        )

    def tensors(self, opened: list[OpenCall]) -> Iterator[TensorSummary]:
        """What was told of tensors so far, of the calls that are open too."""
        calls: list[Call | OpenCall] = [*self.calls, *opened]
        for call in calls:
            if call.seq >= self.start:
                yield from call.tensors
