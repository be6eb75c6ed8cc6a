"""Source `loaders`: passes over `torch.utils.data.DataLoader`, their batches, and the random states around them."""

from __future__ import annotations

import itertools
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple

from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from traincheck.sources.base import replace, wrapping
from traincheck.sources.data.loader_epochs import (
    MOST_TENSORS,
    UNKNOWN,
    LoaderNames,
    Pass,
    announced_length,
    batch_size,
    dataset_size,
    is_foreign,
    order_of_batch,
    order_of_indices,
    tensors_in,
)
from traincheck.sources.data.loader_workers import KIND as WORKER
from traincheck.sources.data.loader_workers import Workers
from traincheck.sources.data.random_states import STREAMS, stream_fingerprint
from traincheck.sources.recording.context_facts import circumstances
from traincheck.sources.recording.patches import Undo
from traincheck.sources.recording.recorder import OpenCall, Recorder
from traincheck.sources.tensors.device_transfers import NextSeq
from traincheck.sources.tensors.reading import computed, shape_of, unseen
from traincheck.sources.tensors.value_facts import Reads, readable_memory, values_in
from traincheck.vocab.demand import TENSORS, Demand
from traincheck.vocab.events import ANNOUNCED, LIFECYCLE, LIVE, NO_CALL, RESULT, Reading, TensorSummary
from traincheck.vocab.facts import Facts, FactValue, facts

NEXT = ("torch.utils.data.DataLoader.__next__",)
ITER = ("torch.utils.data.DataLoader.__iter__",)
LOADER, RANDOM = "loader", "random"
LENGTH, BATCHES, ORDER = "length", "batches", "order"
SIZES: dict[str, tuple[str, Callable[[Any], int | None]]] = {
    LENGTH: (ANNOUNCED, announced_length),
    "batch_size": (LIVE, batch_size),
    "dataset_size": (LIVE, dataset_size),
}
"""What is read of a loader when a pass over it begins: the role and how."""
PROCESS = "process"
"""The variable of readings of the process's own random states."""
MOST_SUMMARIES = 10_000
"""Summaries that are kept to be told again; batches of ever new shapes must not fill the memory."""

_LAST = {flag: facts(last_batch=flag) for flag in (False, True)}
_FETCHED = {flag: facts(first_batch=flag, last_batch=False) for flag in (False, True)}


class _Fetch(NamedTuple):
    """A fetch under way: where it began, its call (where it is recorded), the pass it belongs to, and the site of the
    fetch that it is a part of. One that is not watched has no call, and is only counted."""

    began: int
    call: OpenCall | None
    of: Pass
    outer: str | None
    watched: bool = True


class _Opened(threading.local):
    """The call of `DataLoader.__iter__` under way in a thread."""

    call: OpenCall | None = None


