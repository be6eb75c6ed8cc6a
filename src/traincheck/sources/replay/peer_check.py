"""Neighbours: in a job of replicas each rank executes what another one has computed, from the same state.

A unit that is broken for good computes the same wrong thing each time, so repeating a step on the same device shows
nothing. Each rank hands its call to the next one (arguments, random state, buffers, the gradients that came to the
result, and fingerprints of what it computed), over the job's store and on a thread of its own; who is handed one
executes it between two steps, on copies of its own parameters of that step, which are the same where the ranks are
replicas. Where the two differ a third rank is asked, if there is one, and the odd one out is named. Nobody waits for
anybody: what does not arrive is not compared.
"""

from __future__ import annotations

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

CONNECT = 20.0
LARGEST = 64 << 20
"""Bytes of a call that is handed over; of larger ones nothing is compared with neighbours."""
LINGER = 2.0


class PeerCase(NamedTuple):
    """A call to be judged: whose, in which step, what it gave there; for an appeal also what the first judge got."""

    origin: int
    step: int
    call: PeerCall
    judge: int = -1
    other: dict[str, Any] | None = None


class PeerResult(NamedTuple):
    """What a judge found: the ranks that differ (one where it is known which is odd, none where all agree), of how many
    that were compared, and the part and name of what differs first."""

    step: int
    name: str
    ranks: tuple[int, ...] = ()
    compared: int = 2
    part: str = ""
    first: str = ""


class PeerCheck:
    """This rank's part. It starts with the first call that it is given, and never raises."""

    def __init__(self, on_fault: Callable[[str], None]) -> None:
        self._on_fault = on_fault
        self._rank, self._ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
        self._out: queue.Queue[tuple[str, bytes]] = queue.Queue(8)
        self._expected: queue.Queue[tuple[str, int]] = queue.Queue(8)
        self._cases: queue.Queue[PeerCase] = queue.Queue(8)
        self._retained: dict[int, tuple[CapturedCall, list[torch.Tensor]]] = {}
        self._closing = threading.Event()
        self._thread = background(self._work, "traincheck-neighbours")

    @property
    def has_case(self) -> bool:
        """Whether there is something to judge."""
        return not self._cases.empty()

    def send(self, step: int, call: CapturedCall) -> None:
        """Give a call that was repeated here to the next rank, and expect that of the one before. The parameters have
        to be those that it was executed with."""
        try:
            payload = _bytes({"step": step, "call": call.for_peer()._asdict()})
        except CannotReplay:
            return
        if len(payload) > LARGEST:
            self._on_fault(
                f"a call of {len(payload) >> 20} MB is not handed to other ranks (at most {LARGEST >> 20} MB)"
            )
            return
        call.seen = ExecutionResult()  # it has been told
        self._retained = {step: (call, [parameter.detach().clone() for parameter in call.module.parameters()])}
        with suppress(queue.Full):
            self._out.put_nowait((f"call/{step}/{self._rank}", payload))
            self._expected.put_nowait((f"call/{step}/{(self._rank - 1) % self._ranks}", (self._rank - 1) % self._ranks))
        if self._ranks > 2:
            before = (self._rank - 2) % self._ranks
            with suppress(queue.Full):
                self._expected.put_nowait((f"appeal/{step}/{before}", before))

    def judge(self) -> PeerResult | None:
        """Execute what has arrived, if anything has. Call on the thread that trains, aside."""
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
            again = call.execute_peer_call(case.call, parameters)
        except CannotReplay:
            return None
        if again is None or mine.first_difference(again) is not None:
            return None  # what repeats nowhere is found by those who repeat their own
        if case.judge < 0 and differs is not None:
            if self._ranks > 2:
                appeal = {"step": case.step, "call": case.call._asdict(), "judge": self._rank}
                payload = _bytes({**appeal, "other": mine.prints()})
                with suppress(queue.Full):
                    self._out.put_nowait((f"appeal/{case.step}/{case.origin}", payload))
                return None  # it is for the third rank to say
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
        """Give up what is under way."""
        self._closing.set()
        self._retained.clear()
        self._thread.join(LINGER)

    # -- on a thread of its own ------------------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            store = connect(f"replays-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '')}", CONNECT)
            waiting: dict[str, int] = {}
            while not self._closing.wait(0.05):
                with suppress(queue.Empty):
                    while True:
                        store.put(*self._out.get_nowait())
                with suppress(queue.Empty):
                    while True:
                        key, origin = self._expected.get_nowait()
                        waiting[key] = origin
                for key, origin in list(waiting.items()):
                    if self._fetch(store, key, origin) or len(waiting) > 16:
                        del waiting[key]
        except Exception as error:
            if not self._closing.is_set():
                self._on_fault(f"calls are no longer handed to other ranks: {type(error).__name__}: {error}")

    def _fetch(self, store: JobStore, key: str, origin: int) -> bool:
        values = store.get([key], 0.0, lambda: True)
        if values is None:
            return False
        payload = torch.load(io.BytesIO(values[0]), weights_only=True)
        peer_call = PeerCall(**payload["call"])
        with suppress(queue.Full):
            self._cases.put_nowait(
                PeerCase(origin, payload["step"], peer_call, payload.get("judge", -1), payload.get("other"))
            )
        return True


def _disagreement(case: PeerCase, name: str, judge: int, differs: tuple[str, str]) -> PeerResult:
    """Two ranks differ, and nobody can say which of them is odd."""
    return PeerResult(case.step, name, tuple(sorted((case.origin, judge))), 2, *differs)


def _bytes(payload: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    torch.save(payload, buffer)
    return buffer.getvalue()
