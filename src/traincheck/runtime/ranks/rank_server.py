"""The server in rank 0: receives windows from the other ranks and compares them, step by step."""

from __future__ import annotations

import secrets
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from traincheck.background_threads import background
from traincheck.checking.digests import full
from traincheck.checking.notifier import Notifier
from traincheck.checking.rank_engine import RankComparison, RankEngine, not_compared, published_demand
from traincheck.runtime.ranks.rank_info import RankInfo
from traincheck.runtime.ranks.rank_protocol import (
    Connection,
    Ended,
    FullWindow,
    Hello,
    Message,
    WindowDigest,
    WindowRequest,
)
from traincheck.runtime.ranks.recent_windows import RecentWindows
from traincheck.trace.alignment import aligned
from traincheck.vocab.events import Window
from traincheck.vocab.finding import Finding
from traincheck.vocab.invariant import Invariant
from traincheck.vocab.ranks import named_ranks

PAUSE = 0.2
"""Seconds between two checks of whether the server is closed."""
MAX_AHEAD = 64
"""Windows that the server reads from a rank ahead of the others."""
GREETING = 5.0
LARGEST_GREETING = 1024
"""Seconds in which a new connection must send `Hello`, and its largest size in bytes."""
ANSWER = 20.0
"""Seconds in which the ranks must send the full windows of a step."""
PATIENCE = 10.0
"""Seconds that `close` waits for the received windows to be compared."""


class _Peer:
    """The windows of one rank that are not yet compared. After `ended` no more come."""

    def __init__(self) -> None:
        self.connection: Connection | None = None
        self.windows: deque[Window] = deque()
        self.answers: dict[int, Window | None] = {}
        self.is_answering = False
        self.ended = False
        self.last_step = -1


