"""Transfers: how it is waited for what an accelerator has still to compute.

Note [One transfer a step]
An accelerator works through what it was asked for, far behind the program that asks. To look at a number makes the
program wait until all of that is done, so it must not be done around each call. What sources measure there stays there
(`Pending`), and what they would conclude from it is put off (`Transfers.when`) until the window of the step is closed.
Then all numbers are fetched at once, one transfer for each device, and the conclusions are drawn in the order in which
they were put off. The events that they tell stand at places that were set aside. Of what lies on the CPU nothing is put
off, unless something is that came before it.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

from traincheck.sources.recording.call_stack import OpenCall
from traincheck.sources.recording.window_buffer import OpenWindow
from traincheck.sources.tensors.deferred_values import Pending, fetched, is_capturing
from traincheck.sources.tensors.reading import unseen

NextSeq: TypeAlias = Callable[[], int]
"""Gives the place of the next event."""

Conclude: TypeAlias = Callable[[list[Any], NextSeq], object]
"""Is given what was pending, as it is known now, and tells what follows from it."""


MOST_PENDING = 20_000
"""Values that are waited for at most, as they take memory of the device; an epoch of evaluation is one window."""


class _PutOff(NamedTuple):
    """A conclusion that was put off: whose it is, what it follows from, the call that it is about, and the places of
    the events that it may tell."""

    source: str
    values: list[Any]
    conclude: Conclude
    call: OpenCall | None
    seqs: list[int]


class Telling(Protocol):
    """What is asked of the recorder."""

    next_seq: NextSeq

    def fault(self, source: str, error: BaseException) -> None:
        """A source failed."""

    def give_up(self) -> None:
        """The open window cannot be told."""


class Transfers:
    """Puts off what follows from numbers that lie on accelerators; of one recorder and its window, for all threads."""

    def __init__(self, recorder: Telling, window: OpenWindow) -> None:
        self._recorder = recorder
        self._window = window
        self._put_off: list[_PutOff] = []
        self._pending = 0
        self._lock = threading.Lock()

    def when(
        self,
        source: str,
        values: Sequence[Any],
        conclude: Conclude,
        *,
        call: OpenCall | None = None,
        events: int = 0,
    ) -> None:
        """Have `conclude` called with `values` when none of them is pending any more: at once where none is, and
        nothing else was put off.

        `call` is the one to which it may add, `events` the number of events that it may tell. Where it computes with
        tensors, call under `unseen`. It must hold neither parameters nor gradients.
        """
        if not self._put_off and Pending not in map(type, values):
            conclude(values if type(values) is list else list(values), self._recorder.next_seq)
            return
        seqs = [self._recorder.next_seq() for _ in range(events)]
        with self._lock:
            self._put_off.append(_PutOff(source, list(values), conclude, call, seqs))
            self._pending += len(values)
        if self._pending > MOST_PENDING:
            self.settle()

    def settle(self) -> None:
        """Fetch what is pending, and conclude what was put off, if anything: the window is about to be closed."""
        if not self:
            return
        with self._lock:
            waiting, self._put_off, self._pending = self._put_off, [], 0
        if is_capturing():
            self._recorder.give_up()
            return
        added: dict[int, OpenCall] = {}
        with unseen():
            known = iter(fetched([value for one in waiting for value in one.values]))
            for one in waiting:
                values = list(itertools.islice(known, len(one.values)))
                try:
                    one.conclude(values, iter(one.seqs).__next__)
                except Exception as error:
                    self._recorder.fault(one.source, error)
                if one.call is not None:
                    added[one.call.seq] = one.call
        self._window.add_to(added)

    def __bool__(self) -> bool:
        return bool(self._put_off)
