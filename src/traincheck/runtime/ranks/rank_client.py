"""The client of a rank: sends its windows to the comparing rank, where ranks share no run folder.

Note [Never in the way]
TrainCheck does not use the job's process groups: its collective could wait for a rank that runs another one, or mix
with those of the program. Each rank finds the comparing rank through the job's store and opens a connection to it.
Threads write to it and read from it; the training thread only hands over its windows. For each window the client sends
a few numbers (see checking/digests.py) in one message; the comparing rank requests values only where these differ. If
it dies or hangs, another rank takes over, see comparing_rank.py. If another rank dies, or the comparing rank cannot
keep up, the comparison ends or has gaps and reports them. Only the end of the program waits for it, for seconds.
"""

from __future__ import annotations

import queue
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from traincheck.background_threads import background
from traincheck.checking.digests import selected, value_digests
from traincheck.checking.rank_engine import RankComparison
from traincheck.runtime.ranks.comparing_rank import (
    FIRST,
    Address,
    Succession,
    Term,
    decoded,
    encoded,
    listen,
    own_host,
)
from traincheck.runtime.ranks.rank_info import RankInfo
from traincheck.runtime.ranks.rank_protocol import (
    Connection,
    Ended,
    Hello,
    Message,
    Stop,
    ValueDigestsRequest,
    ValuesRequest,
    WindowDigest,
    WindowValueDigests,
    WindowValues,
)
from traincheck.runtime.ranks.rank_server import RankServer
from traincheck.runtime.ranks.recent_windows import RecentWindows
from traincheck.trace.run_notes import StopRequest
from traincheck.vocab.events import Window
from traincheck.vocab.finding import Finding
from traincheck.vocab.invariant import Invariant
from traincheck.vocab.ranks import named_ranks

if TYPE_CHECKING:
    from traincheck.sources.distributed.job_store import JobStore

START = 300.0
"""Seconds in which the ranks must find each other."""
CONNECT = 20.0
"""Seconds in which a connection must open."""
MAX_WAITING = 256
"""Windows that wait to be sent; further ones are dropped."""
LINGER = 5.0
"""Seconds that the end of a rank waits for requests of the comparing rank."""
SILENCE, JOIN = 30.0, 5.0
"""Seconds without a message after which the comparing rank is lost, and in which ranks must connect to the next one."""
CHECK, TAKE_OVER = 1.0, 5.0
"""Seconds between the checks of a comparing rank that lost connections whether another one has taken over, and after
which it expects none."""

END, GRACE = 15.0, 2.0
"""Seconds that the end of the program may take, and the part of them for an aborted connection."""
PAUSE = 0.1

IN_FILES, LOST = b"files", b"lost"
"""The address that a rank publishes if all ranks write into one run folder, where `traincheck run` compares them, and
if it cannot reach all ranks."""