class LoaderSource:
    """Observes the iterators of data loaders; each loader is named in order of appearance.

    Known limitations: a loader is asked for its length, which a sampler of the program's own answers by whatever
    `__len__` it has. Workers that are not forked are not seen inside (and told so).
    """

    name = "loaders"

    def __init__(self) -> None:
        self._names = LoaderNames()
        self._passes: dict[int, tuple[weakref.ref[Any], Pass]] = {}
        self._numbers = itertools.count(1)
        self._opened = _Opened()
        self._workers = Workers()
        self._summaries: dict[tuple[Any, ...], TensorSummary] = {}

    def offers(self) -> str | None:
        return None

    def attach(self, demand: Demand, recorder: Recorder) -> ExitStack:
        self._recorder = recorder
        self._sizes = [name for name in SIZES if demand.wants_reading(LOADER, name)]
        self._results = [name for name in (BATCHES, ORDER) if demand.wants_reading(LOADER, name)]
        self._streams = [name for name in STREAMS if demand.wants_reading(RANDOM, name)]
        self._reads = Reads.of(demand, NEXT)
        self._tensors = bool(self._reads) or demand.wants_state(NEXT, TENSORS)
        read_at_next = self._results or self._tensors or demand.wants_readings(WORKER)
        self._next_wanted = demand.wants_call(NEXT) or bool(read_at_next)
        self._iter_wanted = demand.wants_call(ITER) or bool(self._sizes or self._streams)
        undo = Undo()
        undo.enter_context(self._workers.attach(demand, recorder))
        # A pass is followed from its beginning to its end, through steps that are watched and others.
        wrap, iterator = self._wrap, _BaseDataLoaderIter
        wrap(undo, DataLoader, "__iter__", self._iter_begins, self._iter_ends, self._iter_fails)
        wrap(undo, iterator, "__init__", self._pass_begins, self._about_to_fork, _nothing, always=True)
        wrap(undo, iterator, "_reset", self._pass_begins_again, _nothing, _nothing, always=True)
        wrap(undo, iterator, "__next__", self._next_begins, self._next_ends, self._next_fails, always=True)
        if ORDER in self._results:
            wrap(undo, iterator, "_next_index", self._index_begins, self._index_ends, _nothing)
        recorder.after_gap(self.name, self._forget)
        recorder.at_end(recorder.guarded(self.name, self._at_end))
        return undo

    def _wrap(
        self,
        undo: Undo,
        holder: type,
        method: str,
        begins: Callable[..., Any],
        ends: Callable[..., None],
        fails: Callable[..., None],
        *,
        always: bool = False,
    ) -> None:
        guarded = [self._recorder.guarded(self.name, function, always=always) for function in (begins, ends, fails)]
        replace(undo, holder, method, wrapping(*guarded))

    def _forget(self) -> None:
        self._opened = _Opened()

    def _name(self, loader: Any) -> str:
        return self._names.of(loader)

    def _read(self, of: str, kind: str, attribute: str, value: FactValue, role: str, call: int, told: Facts) -> None:
        recorder = self._recorder
        recorder.reading(Reading(recorder.next_seq(), call, of, kind, attribute, value, role, told))

    # -- a pass begins ---------------------------------------------------------------------------------------------

    def _iter_begins(self, loader: Any) -> OpenCall | None:
        if not self._iter_wanted:
            return None
        call = self._recorder.enter(LIFECYCLE, ITER, self._name(loader), circumstances())
        self._opened.call = call
        return call

    def _iter_ends(self, call: OpenCall, iterator: Any) -> None:
        self._opened.call = None
        self._recorder.leave(call)

    def _iter_fails(self, call: OpenCall) -> None:
        self._opened.call = None
        self._recorder.abandon(call)

    def _pass_begins(self, iterator: Any, loader: Any) -> tuple[Any, Pass] | None:
        """An iterator is being made. (What makes it is not always `DataLoader.__iter__`: a subclass may do it.)"""
        receiver = self._name(loader)
        self._leave_others(receiver)
        self._read_loader(loader, receiver)
        with self._recorder.asking():
            number, foreign = next(self._numbers), is_foreign(loader)
            made = Pass(receiver, number, loader.num_workers, batch_size(loader), foreign=foreign)
        key = id(iterator)
        gone = self._recorder.guarded(self.name, lambda _: self._gone(key), always=True)
        self._passes[key] = weakref.ref(iterator, gone), made
        return (loader.multiprocessing_context, made) if made.workers else None

    def _about_to_fork(self, token: tuple[Any, Pass], result: Any) -> None:
        """The iterator is made, as far as its base class does it; workers start next."""
        context, made = token
        made.rounds = self._workers.about_to_fork(made.number, made.turn, made.workers, context)

    def _pass_begins_again(self, iterator: Any, loader: Any = None, first_iter: bool = False) -> None:
        """An iterator is used again for another pass (or, as part of its making, for the first)."""
        found = self._pass_of(iterator)
        if loader is None or found is None or first_iter:
            return
        self._abandoned(found)
        self._read_loader(loader, found.receiver)
        found.again()
        if found.rounds is not None:
            context = loader.multiprocessing_context
            found.rounds = self._workers.about_to_fork(found.number, found.turn, found.workers, context)

    def _read_loader(self, loader: Any, receiver: str) -> None:
        if not self._recorder.watching:
            return
        opened = self._opened.call
        call = NO_CALL if opened is None else opened.seq
        for attribute in self._streams:
            state = stream_fingerprint(attribute)
            if state is not None:
                self._read(PROCESS, RANDOM, attribute, state, LIVE, call, ())
        for attribute in self._sizes:
            role, read = SIZES[attribute]
            with self._recorder.asking():
                size = read(loader)
            if size is not None:
                self._read(receiver, LOADER, attribute, size, role, call, ())

    def _pass_of(self, iterator: Any) -> Pass | None:
        found = self._passes.get(id(iterator))
        return found[1] if found is not None and found[0]() is iterator else None

    # -- a pass goes on --------------------------------------------------------------------------------------------

    def _index_begins(self, iterator: Any) -> Pass | None:
        """The first indices of a pass tell its order; those of an iterable data set are none."""
        found = self._pass_of(iterator)
        return found if found is not None and found.order is None and not found.batches else None

    def _index_ends(self, found: Pass, indices: Any) -> None:
        if found.order is None:
            found.order = order_of_indices(indices)

    def _next_begins(self, iterator: Any) -> _Fetch:
        recorder = self._recorder
        began = recorder.next_seq()
        recorder.steps.fetch_begins(began)
        found = self._pass_of(iterator)
        if found is None:
            found = Pass(UNKNOWN, 0, whole=False)
            self._passes[id(iterator)] = weakref.ref(iterator), found
        if not recorder.watching:
            return _Fetch(began, None, found, None, watched=False)
        call = (
            recorder.enter(LIFECYCLE, NEXT, found.receiver, circumstances(), found.args) if self._next_wanted else None
        )
        outer, recorder.fetching = recorder.fetching, recorder.sites.here()
        if found.foreign:
            recorder.aside.begin()
        return _Fetch(began, call, found, outer)

    def _next_ends(self, fetch: _Fetch, batch: Any) -> None:
        found, call = fetch.of, fetch.call
        self._fetched(fetch)
        found.batches += 1
        if call is not None and found.batches == 1 and found.order is None and ORDER in self._results:
            found.order = order_of_batch(batch)
        if call is not None:
            if self._tensors:
                self._tell_batch(call, batch)
            self._tell_workers(found, call.seq)
            self._recorder.leave(call, _FETCHED[found.whole and found.batches == 1])
        self._recorder.steps.fetch_ends(fetch.began)
        self._recorder.at_rest()

    def _next_fails(self, fetch: _Fetch) -> None:
        recorder, call, found = self._recorder, fetch.call, fetch.of
        self._fetched(fetch)
        if not isinstance(sys.exc_info()[1], StopIteration):
            recorder.steps.fetch_fails(fetch.began)
            if call is not None:
                recorder.abandon(call)
            return
        first, found.over = not found.over, True
        if call is not None:
            if first:
                self._tell_workers(found, call.seq)
                self._tell_pass(found, call.seq)
            recorder.leave(call, _LAST[True])
        recorder.steps.fetch_ends(fetch.began, exhausted_at=recorder.next_seq())

    def _fetched(self, fetch: _Fetch) -> None:
        if fetch.watched:
            self._recorder.aside.end()
            self._recorder.fetching = fetch.outer
        elif fetch.of.rounds is not None:
            self._workers.pass_over(fetch.of.rounds, fetch.of.batches + 1, fetch.of.over)

    def _tell_workers(self, found: Pass, call: int) -> None:
        if found.rounds is not None:
            self._workers.tell(found.rounds, found.receiver, found.batches, found.over, call)

    def _tell_batch(self, call: OpenCall, batch: Any) -> None:
        """Tell the tensors of a batch; equal summaries are the same object where no values are told."""
        entries = list(itertools.islice(tensors_in(batch, RESULT), MOST_TENSORS))
        with unseen():
            entries = [(role, tensor) for role, tensor in entries if shape_of(tensor) is not None]
            call.tensors = told = tuple(self._summary(role, tensor) for role, tensor in entries)
            if not self._reads:
                return
            tensors = [tensor for _, tensor in entries]
            digests = computed(tensors) if self._reads.contents else [None] * len(tensors)
            values = values_in([readable_memory(tensor) for tensor in tensors], self._reads)

            def conclude(known: list[Any], _: NextSeq) -> None:
                call.tensors = tuple(
                    summary._replace(fingerprint=digest, facts=tuple(sorted(facts.items())))
                    for summary, digest, facts in zip(told, known, known[len(told) :], strict=False)
                )

            self._recorder.transfers.when(self.name, [*digests, *values], conclude, call=call)

    def _summary(self, role: str, tensor: Any) -> TensorSummary:
        key = (role, tensor.dtype, tensor.shape, tensor.requires_grad)
        found = self._summaries.get(key)
        if found is None:
            if len(self._summaries) >= MOST_SUMMARIES:
                self._summaries.clear()
            dtype = str(tensor.dtype).removeprefix("torch.")
            found = self._summaries[key] = TensorSummary(role, dtype, tuple(tensor.shape), tensor.requires_grad)
        return found

    # -- a pass ends -----------------------------------------------------------------------------------------------

    def _tell_pass(self, found: Pass, call: int) -> None:
        """How far the pass came and in what order; one that was not seen from its beginning tells neither."""
        if found.whole:
            told = _LAST[found.over]
            if BATCHES in self._results:
                self._read(found.receiver, LOADER, BATCHES, found.batches, LIVE, call, told)
            if ORDER in self._results and found.order is not None:
                self._read(found.receiver, LOADER, ORDER, found.order, LIVE, call, told)

    def _abandoned(self, found: Pass) -> None:
        """Nothing more comes of this pass. One without a batch was only prepared."""
        if not found.over and found.batches:
            self._tell_pass(found, NO_CALL)

    def _leave_others(self, receiver: str) -> None:
        """Report the unfinished passes over a loader when another pass over it begins.

        A program may keep an iterator long after its last batch (`batches = iter(loader); first = next(batches)`). It
        has left that pass by now, and the end of the iterator says nothing about the passes since.
        """
        for _, found in list(self._passes.values()):
            if found.receiver == receiver:
                self._abandoned(found)
                found.whole = found.whole and not found.batches

    def _gone(self, key: int) -> None:
        """The program let go of an iterator."""
        entry = self._passes.get(key)
        if entry is not None and entry[0]() is None:
            del self._passes[key]
            self._abandoned(entry[1])

    def _at_end(self) -> None:
        for _, found in list(self._passes.values()):
            self._abandoned(found)
        self._workers.at_end()


def _nothing(*_: Any) -> None:
    """For what needs no word when it ends."""
