"""Records random states of forked data loader workers in the process that reads their batches.

Note [One message per batch]
With each batch, a worker reports the random states in which it began: one small message, written to a pipe that the
main process opened before the fork. The write never blocks; a message that does not fit is lost and counted. The worker
writes the message before the batch, so a process that has the batch also has the message. The main process groups
messages into *rounds*: the k-th message of every worker. It records a round after fetching all its batches, so the
recording does not depend on how far workers run ahead.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import struct
import threading
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple

from torch.utils.data import get_worker_info
from torch.utils.data._utils import fetch

from traincheck.sources.base import replace, wrapping
from traincheck.sources.data.random_states import STREAMS, combined, fingerprint, generators_in, stream_fingerprint
from traincheck.sources.recording.patches import UndoStack
from traincheck.sources.recording.recorder import Recorder
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import Reading

KIND = "worker"
DATASET = "dataset"
STATES = (*STREAMS, DATASET)
ATTRIBUTES = tuple(f"random.{state}" for state in STATES)
"""Readings of a worker. `random.dataset`: the generators of the data set that were drawn from for this batch."""

_MESSAGE = struct.Struct(f"<6I{len(STATES)}Q")
MAX_MESSAGES_PER_READ = 1000
"""Messages taken from the pipe in one read; a pipe of 64 KiB holds about as many."""
MAX_WAITING_ROUNDS = 64
"""Rounds that wait for a worker. A loader never fetches this far ahead, so the worker ended or its message was lost."""


class Message(NamedTuple):
    """A worker began the `batch`-th batch of an epoch. `mask` has a bit for each of `STATES` that follows."""

    iterator: int
    epoch_index: int
    worker: int
    workers: int
    batch: int
    mask: int
    states: tuple[int, ...]

    def pack(self) -> bytes:
        return _MESSAGE.pack(*self[:6], *self.states)

    @classmethod
    def unpack(cls, values: tuple[int, ...]) -> Message:
        iterator, epoch_index, worker, workers, batch, mask, *states = values
        return cls(iterator, epoch_index, worker, workers, batch, mask, tuple(states))


class Pipe:
    """A pipe that never blocks. Its ends are used only while they still refer to the pipe.

    (A program that closes file descriptors it did not open may have reused their numbers for its own files.)
    """

    def __init__(self) -> None:
        self.ends = os.pipe()
        self._identity = tuple(map(self._identify, self.ends))
        for end in self.ends:
            os.set_blocking(end, False)

    @staticmethod
    def _identify(end: int) -> tuple[int, int] | None:
        try:
            status = os.fstat(end)
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def _intact(self, index: int) -> bool:
        return self._identity[index] is not None and self._identify(self.ends[index]) == self._identity[index]

    def write(self, data: bytes) -> None:
        """Write all of `data` (at most PIPE_BUF bytes), or nothing where it does not fit."""
        if self._intact(1):
            with contextlib.suppress(OSError):
                os.write(self.ends[1], data)

    def read(self) -> bytes:
        """Read the waiting bytes, at most `MAX_MESSAGES_PER_READ` messages; messages are written and read whole."""
        if not self._intact(0):
            return b""
        try:
            return os.read(self.ends[0], _MESSAGE.size * MAX_MESSAGES_PER_READ)
        except OSError:
            return b""

    def close(self) -> None:
        for index, end in enumerate(self.ends):
            if self._intact(index):
                os.close(end)


class Rounds:
    """The messages of the workers of one epoch, grouped into rounds."""

    def __init__(self, iterator: int, workers: int, epoch_index: int) -> None:
        self.iterator = iterator
        self.epoch_index = epoch_index
        self.lost = 0
        self._workers = workers
        self._waiting: dict[int, dict[int, Message]] = {}
        self._next: dict[int, int] = {}

    def add(self, message: Message) -> None:
        """Add a message, unless it belongs to an earlier epoch of the same iterator."""
        if message.epoch_index == self.epoch_index and message.workers == self._workers:
            self._waiting.setdefault(message.batch, {})[message.worker] = message
            self.lost += message.batch - self._next.get(message.worker, 0)
            self._next[message.worker] = message.batch + 1

    def ready(self, fetched: int, exhausted: bool) -> list[list[Message]]:
        """Return the rounds that can be recorded after `fetched` batches, or at the end of the epoch; each by worker.

        A round omits workers that ended before. A round with a lost message is dropped.
        """
        complete = []
        for number in sorted(self._waiting):
            messages = self._waiting[number]
            absent = set(range(self._workers)) - messages.keys()
            lost = any(self._next.get(worker, 0) > number for worker in absent)
            if not exhausted and not lost:
                early = fetched < (number + 1) * self._workers
                if early if not absent else len(self._waiting) <= MAX_WAITING_ROUNDS:
                    break
            del self._waiting[number]
            if not lost:
                complete.append([messages[worker] for worker in sorted(messages)])
        return complete


class _InWorker(threading.local):
    """The state of a forked worker, inherited from the thread that forked it."""

    iterator = 0  # set by the main process right before the fork
    fetcher: weakref.ref[Any] | None = None
    epoch_index = -1
    batch = 0
    busy = False


class LoaderWorkers:
    """Follows the workers of all loaders of this process."""

    def __init__(self) -> None:
        self._me = _InWorker()
        self._pid = os.getpid()
        self._pipe: Pipe | None = None
        self._rounds: weakref.WeakValueDictionary[int, Rounds] = weakref.WeakValueDictionary()
        self._states: tuple[str, ...] = ()
        self._off = False
        self._lost = 0

    def attach(self, demand: Demand, recorder: Recorder) -> ExitStack:
        """Have workers forked from now on report their random states, where requested."""
        undo = UndoStack()
        self._recorder = recorder
        self._states = tuple(state for state in STATES if demand.takes_reading(KIND, f"random.{state}"))
        recorder.on_detach(undo, self._close_pipe)
        self._undo, self._patched = undo, False
        return undo

    def _patch_fetchers(self) -> None:
        """Patch the fetchers before the first worker starts. Loaders without workers use them, too."""
        self._patched = True
        watching = wrapping(self._silenced(self._fetch_begins), self._silenced(self._fetch_ends), self._fetch_fails)
        for fetcher in (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher):
            replace(self._undo, fetcher, "fetch", watching)

    # -- in the main process ---------------------------------------------------------------------------------------

    def about_to_fork(self, iterator: int, epoch_index: int, workers: int, context: Any) -> Rounds | None:
        """Note that an iterator starts its workers, or reuses them for a new epoch (`epoch_index`); return None if
        unobserved."""
        if not self._states:
            return None
        method = _start_method(context)
        if method != "fork":
            self._recorder.report_unobservable(f"workers: data loader workers started by {method} are not observed")
            return None
        if self._pipe is None:
            self._pipe = Pipe()
        if not self._patched:
            self._patch_fetchers()
        self._me.iterator = iterator
        rounds = self._rounds[iterator] = Rounds(iterator, workers, epoch_index)
        return rounds

    def record(self, rounds: Rounds, name: str, fetched: int, exhausted: bool, call: int) -> None:
        """Record the readings of the rounds that are ready, in `call`; `name` is the name of the loader."""
        self._receive()
        for messages in rounds.ready(fetched, exhausted):
            # A state that only some workers report (others did not draw) cannot be compared.
            common = messages[0].mask
            for message in messages:
                common &= message.mask
            for message in messages:
                for bit, attribute in enumerate(ATTRIBUTES):
                    if common >> bit & 1:
                        self._read(f"{name} worker {message.worker}", attribute, message.states[bit], call)
        self._lost, rounds.lost = self._lost + rounds.lost, 0

    def discard(self, rounds: Rounds, fetched: int, exhausted: bool) -> None:
        """Drop the rounds that are ready; nothing requests them."""
        self._receive()
        rounds.ready(fetched, exhausted)
        rounds.lost = 0

    def _read(self, variable: str, attribute: str, value: int, call: int) -> None:
        recorder = self._recorder
        recorder.record_reading(Reading(recorder.next_seq(), call, variable, KIND, attribute, value))

    def _receive(self) -> None:
        """Empty the pipe. A message goes to the loader that it names, whichever loader reads it."""
        data = b"" if self._pipe is None else self._pipe.read()
        for values in _MESSAGE.iter_unpack(data):
            message = Message.unpack(values)
            rounds = self._rounds.get(message.iterator)
            if rounds is not None:
                rounds.add(message)

    def at_end(self) -> None:
        """Report the number of lost messages, if any."""
        if self._lost:
            self._recorder.report_unobservable(f"workers: {self._lost} random states of data loader workers were lost")

    def _close_pipe(self) -> None:
        pipe, self._pipe = self._pipe, None
        if pipe is not None and os.getpid() == self._pid:
            pipe.close()

    # -- in a worker -----------------------------------------------------------------------------------------------

    def _silenced(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap `function` so that it stops working after an exception: nobody reads messages of a worker."""

        def safe(*args: Any) -> Any:
            if self._off:
                return None
            try:
                return function(*args)
            except Exception:
                self._off = True
                return None

        return safe

    def _fetch_begins(self, fetcher: Any, *_: Any) -> tuple[dict[str, int], list[tuple[Any, int]]] | None:
        """Return the random states, and the generators of the data set with theirs; None outside a forked worker."""
        info = get_worker_info()
        if info is None or self._pipe is None or os.getpid() == self._pid:
            return None
        me = self._me
        if me.busy or fetcher.dataset is not info.dataset:
            return None  # a loader nested in the data set
        if me.fetcher is None or me.fetcher() is not fetcher:  # each epoch has a new fetcher
            me.fetcher, me.epoch_index, me.batch = weakref.ref(fetcher), me.epoch_index + 1, 0
        me.busy = True
        streams = {}
        for stream in STREAMS:
            state = stream_fingerprint(stream) if stream in self._states else None
            if state is not None:
                streams[stream] = state
        held = generators_in(fetcher.dataset, fetcher.collate_fn) if DATASET in self._states else []
        return streams, [(generator, state) for generator in held if (state := fingerprint(generator)) is not None]

    def _fetch_ends(self, token: tuple[dict[str, int], list[tuple[Any, int]]], batch: Any) -> None:
        states, held = token
        # A generator that nobody draws from may be the same in all workers.
        drawn = [before for generator, before in held if fingerprint(generator) != before]
        if drawn:
            states[DATASET] = combined(drawn)
        me, info, pipe = self._me, get_worker_info(), self._pipe
        mask = sum(1 << bit for bit, state in enumerate(STATES) if state in states)
        if pipe is not None and info is not None:
            values = tuple(states.get(state, 0) for state in STATES)
            pipe.write(Message(me.iterator, me.epoch_index, info.id, info.num_workers, me.batch, mask, values).pack())
        me.batch += 1
        me.busy = False

    def _fetch_fails(self, token: object) -> None:
        self._me.busy = False


def _start_method(context: Any) -> str:
    """Return how a loader starts its workers. (`multiprocessing.get_start_method()` would fix the method for the
    program.)"""
    multiprocessing_context = context if context is not None else multiprocessing
    method = multiprocessing_context.get_start_method(allow_none=True)
    return str(method or multiprocessing.get_all_start_methods()[0])