class RankClient:
    """Compares this rank with the others over the network. It starts with the first window, and never raises.

    `folder` identifies the run folder; it is empty to compare over the network in any case. The callbacks run on
    threads of the client: `on_decided` when the ranks compare over the network, `on_finding` on the comparing rank for
    each new finding, `on_stop` when that rank requests a stop, `on_fault` once when this rank gives up.
    """

    def __init__(
        self,
        rank_info: RankInfo,
        folder: str,
        rules: list[Invariant],
        *,
        on_decided: Callable[[], None],
        on_finding: Callable[[Finding], None],
        on_stop: Callable[[StopRequest], None],
        on_fault: Callable[[str, BaseException], None],
    ) -> None:
        self._rank_info = rank_info
        self._folder = folder
        self._rules = rules
        self._on_decided = on_decided
        self._on_finding = on_finding
        self._on_stop = on_stop
        self._on_fault = on_fault
        self._waiting: queue.Queue[tuple[Window, Window]] = queue.Queue(MAX_WAITING)
        self._closing = threading.Event()
        self._over = threading.Event()
        self._held = RecentWindows()
        self._failed = self._decided = False
        self._lost_since = self._checked = 0.0
        self._server: RankServer | None = None
        self._before: _Before | None = None
        self._muted: Mapping[str, str] = {}
        self._connections: list[Connection] = []
        self.dropped = 0
        """Windows that were not sent, because they came too fast or cannot be encoded."""
        self._thread = background(self._run, "traincheck-rank-client")

    def add_window(self, window: Window, digest: Window) -> None:
        """Hand over a window and its digest; never blocks."""
        if self._over.is_set():
            return
        try:
            self._waiting.put_nowait((window, digest))
        except queue.Full:
            self.dropped += 1

    def close(self) -> RankComparison | None:
        """Send the remaining windows and end; returns the comparison on a comparing rank."""
        self._closing.set()
        self._thread.join(END - GRACE)
        if self._server is not None:
            self._server.give_up()
        for connection in self._connections:
            connection.abort()
        self._thread.join(GRACE)
        return self.compared()

    def mute(self, muted: Mapping[str, str]) -> None:
        """Stop checking these rules, on the comparing rank."""
        self._muted = muted
        if self._server is not None:
            self._server.ranks.mute(muted)

    @property
    def sent(self) -> dict[str, int]:
        """The number of messages to comparing ranks, and their bytes."""
        if not self._connections:
            return {}
        return {
            "messages": sum(connection.sent for connection in self._connections),
            "bytes": sum(connection.bytes_sent for connection in self._connections),
        }

    def compared(self) -> RankComparison | None:
        """The comparison so far, on a rank that compares the others or has done so."""
        if self._server is None:
            return None
        comparison = self._server.compared()
        gaps = () if self._before is None else _gaps(self._before, self._server)
        return replace(comparison, not_compared=(*gaps, *comparison.not_compared))

    # -- on the thread of the client -----------------------------------------------------------------------------

    def _run(self) -> None:
        from traincheck.sources.distributed.job_store import connect  # here, as they import torch
        from traincheck.sources.distributed.replica_readings import several_ranks

        try:
            if self._folder and not several_ranks():
                return  # ranks without communication; `traincheck run` compares their files
            store = connect(self._rank_info.job, CONNECT)
            store.put(f"folder/{self._rank_info.rank}", self._folder.encode())
            rank, size = self._rank_info.rank, self._rank_info.world_size
            self._take_part(store, Succession(store, rank, size, self._closing.is_set))
        except Exception as error:
            self._fail(error)
        finally:
            self._over.set()
            for connection in self._connections:
                connection.abort()  # so that the comparing rank does not wait for more
            with suppress(queue.Empty):
                while True:
                    self._waiting.get_nowait()

    def _fail(self, error: Exception) -> None:
        """Report an error once."""
        is_ending = self._closing.is_set() or self._over.is_set()  # then the other ranks may have ended
        if not (is_ending or self._failed):
            self._failed = True
            self._on_fault("ranks", error)

    def _take_part(self, store: JobStore, succession: Succession) -> None:
        """Compare the ranks, or report to the rank that does, until the program ends or no rank compares any more."""
        term = FIRST
        while not (self._compare if term.rank == self._rank_info.rank else self._report)(store, succession, term):
            if self._closing.is_set():
                break
            try:
                following = succession.next_term(term, may_compare=self._server is None)
            except RuntimeError as error:
                lost = f"rank {term.rank}, which compares the ranks, was lost"
                raise ConnectionError(f"{lost}, and the key-value store of the job with it") from error
            if following is None:
                break
            term = following
        else:
            return
        if not self._closing.is_set():
            raise TimeoutError(f"rank {term.rank}, which compares the ranks, was lost, and no other rank took over")
        if not (self._folder or self._server or self._connections):
            self._on_fault("ranks", TimeoutError("not all ranks could be reached before the end"))

    def _compare(self, store: JobStore, succession: Succession, term: Term) -> bool:
        """Compare the ranks; False if this rank is not needed or not able to do so."""
        size = self._rank_info.world_size
        if term == FIRST:
            keys = [f"folder/{number}" for number in range(size)]
            folders = store.get(keys, START, self._closing.is_set)
            if folders is None:
                if not self._closing.is_set():
                    succession.open(term, LOST)
                return False
        else:
            self._before = _Before(succession.lost_rank(term), succession.progress_before(term))
            folders = [store.value(key) for key in (f"folder/{number}" for number in range(size)) if store.has(key)]
        if self._folder and len(set(folders)) == 1:
            succession.open(term, IN_FILES)
            return True
        host = store.host if term == FIRST else own_host(store)
        with listen(host, size) as listener:
            word = secrets.token_hex(16)
            self._server = server = RankServer(
                self._rank_info,
                self._rules,
                self._on_finding,
                listener,
                word,
                on_first=lambda: self._find_gap(succession, term),
                on_progress=lambda step: _published(succession, term, step),
                join=None if term == FIRST else JOIN,
            )
            server.ranks.mute(self._muted)
            succession.open(term, encoded(Address(host, listener.getsockname()[1], word)))
            self._decide()
            is_replaced = False
            while not (server.failed or is_replaced):
                pair = self._next()
                if pair is not None:
                    server.add_window(*pair)
                elif self._closing.is_set():
                    server.close()
                    return True
                if server.has_lost_ranks:
                    is_replaced = self._is_replaced(succession, term, server)
            server.abandon("" if server.failed else f"rank {succession.rank_after(term)} compares them since")
            server.close()
            return False

    def _find_gap(self, succession: Succession, term: Term) -> None:
        """Read again how far the ranks were compared before: the lost rank may have known it a little later."""
        if self._before is not None:
            with suppress(RuntimeError):  # the store is gone
                self._before = self._before._replace(step=succession.progress_before(term))

    def _is_replaced(self, succession: Succession, term: Term, server: RankServer) -> bool:
        """Whether ranks that lost their connection have made another rank compare."""
        now = time.monotonic()
        self._lost_since = self._lost_since or now
        if now - self._checked < CHECK:
            return False
        self._checked = now
        try:
            is_replaced = succession.is_replaced(term)
        except RuntimeError:  # the store is gone
            is_replaced = False
        if not is_replaced and server.is_judged and now - self._lost_since > TAKE_OVER:
            server.end()  # the lost ranks do not live
        return is_replaced

    def _report(self, store: JobStore, succession: Succession, term: Term) -> bool:
        """Send the windows to the comparing rank; False if that rank is lost."""
        address = succession.address(term, START if term == FIRST else CONNECT)
        if address is None or address == LOST:
            return False
        if address == IN_FILES:
            return True
        host, port, word = decoded(address)
        try:
            connection = Connection(socket.create_connection((host, port), CONNECT))
        except OSError:
            return False
        self._connections.append(connection)
        self._decide()
        lost = threading.Event()
        answering = background(self._answer, "traincheck-rank-answers", connection, lost)
        try:
            connection.send(Hello(self._rank_info.rank, word))
            while not (self._over.is_set() or lost.is_set()):
                pair = self._next()
                if pair is not None:
                    self._send(connection, pair)
                elif self._closing.is_set():
                    connection.send(Ended())
                    answering.join(LINGER)
                    return True
        except OSError:
            pass
        connection.abort()
        answering.join(GRACE)
        return self._over.is_set()

    def _decide(self) -> None:
        """Report once that the ranks compare themselves."""
        if not self._decided:
            self._decided = True
            self._on_decided()

    def _send(self, connection: Connection, pair: tuple[Window, Window]) -> None:
        window, digest = pair
        self._held.add(window)
        try:
            connection.send(WindowDigest(digest))
        except ValueError:  # a number of more than 64 bits
            self.dropped += 1

    def _answer(self, connection: Connection, lost: threading.Event) -> None:
        """Answer the comparing rank, until it has ended or is lost."""
        try:
            while True:
                connection.await_message(SILENCE)
                message = connection.receive()
                if isinstance(message, Ended):
                    self._over.set()
                    return
                self._answer_one(connection, message)
        except OSError:
            lost.set()
        except Exception as error:
            self._fail(error)
            self._over.set()
        finally:
            connection.close()

    def _answer_one(self, connection: Connection, message: Message) -> None:
        if isinstance(message, Stop):
            self._on_stop(StopRequest(title=message.title, step=message.step))
        elif isinstance(message, ValueDigestsRequest):
            window = self._held.get(message.index)
            digests = None if window is None else value_digests(window, message.sections)
            connection.send(WindowValueDigests(message.number, digests))
        elif isinstance(message, ValuesRequest):
            window = self._held.get(message.index)
            try:
                values = None if window is None else selected(window, message.selection)
                connection.send(WindowValues(message.number, values))
            except ValueError:  # a number of more than 64 bits
                connection.send(WindowValues(message.number, None))

    def _next(self) -> tuple[Window, Window] | None:
        """The next window and its digest; None if there is none for some time."""
        try:
            return self._waiting.get(timeout=PAUSE)
        except queue.Empty:
            return None

    def broadcast_stop(self, request: StopRequest) -> None:
        """Request a stop of the other ranks; on the comparing rank only."""
        if self._server is not None:
            self._server.broadcast(Stop(request.title, request.step))


def _published(succession: Succession, term: Term, step: int) -> None:
    with suppress(RuntimeError):  # the store is gone: no other rank can take over
        succession.report_progress(term, step)


class _Before(NamedTuple):
    """The rank from which this one took over, and the last step that was certainly compared."""

    lost: int
    step: int


def _gaps(before: _Before, server: RankServer) -> tuple[str, ...]:
    """What was not compared before a rank took over, and which ranks are not compared since."""
    because = f"rank {before.lost}, which compared them, was lost"
    first = server.first_step
    if first is None:
        return (f"ranks were compared up to step {before.step}: {because}",)
    gaps = []
    if first > before.step + 1:
        gaps.append(f"ranks were not compared from step {before.step + 1} to step {first - 1}: {because}")
    if server.absent:
        gaps.append(f"{named_ranks(server.absent)} took no part in the comparison from step {first} on")
    return tuple(gaps)
