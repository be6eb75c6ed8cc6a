"""Has each rank of a job of replicas replay the call of another rank, and compares the results.

A permanently broken unit computes the same wrong result each time, so replaying on the same device shows nothing. Each
rank therefore sends its call to the next rank, over the job's store and on its own thread: arguments, random state,
buffers, gradients of the result, and fingerprints of what it computed. The receiver executes the call between two
steps, on copies of its own parameters of that step, which are equal on replicas. Where the results differ, a third rank
executes the call too, if there is one, and the odd one is named. No rank waits for another: a call that does not arrive
is not compared.
"""

from __future__ import annotations

import inspect
import io
import os
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import torch
import torch.distributed

from traincheck.background_threads import background
from traincheck.sources.distributed.job_store import JobStore, connect
from traincheck.sources.replay.captured_call import CapturedCall
from traincheck.sources.replay.fingerprints import CannotReplay, ExecutionResult, PeerCall

CONNECT_SECONDS = 20.0
MAX_CALL_BYTES = 64 << 20
"""Bytes of the largest call to send; larger calls are not compared between ranks."""
JOIN_SECONDS = 2.0


_load, _save = inspect.unwrap(torch.load), inspect.unwrap(torch.save)
"""Without the wrappers of TrainCheck, which would record these calls as those of the program."""


class PeerCase(NamedTuple):
    """A call to judge: its rank, its step and its results; in an appeal also the results of the first judge."""

    origin: int
    step: int
    call: PeerCall
    judge: int = -1
    other: dict[str, Any] | None = None


class PeerResult(NamedTuple):
    """The result of a comparison.

    `ranks` are the ranks that differ: one where the odd one is known, none where all agree. `compared` is the number of
    ranks compared. `part` and `first` name the first difference.
    """

    step: int
    name: str
    ranks: tuple[int, ...] = ()
    compared: int = 2
    part: str = ""
    first: str = ""


class PeerCheck:
    """The part of this rank in the comparison. It starts with its first call, and never raises."""

    def __init__(self, on_fault: Callable[[str], None]) -> None:
        self._on_fault = on_fault
        self._rank, self._ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
        self._outbox: queue.Queue[tuple[str, bytes]] = queue.Queue(8)
        self._expected: queue.Queue[tuple[str, int]] = queue.Queue(8)
        self._cases: queue.Queue[PeerCase] = queue.Queue(8)
        self._retained: dict[int, tuple[CapturedCall, list[torch.Tensor]]] = {}
        self._closing = threading.Event()
        self._thread = background(self._work, "traincheck-peer-check")

    @property
    def has_case(self) -> bool:
        """Whether a call to judge has arrived."""
        return not self._cases.empty()

    def send(self, step: int, call: CapturedCall) -> None:
        """Send a call replayed here to the next rank, and expect the call of the previous rank.

        The parameters of the model have to be those of the call.
        """
        try:
            payload = _bytes({"step": step, "call": call.for_peer()._asdict()})
        except CannotReplay:
            return
        if len(payload) > MAX_CALL_BYTES:
            self._on_fault(
                f"a call of {len(payload) >> 20} MB is not sent to other ranks (at most {MAX_CALL_BYTES >> 20} MB)"
            )
            return
        call.seen = ExecutionResult()  # the payload holds it
        self._retained = {step: (call, [parameter.detach().clone() for parameter in call.module.parameters()])}
        with suppress(queue.Full):
            self._outbox.put_nowait((f"call/{step}/{self._rank}", payload))
            self._expected.put_nowait((f"call/{step}/{(self._rank - 1) % self._ranks}", (self._rank - 1) % self._ranks))
        if self._ranks > 2:
            before = (self._rank - 2) % self._ranks
            with suppress(queue.Full):
                self._expected.put_nowait((f"appeal/{step}/{before}", before))

    def judge(self) -> PeerResult | None:
        """Execute a call that has arrived, if any. Call on the training thread, with hooks suspended."""
        try:
            case = self._cases.get_nowait()
        except queue.Empty:
            return None
        retained = self._retained.get(case.step)
        if retained is None:
            return None
        call, parameters = retained
        theirs = case.call.executed()
        try:
            mine = call.execute_peer_call(case.call, parameters)
            if mine is None:
                return None
            differs = theirs.first_difference(mine)
            if case.judge < 0 and differs is None:
                return PeerResult(case.step, call.name)
            second = call.execute_peer_call(case.call, parameters)
        except CannotReplay:
            return None
        if second is None or mine.first_difference(second) is not None:
            return None  # the rank of the call finds out that it does not repeat
        if case.judge < 0 and differs is not None:
            if self._ranks > 2:
                appeal = {"step": case.step, "call": case.call._asdict(), "judge": self._rank}
                payload = _bytes({**appeal, "other": mine.prints()})
                with suppress(queue.Full):
                    self._outbox.put_nowait((f"appeal/{case.step}/{case.origin}", payload))
                return None  # the third rank decides
            return _disagreement(case, call.name, self._rank, differs)
        return self._arbitrate(case, call.name, theirs, mine)

    def _arbitrate(
        self, case: PeerCase, name: str, theirs: ExecutionResult, mine: ExecutionResult
    ) -> PeerResult | None:
        if case.other is None:
            return None
        first_judge = ExecutionResult.from_prints(**case.other)
        with_origin, with_judge = theirs.first_difference(mine), first_judge.first_difference(mine)
        differs = theirs.first_difference(first_judge)
        if differs is None:
            return None
        if (with_origin is None) == (with_judge is None):
            return _disagreement(case, name, case.judge, differs)
        odd = case.origin if with_judge is None else case.judge
        return PeerResult(case.step, name, (odd,), 3, *differs)

    def close(self) -> None:
        """Stop, and drop calls under way."""
        self._closing.set()
        self._retained.clear()
        self._thread.join(JOIN_SECONDS)

    # -- on the background thread ----------------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            store = connect(f"replays-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '')}", CONNECT_SECONDS)
            waiting: dict[str, int] = {}
            while not self._closing.wait(0.05):
                with suppress(queue.Empty):
                    while True:
                        store.put(*self._outbox.get_nowait())
                with suppress(queue.Empty):
                    while True:
                        key, origin = self._expected.get_nowait()
                        waiting[key] = origin
                for key, origin in list(waiting.items()):
                    if self._fetch(store, key, origin) or len(waiting) > 16:
                        del waiting[key]
        except Exception as error:
            if not self._closing.is_set():
                self._on_fault(f"calls are no longer sent to other ranks: {type(error).__name__}: {error}")

    def _fetch(self, store: JobStore, key: str, origin: int) -> bool:
        values = store.get([key], 0.0, lambda: True)
        if values is None:
            return False
        payload = _load(io.BytesIO(values[0]), weights_only=True)
        peer_call = PeerCall(**payload["call"])
        with suppress(queue.Full):
            self._cases.put_nowait(
                PeerCase(origin, payload["step"], peer_call, payload.get("judge", -1), payload.get("other"))
            )
        return True


def _disagreement(case: PeerCase, name: str, judge: int, differs: tuple[str, str]) -> PeerResult:
    """Return a result in which two ranks differ and neither is known to be wrong."""
    return PeerResult(case.step, name, tuple(sorted((case.origin, judge))), 2, *differs)


def _bytes(payload: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    _save(payload, buffer)
    return buffer.getvalue()
