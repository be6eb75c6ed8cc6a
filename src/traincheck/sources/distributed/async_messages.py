"""Follows asynchronous messages between ranks from their start until the program waits for them.

Note [Messages in flight]
The backend may read a sent tensor at any time until the operation ends, so the tensor must not change before that. A
received tensor is valid only afterwards. TrainCheck therefore fingerprints a sent tensor at the start and at the wait,
and a received tensor at the wait. It holds only weak references to tensors and requests.

Known limitations: some backends join several messages into one request (NCCL in `batch_isend_irecv`); TrainCheck misses
that wait. It stops reading a message once the program polls the request and learns that it has ended.
"""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

import torch
import torch.distributed

from traincheck.sources.base import replace, wrapping
from traincheck.sources.recording.context_facts import CallContext, call_context_facts
from traincheck.sources.recording.patches import TensorReference, UndoStack
from traincheck.sources.recording.recorder import OpenCall, Recorder
from traincheck.sources.tensors.device_transfers import NextSeq
from traincheck.sources.tensors.reading import Fingerprint, deferred_fingerprints, hidden_from_modes
from traincheck.sources.tensors.value_facts import readable
from traincheck.vocab.collectives import STARTED, WAIT
from traincheck.vocab.demand import CONTENTS, TENSORS, Demand
from traincheck.vocab.events import LIFECYCLE, TensorSummary
from traincheck.vocab.facts import Facts

MAX_IN_FLIGHT = 4096
"""Messages followed at once: a program that never waits would fill the memory."""

_LEVELS = (WAIT,)


class _MessageInFlight(NamedTuple):
    """A message in flight. `started` is the call that started it; the tensor is its first one."""

    request: weakref.ref[Any]
    tensor: weakref.ref[torch.Tensor]
    summary: TensorSummary
    sends: bool
    read: bool
    started: OpenCall

    def fingerprint(self) -> int | None:
        """Return the fingerprint of a sent tensor; None for a received or unread one. Call in deferred work."""
        return self.started.tensors[0].fingerprint if self.sends and self.started.tensors else None


class AsyncMessages:
    """Follows messages in flight and records each wait for one, as a call of `WAIT`."""

    name = "collectives"

    def __init__(self, call_context: CallContext) -> None:
        self._call_context = call_context
        self._pending: dict[int, _MessageInFlight] = {}
        self._recorder: Recorder | None = None

    def attach(self, demand: Demand, recorder: Recorder, undo: UndoStack) -> None:
        """Observe waits, where requested."""
        work = getattr(torch.distributed, "Work", None)
        observed = any(demand.reads_values(_LEVELS, state) for state in (TENSORS, CONTENTS))
        if work is None or not demand.records_call(_LEVELS) or not observed:
            return
        self._recorder = recorder
        recorder.after_gap(self.name, self._pending.clear, undo=undo)
        guarded = recorder.guarded
        waiting = wrapping(
            guarded(self.name, self._wait_begins),
            guarded(self.name, lambda opened, _: self._wait_ends(*opened)),
            guarded(self.name, lambda opened: recorder.abandon(opened[0])),
        )
        polling = wrapping(guarded(self.name, self._pending_of), guarded(self.name, self._polled), _no_op)
        replace(undo, work, "wait", waiting)
        replace(undo, work, "is_completed", polling)
        recorder.on_detach(undo, self._pending.clear)

    def follow(self, request: Any, call: OpenCall, tensor: Any, *, sends: bool, read: bool) -> None:
        """Follow a message that `call` started; `read` is True where this call reads values."""
        if self._recorder is None or request is None or not isinstance(tensor, torch.Tensor) or not call.tensors:
            return
        if len(self._pending) >= MAX_IN_FLIGHT:
            self._pending.clear()
        key, summary = id(request), call.tensors[0]
        reference = weakref.ref(request, lambda _: self._pending.pop(key, None))
        self._pending[key] = _MessageInFlight(reference, TensorReference(tensor), summary, sends, read, call)

    def _pending_of(self, request: Any) -> _MessageInFlight | None:
        pending = self._pending.get(id(request))
        return pending if pending is not None and pending.request() is request else None

    def _polled(self, pending: _MessageInFlight, ended: object) -> None:
        request = pending.request()
        if ended is True and request is not None:
            # From now on the program may reuse the memory.
            self._pending[id(request)] = pending._replace(read=False)

    def _wait_begins(self, request: Any, *_: Any, **__: Any) -> tuple[OpenCall, _MessageInFlight] | None:
        pending = self._pending_of(request)
        if pending is None or self._recorder is None:
            return None
        del self._pending[id(request)]
        call = self._recorder.enter(LIFECYCLE, _LEVELS, "", call_context_facts(self._call_context))
        return call, pending

    def _wait_ends(self, call: OpenCall, pending: _MessageInFlight) -> None:
        if self._recorder is None:
            return
        tensor = pending.tensor()
        now: Fingerprint = None

        def conclude(resolved: list[int | None], _: NextSeq) -> None:
            comparison: Facts = ()
            if resolved[0] is not None and (sent := pending.fingerprint()) is not None:
                comparison = (("changed", resolved[0] != sent),)
            role = "sent" if pending.sends else "received"
            call.tensors = (pending.summary._replace(role=role, fingerprint=resolved[0], facts=comparison),)

        with hidden_from_modes():
            if tensor is not None and pending.read and readable(tensor):
                now = deferred_fingerprints([tensor])[0]
            self._recorder.transfers.when_ready(self.name, [now], conclude, call=call)
        self._recorder.leave(call, ((STARTED, pending.started.seq),))


def _no_op(_: Any) -> None:
    """A poll that raises changes nothing."""
