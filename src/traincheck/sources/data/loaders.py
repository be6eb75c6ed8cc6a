"""Source `loaders`: records epochs over `torch.utils.data.DataLoader`, their batches, and random states around them.

Note [Loops that an exception leaves]
An exception that ends the program (Ctrl-C, out of memory) leaves its loops, too, and Python deletes their iterators
before it says so. So an epoch that is left is recorded when its window closes, at the place where it was left. At the
end of the program the exception is known, and no such epoch is recorded.
"""

from __future__ import annotations

import functools
import itertools
import sys
import threading
import weakref
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple

from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

from traincheck.sources.base import replace, wrapping
from traincheck.sources.data.loader_epochs import (
    MAX_TENSORS,
    UNKNOWN,
    LoaderEpoch,
    LoaderNames,
    announced_length,
    batch_size,
    dataset_size,
    drops_last,
    is_torch_only,
    order_of_batch,
    order_of_indices,
    sampler_of,
    tensors_in,
)
from traincheck.sources.data.loader_workers import KIND as WORKER
from traincheck.sources.data.loader_workers import LoaderWorkers
from traincheck.sources.data.random_states import STREAMS, stream_fingerprint
from traincheck.sources.recording.context_facts import context_facts
from traincheck.sources.recording.listener import RecorderListener
from traincheck.sources.recording.patches import UndoStack
from traincheck.sources.recording.recorder import OpenCall, Recorder
from traincheck.sources.recording.run_totals import is_interrupted
from traincheck.sources.recording.sampling_gate import PASS_ENDS
from traincheck.sources.recording.step_tracker import Cut
from traincheck.sources.tensors.device_transfers import NextSeq
from traincheck.sources.tensors.reading import deferred_fingerprints, dtype_name, hidden_from_modes, shape_of
from traincheck.sources.tensors.value_facts import ValueRequest, readable_memory, value_facts
from traincheck.vocab.builtin_rules import LOADER, WORKER_SAMPLES
from traincheck.vocab.demand import TENSORS, Demand
from traincheck.vocab.events import ANNOUNCED, LIFECYCLE, LIVE, NO_CALL, RESULT, Reading, TensorSummary
from traincheck.vocab.facts import Facts, FactValue, facts

if TYPE_CHECKING:
    from traincheck.sources.data.worker_samples import WorkerSamples

NEXT = ("torch.utils.data.DataLoader.__next__",)
ITER = ("torch.utils.data.DataLoader.__iter__",)
RANDOM = "random"
LENGTH, BATCHES, ORDER, BEGUN_ORDER = "length", "batches", "order", "begun_order"
SETTINGS: dict[str, tuple[str, Callable[[Any], FactValue]]] = {
    LENGTH: (ANNOUNCED, announced_length),
    "batch_size": (LIVE, batch_size),
    "dataset_size": (LIVE, dataset_size),
    "sampler": (LIVE, sampler_of),
    "drop_last": (LIVE, drops_last),
}
"""Readings of a loader at the beginning of an epoch: the role, and the function that reads it."""
PROCESS = "process"
"""The variable in readings of the random states of the process."""
MAX_SUMMARIES = 10_000
"""Summaries cached for reuse, so that batches of ever new shapes do not fill the memory."""

_LAST = {flag: facts(last_batch=flag) for flag in (False, True)}
_FETCHED = {flag: facts(first_batch=flag, last_batch=False) for flag in (False, True)}


class _Fetch(NamedTuple):
    """A fetch under way.

    `began` is its first sequence number, `call` its call where recorded, `outer` the site of the fetch around it. An
    unwatched fetch has no call and is only counted.
    """

    began: int
    call: OpenCall | None
    epoch: LoaderEpoch
    outer: str | None
    watched: bool = True


class _Opened(threading.local):
    """The call of `DataLoader.__iter__` under way in a thread."""

    call: OpenCall | None = None


