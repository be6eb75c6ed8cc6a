"""The client of a rank: sends its windows to rank 0 for comparison, where ranks share no run folder.

Note [Never in the way]
TrainCheck does not use the job's process groups: its collective could wait for a rank that runs another one, or mix
with those of the program. Each rank finds rank 0 through the job's store and opens a connection to it. Threads write to
it and read from it; the training thread only hands over its windows. For each window the client sends a few numbers
(see checking/digests.py) in one message; rank 0 requests the full window only where these differ. If a connection
breaks, a rank dies, or rank 0 cannot keep up, the comparison ends or has gaps and reports them. Only the end of the
program waits for it, for seconds.
"""

from __future__ import annotations

import queue
import secrets
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from traincheck.background_threads import background
from traincheck.checking.digests import full
from traincheck.checking.rank_engine import RankComparison
from traincheck.runtime.ranks.rank_info import RankInfo
from traincheck.runtime.ranks.rank_protocol import (
    Connection,
    Ended,
    FullWindow,
    Hello,
    Stop,
    WindowDigest,
    WindowRequest,
)
from traincheck.runtime.ranks.rank_server import RankServer
from traincheck.runtime.ranks.recent_windows import RecentWindows
from traincheck.trace.run_notes import StopRequest
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import Window
from traincheck.vocab.finding import Finding
from traincheck.vocab.invariant import Invariant

if TYPE_CHECKING:
    from traincheck.sources.distributed.job_store import JobStore

START = 300.0
"""Seconds in which the ranks must find each other."""
CONNECT = 20.0
"""Seconds in which a connection must open."""
MAX_WAITING = 256
"""Windows that wait to be sent; further ones are dropped."""
LINGER = 5.0
"""Seconds that the end of a rank waits for requests of rank 0 for full windows."""

END, GRACE = 15.0, 2.0
"""Seconds that the end of the program may take, and the part of them for an aborted connection."""
PAUSE = 0.1

IN_FILES = b"files"
"""The address that rank 0 publishes if all ranks write into one run folder, where `traincheck run` compares them."""