class RankServer:
    """Compares ranks on two threads: one reads from all connections, one compares.

    `word` is the secret of the job, which each connection must send first.
    """

    def __init__(
        self,
        rank_info: RankInfo,
        rules: Sequence[Invariant],
        on_finding: Callable[[Finding], None],
        listener: socket.socket,
        word: str,
    ) -> None:
        self.ranks = RankEngine([rules], self._full_windows)
        self._demand = published_demand(rules)
        self._rank_info = rank_info
        self._word = word
        self._listener = listener
        self._notifier = Notifier(on_finding)
        self._peers = {rank: _Peer() for rank in range(rank_info.world_size)}
        self._own = RecentWindows(2 * MAX_AHEAD)  # more than a rank may run ahead
        self._changed = threading.Condition()
        self._over = False
        self._judged = False
        self._fault = ""
        self._reading = background(self._listen, "traincheck-connections")
        self._judging = background(self._compare, "traincheck-ranks")

    def add_window(self, window: Window, digest: Window) -> None:
        """Add a window of rank 0 itself; waits while the other ranks are far behind."""
        mine = self._peers[self._rank_info.rank]
        with self._changed:
            while self._far_ahead(mine) and not self._over:
                self._changed.wait(PAUSE)
            self._own.add(window)
            self._add(mine, digest)

    def close(self) -> None:
        """Compare the remaining windows, and end."""
        with self._changed:
            self._peers[self._rank_info.rank].ended = True
            self._changed.notify_all()
        self._judging.join(PATIENCE)
        self.give_up()
        self._judging.join(2 * PAUSE)
        self._reading.join(2 * PAUSE)
        for connection in self._connections():
            connection.close()
        self._reading.join(2 * PAUSE)  # it may have been reading a message

    def give_up(self) -> None:
        """Stop comparing, without waiting."""
        with self._changed:
            if not (self._judged or self._fault):
                others = {rank: peer for rank, peer in self._peers.items() if rank != self._rank_info.rank}
                silent = [rank for rank, peer in others.items() if not (peer.windows or peer.ended)]
                if not silent:
                    self._fault = "there was no time for the remaining steps"
                elif any(self._peers[rank].last_step >= 0 for rank in silent):
                    self._fault = f"{named_ranks(silent)} sent nothing more in time"
            self._over = True
            self._changed.notify_all()

    def broadcast(self, message: Message) -> None:
        """Send a message to all other ranks."""
        for connection in self._connections():
            with suppress(OSError):  # a rank that has ended needs no message
                connection.send(message)

    def compared(self) -> RankComparison:
        """The results so far, and the reasons for gaps."""
        (engine,) = self.ranks.engines
        with self._changed:
            last_steps = {rank: peer.last_step for rank, peer in self._peers.items() if peer.last_step >= 0}
            ended = [rank for rank in last_steps if self._peers[rank].ended and not self._peers[rank].windows]
        reasons = not_compared(self._rank_info.job, self._rank_info.world_size, last_steps, ended, self.ranks.steps)
        if self._fault:
            reasons = (f"ranks were compared up to step {self.ranks.steps} only: {self._fault}",)
        return RankComparison(engine.outcome, reasons + self.ranks.classes.not_compared(), self._rank_info.job)

    def _connections(self) -> list[Connection]:
        with self._changed:
            return [peer.connection for peer in self._peers.values() if peer.connection is not None]

    # -- comparing ---------------------------------------------------------------------------------------------------

    def _compare(self) -> None:
        (engine,) = self.ranks.engines
        try:
            for windows in aligned([self._windows_of(rank) for rank in self._peers]):
                (violations,) = self.ranks.feed(windows)
                self._notifier.feed(violations, engine.outcome.violations)
                self._own.release(windows[0].index)
        except Exception as error:  # report it, as the thread ends
            self._fault = f"{type(error).__name__}: {error}"
        with self._changed:
            self._judged = True
            self._changed.notify_all()
        self.broadcast(Ended())

    def _windows_of(self, rank: int) -> Iterator[Window]:
        peer = self._peers[rank]
        while True:
            with self._changed:
                while not (peer.windows or peer.ended or self._over):
                    self._changed.wait(PAUSE)
                if self._over or not peer.windows:
                    return
                window = peer.windows.popleft()
                self._changed.notify_all()
            yield window

    def _full_windows(self, windows: Sequence[Window]) -> list[Window | None]:
        others = [window for window in windows if window.rank != self._rank_info.rank]
        for window in others:
            with self._changed:
                self._peers[window.rank].is_answering = True
                self._peers[window.rank].answers.clear()  # late answers to an earlier request
                connection = self._peers[window.rank].connection
            if connection is not None:
                with suppress(OSError):  # the answer will be missing
                    connection.send(WindowRequest(window.index))
        deadline = time.monotonic() + ANSWER
        answers = {window.rank: self._answer_of(window, deadline) for window in others}
        return [
            answers[window.rank] if window.rank in answers else self._own_full_window(window.index)
            for window in windows
        ]

    def _own_full_window(self, index: int) -> Window | None:
        window = self._own.get(index)
        return None if window is None else full(window, self._demand)

    def _answer_of(self, window: Window, deadline: float) -> Window | None:
        peer = self._peers[window.rank]
        with self._changed:
            while not (window.index in peer.answers or peer.connection is None or self._over):
                if time.monotonic() > deadline:
                    break
                self._changed.wait(PAUSE)
            peer.is_answering = False
            return peer.answers.pop(window.index, None)

    # -- reading ---------------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        try:
            self._read()
        except Exception as error:  # report it, as the thread ends
            with self._changed:
                self._fault = self._fault or f"{type(error).__name__}: {error}"
                for peer in self._peers.values():
                    peer.ended = True
                self._changed.notify_all()

    def _read(self) -> None:
        """Read from all connections and accept new ones. Pause a rank that is far ahead."""
        paused: list[selectors.SelectorKey] = []
        with selectors.DefaultSelector() as ready:
            self._listener.settimeout(GREETING)
            ready.register(self._listener, selectors.EVENT_READ)
            while not self._over:
                for key, _ in ready.select(PAUSE):
                    if key.data is None:
                        self._accept(ready)
                    elif not self._receive(key.data):
                        ready.unregister(key.fileobj)
                    elif self._far_ahead(self._peers[key.data]):
                        paused.append(ready.unregister(key.fileobj))
                for key in [key for key in paused if not self._far_ahead(self._peers[key.data])]:
                    paused.remove(key)
                    ready.register(key.fileobj, selectors.EVENT_READ, key.data)

    def _accept(self, ready: selectors.BaseSelector) -> None:
        with suppress(OSError):  # a peer that closes, or sends nothing
            accepted, _ = self._listener.accept()
            connection = Connection(accepted)
            rank = self._rank_of(connection)
            if rank is None:
                connection.close()
                return
            with self._changed:
                self._peers[rank].connection = connection
            ready.register(accepted, selectors.EVENT_READ, rank)

    def _rank_of(self, connection: Connection) -> int | None:
        """The rank at the other end; None for a peer outside the job."""
        with suppress(OSError):
            hello = connection.receive(LARGEST_GREETING, GREETING)
            if isinstance(hello, Hello) and secrets.compare_digest(hello.word.encode(), self._word.encode()):
                peer = self._peers.get(hello.rank)
                if peer is not None and hello.rank != self._rank_info.rank and not (peer.connection or peer.ended):
                    return hello.rank
        return None

    def _receive(self, rank: int) -> bool:
        """Read a message of a rank; False when its connection is closed."""
        peer = self._peers[rank]
        try:
            message: Message | None = peer.connection.receive() if peer.connection is not None else None
        except OSError:
            message = None
        with self._changed:
            if isinstance(message, WindowDigest):
                self._add(peer, message.window)
            elif isinstance(message, FullWindow):
                peer.answers[message.index] = message.window
            else:
                peer.ended = True
            if message is None and peer.connection is not None:
                peer.connection.close()
                peer.connection = None
            self._changed.notify_all()
            return peer.connection is not None

    def _far_ahead(self, peer: _Peer) -> bool:
        """Whether to pause reading from this rank; never while it is sending a requested window."""
        return len(peer.windows) > MAX_AHEAD and not (peer.is_answering or self._judged)

    def _add(self, peer: _Peer, window: Window) -> None:
        if not self._judged:
            peer.windows.append(window)
        peer.last_step = max(peer.last_step, window.step)
        self._changed.notify_all()