class LoaderSource(RecorderListener):
    """Observes the iterators of data loaders; names each loader in order of appearance.

    Known limitations: the length of a loader may call `__len__` of a sampler of the program. Workers that are not
    forked are not observed, and the report says so.
    """

    name = "loaders"

    def __init__(self, epoch_begins: Callable[[Any], None] = lambda loader: None) -> None:
        """`epoch_begins` gets each loader at the beginning of an epoch."""
        self._on_epoch = epoch_begins
        self._names = LoaderNames()
        self._epochs: dict[int, tuple[weakref.ref[Any], LoaderEpoch]] = {}
        self._of_left: list[Reading] = []  # readings of the epochs that were left in this window
        self._numbers = itertools.count(1)
        self._opened = _Opened()
        self._workers = LoaderWorkers()
        self._compared: set[str] = set()  # loaders whose workers were compared
        self._summaries: dict[tuple[Any, ...], TensorSummary] = {}

    def offers(self) -> str | None:
        return None

    def attach(self, demand: Demand, recorder: Recorder) -> ExitStack:
        self._recorder = recorder
        self._settings = [name for name in SETTINGS if demand.takes_reading(LOADER, name)]
        self._results = [name for name in (BATCHES, ORDER, BEGUN_ORDER) if demand.takes_reading(LOADER, name)]
        self._reads_samples = demand.takes_reading(LOADER, WORKER_SAMPLES)
        self._streams = [name for name in STREAMS if demand.takes_reading(RANDOM, name)]
        self._reads = ValueRequest.of(demand, NEXT)
        self._tensors = bool(self._reads) or demand.reads_values(NEXT, TENSORS)
        read_at_next = self._results or self._tensors or demand.takes_readings(WORKER)
        self._records_next = demand.records_call(NEXT) or bool(read_at_next)
        self._records_iter = demand.records_call(ITER) or bool(self._settings or self._streams)
        undo = UndoStack()
        undo.enter_context(self._workers.attach(demand, recorder))
        # TrainCheck follows an epoch from beginning to end, through watched and unwatched steps.
        wrap, iterator = self._wrap, _BaseDataLoaderIter
        wrap(undo, DataLoader, "__iter__", self._iter_begins, self._iter_ends, self._iter_fails)
        wrap(undo, iterator, "__init__", self._epoch_begins, self._about_to_fork, _no_op, always=True)
        wrap(undo, iterator, "_reset", self._epoch_restarts, _no_op, _no_op, always=True)
        parts: tuple[Callable[..., Any], ...] = (self._next_begins, self._next_ends, self._next_fails)
        begins, ends, fails = (recorder.guarded(self.name, part, always=True) for part in parts)
        fetching = wrapping(begins, ends, fails)
        replace(undo, iterator, "__next__", self._or_counted(fetching))
        if ORDER in self._results:
            wrap(undo, iterator, "_next_index", self._index_begins, self._index_ends, _no_op)
        recorder.after_gap(self.name, self._forget, undo=undo)
        recorder.at_end(recorder.guarded(self.name, self._at_end))
        recorder.add_listener(self)
        return undo

    def _wrap(
        self,
        undo: UndoStack,
        holder: type,
        method: str,
        begins: Callable[..., Any],
        ends: Callable[..., None],
        fails: Callable[..., None],
        *,
        always: bool = False,
    ) -> None:
        guarded = [self._recorder.guarded(self.name, function, always=always) for function in (begins, ends, fails)]
        replace(undo, holder, method, wrapping(*guarded), only_watched=not always)

    def _forget(self) -> None:
        self._opened = _Opened()
        self._of_left.clear()

    def _name(self, loader: Any) -> str:
        return self._names.name_of(loader)

    def _read(
        self, variable: str, kind: str, attribute: str, value: FactValue, role: str, call: int, context: Facts
    ) -> None:
        recorder = self._recorder
        recorder.record_reading(Reading(recorder.next_seq(), call, variable, kind, attribute, value, role, context))

    def _record(self, readings: Iterable[Reading]) -> None:
        for reading in readings:
            self._recorder.record_reading(reading)

    # -- an epoch begins -------------------------------------------------------------------------------------------

    def _iter_begins(self, loader: Any) -> OpenCall | None:
        if not self._records_iter:
            return None
        call = self._recorder.enter(LIFECYCLE, ITER, self._name(loader), context_facts())
        self._opened.call = call
        return call

    def _iter_ends(self, call: OpenCall, iterator: Any) -> None:
        self._opened.call = None
        self._recorder.leave(call)

    def _iter_fails(self, call: OpenCall) -> None:
        self._opened.call = None
        self._recorder.abandon(call)

    def _epoch_begins(self, iterator: Any, loader: Any) -> tuple[Any, LoaderEpoch] | None:
        """Note that an iterator is being built. (`DataLoader.__iter__` is not the only builder: a subclass may do
        it.)"""
        if self._recorder.counted.left:
            self._recorder.counted.end()
        receiver = self._name(loader)
        self._leave_other_epochs(receiver)
        self._on_epoch(loader)
        self._read_loader(loader, receiver)
        with self._recorder.querying_program():
            number, torch_only = next(self._numbers), is_torch_only(loader)
            size, length = batch_size(loader), announced_length(loader)
            epoch = LoaderEpoch(receiver, number, loader.num_workers, size, torch_only=torch_only, length=length)
        may_repeat = loader.num_workers > 1 and isinstance(loader.dataset, IterableDataset)
        if may_repeat and self._reads_samples and receiver not in self._compared:
            from traincheck.sources.data.worker_samples import WorkerSamples  # not before such a loader

            epoch.samples = WorkerSamples(loader.num_workers, self._recorder.sites.here())
        key = id(iterator)
        on_deleted = self._recorder.guarded(self.name, lambda _: self._iterator_deleted(key), always=True)
        self._epochs[key] = weakref.ref(iterator, on_deleted), epoch
        return (loader.multiprocessing_context, epoch) if epoch.workers else None

    def _about_to_fork(self, token: tuple[Any, LoaderEpoch], result: Any) -> None:
        """Note that the base class has built the iterator; its workers start next."""
        context, epoch = token
        epoch.rounds = self._workers.about_to_fork(epoch.number, epoch.epoch_index, epoch.workers, context)

    def _epoch_restarts(self, iterator: Any, loader: Any = None, first_iter: bool = False) -> None:
        """Note that an iterator begins another epoch (or, during its construction, its first)."""
        if self._recorder.counted.left:
            self._recorder.counted.end()
        epoch = self._epoch_of(iterator)
        if loader is None or epoch is None or first_iter:
            return
        self._record_unfinished(epoch)
        self._read_loader(loader, epoch.receiver)
        epoch.restart()
        if epoch.rounds is not None:
            context = loader.multiprocessing_context
            epoch.rounds = self._workers.about_to_fork(epoch.number, epoch.epoch_index, epoch.workers, context)

    def _read_loader(self, loader: Any, receiver: str) -> None:
        if not self._recorder.watching:
            return
        opened = self._opened.call
        call = NO_CALL if opened is None else opened.seq
        for attribute in self._streams:
            state = stream_fingerprint(attribute)
            if state is not None:
                self._read(PROCESS, RANDOM, attribute, state, LIVE, call, ())
        for attribute in self._settings:
            role, read = SETTINGS[attribute]
            with self._recorder.querying_program():
                value = read(loader)
            if value is not None:
                self._read(receiver, LOADER, attribute, value, role, call, ())

    def _epoch_of(self, iterator: Any) -> LoaderEpoch | None:
        entry = self._epochs.get(id(iterator))
        return entry[1] if entry is not None and entry[0]() is iterator else None

    # -- an epoch continues ----------------------------------------------------------------------------------------

    def _index_begins(self, iterator: Any) -> LoaderEpoch | None:
        """Return the epoch whose first indices define its order; iterable data sets have no indices."""
        epoch = self._epoch_of(iterator)
        return epoch if epoch is not None and epoch.order is None and not epoch.batches else None

    def _index_ends(self, epoch: LoaderEpoch, indices: Any) -> None:
        if epoch.order is None:
            epoch.order = order_of_indices(indices)

    def _or_counted(self, observed: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Let `observed` only count batches while steps are only counted, see sampling_gate.py."""
        counted, epochs = self._recorder.counted, self._epochs
        failed = self._recorder.guarded(self.name, self._counted_fails, always=True)

        def decorate(function: Any) -> Any:
            replacement = observed(function)

            @functools.wraps(function)
            def wrapper(iterator: Any) -> Any:
                entry = epochs.get(id(iterator)) if counted.left else None
                if entry is None or entry[0]() is not iterator or entry[1].rounds is not None:
                    return replacement(iterator)
                try:
                    batch = function(iterator)
                except BaseException:
                    failed(entry[1])
                    raise
                entry[1].batches += 1
                return batch

            return wrapper

        return decorate

    def _counted_fails(self, epoch: LoaderEpoch) -> None:
        """Report a fetch that raised, as if it had been reported from its beginning on."""
        recorder = self._recorder
        began = recorder.next_seq()
        if recorder.counted.left:
            recorder.counted.end()
        recorder.steps.fetch_begins(began)
        self._next_fails(_Fetch(began, None, epoch, None, watched=False))

    def _next_begins(self, iterator: Any) -> _Fetch:
        recorder = self._recorder
        began = recorder.next_seq()
        recorder.steps.fetch_begins(began)
        epoch = self._epoch_of(iterator)
        if epoch is None:
            epoch = LoaderEpoch(UNKNOWN, 0, from_start=False)
            self._epochs[id(iterator)] = weakref.ref(iterator), epoch
        if not recorder.watching:
            return _Fetch(began, None, epoch, None, watched=False)
        call = (
            recorder.enter(LIFECYCLE, NEXT, epoch.receiver, context_facts(), epoch.args) if self._records_next else None
        )
        outer, recorder.fetch_site = recorder.fetch_site, recorder.sites.here()
        if epoch.torch_only:
            recorder.suppression.begin()
        return _Fetch(began, call, epoch, outer)

    def _next_ends(self, fetch: _Fetch, batch: Any) -> None:
        recorder, epoch, call = self._recorder, fetch.epoch, fetch.call
        if fetch.watched or epoch.rounds is not None:
            self._fetched(fetch)
        epoch.batches += 1
        if epoch.samples is not None:
            self._compare_workers(epoch, epoch.samples, batch)
        if call is not None and epoch.batches == 1 and epoch.order is None and ORDER in self._results:
            epoch.order = order_of_batch(batch)
        is_first = epoch.batches == 1 and epoch.from_start and epoch.order is not None
        if call is not None and is_first and BEGUN_ORDER in self._results:
            self._read(epoch.receiver, LOADER, BEGUN_ORDER, epoch.order, LIVE, call.seq, ())
        if call is not None:
            if self._tensors:
                self._record_batch(call, batch)
            self._record_workers(epoch, call.seq)
            recorder.leave(call, _FETCHED[epoch.from_start and epoch.batches == 1])
        recorder.steps.fetch_ends(fetch.began)
        if recorder.watching:
            recorder.between_calls()

    def _next_fails(self, fetch: _Fetch) -> None:
        recorder, call, epoch = self._recorder, fetch.call, fetch.epoch
        self._fetched(fetch)
        if not isinstance(sys.exc_info()[1], StopIteration):
            recorder.steps.fetch_failed(fetch.began)
            if call is not None:
                recorder.abandon(call)
            return
        first, epoch.exhausted = not epoch.exhausted, True
        if epoch.samples is not None:
            self._compare_workers(epoch, epoch.samples, None)
        if call is not None:
            if first:
                self._record_workers(epoch, call.seq)
                self._record(self._of_epoch(epoch, call.seq))
            recorder.leave(call, _LAST[True])
        recorder.rare_event(PASS_ENDS)
        recorder.steps.fetch_ends(fetch.began, exhausted_at=recorder.next_seq())

    def _compare_workers(self, epoch: LoaderEpoch, samples: WorkerSamples, batch: Any) -> None:
        """Report that the workers of a loader read the same samples, at its next batch, or at the end of a pass."""
        if batch is None:
            found, ends = samples.found(is_over=True) if samples.batches == epoch.batches else "", True
        else:
            tensors = [tensor for _, tensor in itertools.islice(tensors_in(batch, RESULT), MAX_TENSORS)]
            ends = not samples.add(tensors) or samples.batches != epoch.batches
            found = "" if ends else samples.found(is_over=False)
        if found or ends:
            epoch.samples = None
            self._compared.add(epoch.receiver)
        if found:
            self._read(epoch.receiver, LOADER, WORKER_SAMPLES, found, LIVE, NO_CALL, facts(site=samples.site))

    def _fetched(self, fetch: _Fetch) -> None:
        if fetch.watched:
            self._recorder.suppression.end()
            self._recorder.fetch_site = fetch.outer
        elif fetch.epoch.rounds is not None:
            self._workers.discard(fetch.epoch.rounds, fetch.epoch.batches + 1, fetch.epoch.exhausted)

    def _record_workers(self, epoch: LoaderEpoch, call: int) -> None:
        if epoch.rounds is not None:
            self._workers.record(epoch.rounds, epoch.receiver, epoch.batches, epoch.exhausted, call)

    def _record_batch(self, call: OpenCall, batch: Any) -> None:
        """Record the tensors of a batch. Without values, equal summaries are the same object."""
        entries = list(itertools.islice(tensors_in(batch, RESULT), MAX_TENSORS))
        with hidden_from_modes():
            entries = [(role, tensor) for role, tensor in entries if shape_of(tensor) is not None]
            call.tensors = summaries = tuple(self._summary(role, tensor) for role, tensor in entries)
            if not self._reads:
                return
            tensors = [tensor for _, tensor in entries]
            digests = deferred_fingerprints(tensors) if self._reads.contents else [None] * len(tensors)
            values = value_facts([readable_memory(tensor) for tensor in tensors], self._reads)

            def conclude(resolved: list[Any], _: NextSeq) -> None:
                call.tensors = tuple(
                    summary._replace(fingerprint=digest, facts=tuple(sorted(facts.items())))
                    for summary, digest, facts in zip(summaries, resolved, resolved[len(summaries) :], strict=False)
                )

            self._recorder.transfers.when_ready(self.name, [*digests, *values], conclude, call=call)

    def _summary(self, role: str, tensor: Any) -> TensorSummary:
        key = (role, tensor.dtype, tensor.shape, tensor.requires_grad)
        summary = self._summaries.get(key)
        if summary is None:
            if len(self._summaries) >= MAX_SUMMARIES:
                self._summaries.clear()
            dtype = dtype_name(tensor.dtype)
            summary = self._summaries[key] = TensorSummary(role, dtype, tuple(tensor.shape), tensor.requires_grad)
        return summary

    # -- an epoch ends ---------------------------------------------------------------------------------------------

    def _of_epoch(self, epoch: LoaderEpoch, call: int) -> list[Reading]:
        """How far the epoch went and in what order, unless TrainCheck missed its beginning."""
        values = {BATCHES: epoch.batches, ORDER: epoch.order} if epoch.from_start else {}
        context, next_seq = _LAST[epoch.exhausted], self._recorder.next_seq
        return [
            Reading(next_seq(), call, epoch.receiver, LOADER, attribute, value, LIVE, context)
            for attribute, value in values.items()
            if attribute in self._results and value is not None
        ]

    def _record_unfinished(self, epoch: LoaderEpoch) -> None:
        """Record an epoch that the program left, unless it never fetched a batch.

        A loop that counts the batches (Lightning) leaves a loader after the last one, and never finds it exhausted.
        """
        if epoch.exhausted or not epoch.batches:
            return
        readings = self._of_epoch(epoch, NO_CALL)
        if epoch.batches == epoch.length:
            self._record(readings)
            epoch.exhausted = True
            self._recorder.steps.passes_ended += 1
        elif self._recorder.watching:
            self._of_left += readings

    def _leave_other_epochs(self, receiver: str) -> None:
        """Record the unfinished epochs of a loader when another epoch over it begins.

        A program may keep an iterator long after its last batch (`batches = iter(loader); first = next(batches)`). The
        program has left that epoch by now, and the end of the iterator says nothing about later epochs.
        """
        for _, epoch in list(self._epochs.values()):
            if epoch.receiver == receiver:
                self._record_unfinished(epoch)
                epoch.from_start = epoch.from_start and not epoch.batches

    def _iterator_deleted(self, key: int) -> None:
        """Record an epoch whose iterator the program deleted."""
        entry = self._epochs.get(key)
        if entry is not None and entry[0]() is None:
            del self._epochs[key]
            self._record_unfinished(entry[1])

    def window_closing(self, cut: Cut) -> None:
        self._record(self._of_left)
        self._of_left.clear()

    def _at_end(self) -> None:
        if not is_interrupted():
            for _, epoch in list(self._epochs.values()):
                self._record_unfinished(epoch)
            self._record(self._of_left)
        self._of_left.clear()
        self._workers.at_end()


def _no_op(*_: Any) -> None:
    """Used where the end of a call needs no work."""