class RankClient:
    """Compares this rank with the others over the network. It starts with the first window, and never raises.

    `folder` identifies the run folder; it is empty to compare over the network in any case. The callbacks run on
    threads of the client: `on_decided` when the ranks compare over the network, `on_finding` on rank 0 for each new
    finding, `on_stop` when rank 0 requests a stop, `on_fault` once when this rank gives up.
    """

    def __init__(
        self,
        rank_info: RankInfo,
        folder: str,
        rules: list[Invariant],
        demand: Demand,
        *,
        on_decided: Callable[[], None],
        on_finding: Callable[[Finding], None],
        on_stop: Callable[[StopRequest], None],
        on_fault: Callable[[str, BaseException], None],
    ) -> None:
        self._rank_info = rank_info
        self._folder = folder
        self._rules = rules
        self._demand = demand
        self._on_decided = on_decided
        self._on_finding = on_finding
        self._on_stop = on_stop
        self._on_fault = on_fault
        self._waiting: queue.Queue[tuple[Window, Window]] = queue.Queue(MAX_WAITING)
        self._closing = threading.Event()
        self._over = threading.Event()
        self._held = RecentWindows()
        self._failed = False
        self._server: RankServer | None = None
        self._muted: Mapping[str, str] = {}
        self._connection: Connection | None = None
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
        """Send the remaining windows and end; returns the comparison on rank 0."""
        self._closing.set()
        self._thread.join(END - GRACE)
        if self._server is not None:
            self._server.give_up()
        if self._connection is not None:
            self._connection.close()
        self._thread.join(GRACE)
        return self.compared()

    def mute(self, muted: Mapping[str, str]) -> None:
        """Stop checking these rules, on rank 0."""
        self._muted = muted
        if self._server is not None:
            self._server.ranks.mute(muted)

    @property
    def sent(self) -> dict[str, int]:
        """The number of messages to rank 0, and their bytes."""
        return (
            {}
            if self._connection is None
            else {"messages": self._connection.sent, "bytes": self._connection.bytes_sent}
        )

    def compared(self) -> RankComparison | None:
        """The comparison so far, on rank 0."""
        return self._server.compared() if self._server is not None else None

    # -- on the thread of the client -----------------------------------------------------------------------------

    def _run(self) -> None:
        from traincheck.sources.distributed.job_store import connect  # here, as they import torch
        from traincheck.sources.distributed.replica_readings import several_ranks

        try:
            if self._folder and not several_ranks():
                return  # ranks without communication; `traincheck run` compares their files
            store = connect(self._rank_info.job, CONNECT)
            if self._rank_info.rank == 0:
                self._compare(store)
            else:
                self._report(store)
        except Exception as error:
            self._fail(error)
        finally:
            self._over.set()
            if self._connection is not None:
                self._connection.close()  # so that rank 0 does not wait for more
            with suppress(queue.Empty):
                while True:
                    self._waiting.get_nowait()

    def _fail(self, error: Exception) -> None:
        """Report an error once."""
        is_ending = self._closing.is_set() or self._over.is_set()  # then the other ranks may have ended
        if not (is_ending or self._failed):
            self._failed = True
            self._on_fault("ranks", error)

    def _compare(self, store: JobStore) -> None:
        """Run as rank 0."""
        store.put("folder/0", self._folder.encode())
        keys = [f"folder/{rank}" for rank in range(self._rank_info.world_size)]
        folders = store.get(keys, START, self._closing.is_set)
        if folders is None:
            self._not_reached("not all ranks could")
            return
        if self._folder and len(set(folders)) == 1:
            store.put("address", IN_FILES)
            return
        word = secrets.token_hex(16)
        with _listen(store.host, self._rank_info.world_size) as listener:
            self._server = server = RankServer(self._rank_info, self._rules, self._on_finding, listener, word)
            server.ranks.mute(self._muted)
            store.put("address", f"{listener.getsockname()[1]} {word}".encode())
            self._on_decided()
            while (pair := self._next()) is not None:
                server.add_window(*pair)
            server.close()

    def _report(self, store: JobStore) -> None:
        """Run as another rank."""
        store.put(f"folder/{self._rank_info.rank}", self._folder.encode())
        address = store.get(["address"], START, self._closing.is_set)
        if address is None:
            self._not_reached("rank 0 could not")
            return
        if address[0] == IN_FILES:
            return
        port, word = address[0].decode().split()
        self._connection = connection = Connection(socket.create_connection((store.host, int(port)), CONNECT))
        self._on_decided()
        connection.send(Hello(self._rank_info.rank, word))
        answering = background(self._answer, "traincheck-rank-answers", connection)
        while (pair := self._next()) is not None:
            window, digest = pair
            self._held.add(window)
            try:
                connection.send(WindowDigest(digest))
            except ValueError:  # a number of more than 64 bits
                self.dropped += 1
        connection.send(Ended())
        answering.join(LINGER)

    def _not_reached(self, who: str) -> None:
        """Report it, except at an early end where files are compared anyway."""
        if not self._closing.is_set():
            raise TimeoutError(f"{who} be reached in {START:.0f} s")
        if not self._folder:
            self._on_fault("ranks", TimeoutError(f"{who} be reached before the end"))

    def _answer(self, connection: Connection) -> None:
        """Send the windows that rank 0 requests, until it has ended."""
        try:
            while not isinstance(message := connection.receive(), Ended):
                if isinstance(message, WindowRequest):
                    self._send_full(connection, message.index)
                elif isinstance(message, Stop):
                    self._on_stop(StopRequest(title=message.title, step=message.step))
            self._over.set()
        except OSError:
            pass  # the other thread reports it
        except Exception as error:
            self._fail(error)
            connection.close()

    def _send_full(self, connection: Connection, index: int) -> None:
        window = self._held.get(index)
        try:
            connection.send(FullWindow(index, None if window is None else full(window, self._demand)))
        except ValueError:  # a number of more than 64 bits
            connection.send(FullWindow(index, None))

    def _next(self) -> tuple[Window, Window] | None:
        """The next window and its digest; None when there are no more."""
        while not self._over.is_set():
            try:
                return self._waiting.get(timeout=PAUSE)
            except queue.Empty:
                if self._closing.is_set():
                    return None
        return None

    def broadcast_stop(self, request: StopRequest) -> None:
        """Request a stop of the other ranks; on rank 0 only."""
        if self._server is not None:
            self._server.broadcast(Stop(request.title, request.step))


def _listen(host: str, ranks: int) -> socket.socket:
    """Open a port on the address of this host by which the other ranks reach rank 0."""
    with suppress(OSError):  # the name may belong to another machine
        for family, _, _, _, address in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM):
            with suppress(OSError):
                return socket.create_server((str(address[0]), 0), family=family, backlog=ranks)
    return socket.create_server(("", 0), backlog=ranks)
