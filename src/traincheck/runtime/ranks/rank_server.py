"""The server in the comparing rank: receives windows from the other ranks and compares them, step by step."""

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
from traincheck.checking.digests import Selection, ValueDigests, selected, value_digests
from traincheck.checking.notifier import Notifier
from traincheck.checking.rank_engine import RankComparison, RankEngine, not_compared, published_demand
from traincheck.runtime.ranks.rank_info import RankInfo
from traincheck.runtime.ranks.rank_protocol import (
    Alive,
    Connection,
    Ended,
    Hello,
    Message,
    ValueDigestsRequest,
    ValuesRequest,
    WindowDigest,
    WindowValueDigests,
    WindowValues,
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
"""Seconds in which the ranks must answer a request."""
BEAT, IDLE = 5.0, 60.0
"""Seconds between two messages `Alive` to each rank, and without progress of the comparison after which none follow."""
PROGRESS = 0.5
"""Seconds between two reports of the last compared step."""
PATIENCE, LATE = 10.0, 2.0
"""Seconds that `close` waits for the received windows to be compared, and for ranks to connect."""


class _Peer:
    """The windows of one rank that are not yet compared. After `ended` no more come."""

    def __init__(self) -> None:
        self.connection: Connection | None = None
        self.windows: deque[Window] = deque()
        self.answer: WindowValueDigests | WindowValues | None = None
        self.is_answering = False
        self.ended = self.was_lost = False
        self.last_step = -1


class RankServer:
    """Compares ranks on two threads: one reads from all connections, one compares.

    `word` is the secret of the job, which each connection must send first. `on_first` is called before the first
    comparison, and `on_progress` with the last compared step, from time to time and at the end. If `join` is given, the
    server compares the ranks that connect within this number of seconds; otherwise it waits for all ranks.
    """

    def __init__(
        self,
        rank_info: RankInfo,
        rules: Sequence[Invariant],
        on_finding: Callable[[Finding], None],
        listener: socket.socket,
        word: str,
        on_first: Callable[[], None] = lambda: None,
        on_progress: Callable[[int], None] = lambda step: None,
        join: float | None = None,
    ) -> None:
        self.ranks = RankEngine([rules], self)
        self.first_step: int | None = None
        """The first step that was compared."""
        self.failed = False
        """Whether the comparison ended with an error of TrainCheck."""
        self._demand = published_demand(rules)
        self._rank_info = rank_info
        self._word = word
        self._listener = listener
        self._notifier = Notifier(on_finding)
        self._on_first = on_first
        self._on_progress = on_progress
        self._join = join
        self._peers = {rank: _Peer() for rank in range(rank_info.world_size)}
        self._own = RecentWindows(2 * MAX_AHEAD)  # more than a rank may run ahead
        self._changed = threading.Condition()
        self._requests = 0
        self._active = self._reported = time.monotonic()
        self._over = self._closing = self._ended = False
        self._judged = False
        self._fault = ""
        self._reading = background(self._listen, "traincheck-connections")
        self._judging = background(self._compare, "traincheck-ranks")

    @property
    def has_lost_ranks(self) -> bool:
        """Whether a connection ended before its rank did."""
        with self._changed:
            return any(peer.was_lost for peer in self._others().values())

    def add_window(self, window: Window, digest: Window) -> None:
        """Add a window of this rank itself; waits while the other ranks are far behind."""
        mine = self._peers[self._rank_info.rank]
        with self._changed:
            while self._far_ahead(mine) and not self._over:
                self._changed.wait(PAUSE)
            self._own.add(window)
            self._add(mine, digest)

    def close(self) -> None:
        """Compare the remaining windows, and end."""
        with self._changed:
            self._peers[self._rank_info.rank].ended = self._closing = True
            self._changed.notify_all()
        self._judging.join(PATIENCE)
        self.give_up()
        if not self.failed:
            self.end()
        self._judging.join(2 * PAUSE)
        self._reading.join(2 * PAUSE)
        for connection in self._connections():
            connection.abort()
        self._reading.join(2 * PAUSE)  # it may have been reading a message
        for connection in self._connections() if not self._reading.is_alive() else ():
            connection.close()

    def end(self) -> None:
        """Let the other ranks know that the comparison has ended."""
        if not self._ended:
            self._ended = True
            self.broadcast(Ended())

    def abandon(self, reason: str) -> None:
        """Stop comparing, because another rank takes over."""
        self.give_up(reason)
        for connection in self._connections():
            connection.abort()  # without `Ended`

    def give_up(self, reason: str = "") -> None:
        """Stop comparing, without waiting, and report the reason."""
        with self._changed:
            self._fault = self._fault or reason
            if not (self._judged or self._fault):
                silent = [rank for rank, peer in self._others().items() if not (peer.windows or peer.ended)]
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
        reasons = not_compared(self._rank_info.job, self._peers, last_steps, ended, self.ranks.steps)
        if self._fault:
            reasons = (f"ranks were compared up to step {self.ranks.steps} only: {self._fault}",)
        return RankComparison(engine.outcome, reasons + self.ranks.classes.not_compared(), self._rank_info.job)

    @property
    def absent(self) -> list[int]:
        """Ranks that are not compared, because they did not connect after a take-over."""
        return sorted(set(range(self._rank_info.world_size)) - self._peers.keys())

    @property
    def is_judged(self) -> bool:
        """Whether all windows are compared that can be."""
        with self._changed:
            return self._judged

    def _others(self) -> dict[int, _Peer]:
        return {rank: peer for rank, peer in self._peers.items() if rank != self._rank_info.rank}

    def _connections(self) -> list[Connection]:
        with self._changed:
            return [peer.connection for peer in self._peers.values() if peer.connection is not None]

    # -- comparing ---------------------------------------------------------------------------------------------------

    def _compare(self) -> None:
        (engine,) = self.ranks.engines
        try:
            self._await_ranks()
            for windows in aligned([self._windows_of(rank) for rank in sorted(self._peers)]):
                if self.first_step is None:
                    self.first_step = windows[0].step
                    self._on_first()
                (violations,) = self.ranks.feed(windows)
                self._notifier.feed(violations, engine.outcome.violations)
                self._own.release(next(window.index for window in windows if window.rank == self._rank_info.rank))
                self._report_progress()
        except Exception as error:  # report it, as the thread ends
            self._fault = f"{type(error).__name__}: {error}"
            self.failed = True
        self._on_progress(self.ranks.steps)
        with self._changed:
            self._judged = True
            self._changed.notify_all()
        if self.failed:
            self.abandon("")
        elif not self.has_lost_ranks:
            self.end()

    def _await_ranks(self) -> None:
        """After a take-over, wait for ranks to connect, and go on without those that do not."""
        if self._join is None:
            return
        deadline = time.monotonic() + self._join
        with self._changed:
            while time.monotonic() < deadline and not self._over:
                if self._closing:
                    deadline = min(deadline, time.monotonic() + LATE)
                    self._closing = False
                if all(peer.connection or peer.ended for peer in self._others().values()):
                    break
                self._changed.wait(PAUSE)
            for rank in [rank for rank, peer in self._others().items() if peer.connection is None]:
                del self._peers[rank]
        self._active = time.monotonic()

    def _report_progress(self) -> None:
        self._active = time.monotonic()
        if self._active - self._reported > PROGRESS:
            self._reported = self._active
            self._on_progress(self.ranks.steps)

    def _windows_of(self, rank: int) -> Iterator[Window]:
        peer = self._peers[rank]
        while True:
            with self._changed:
                while not (peer.windows or peer.ended or self._over):
                    self._active = time.monotonic()
                    self._changed.wait(PAUSE)
                if self._over or not peer.windows:
                    return
                if len(peer.windows) > MAX_AHEAD:
                    self._changed.notify_all()  # `add_window` may wait for it
                window = peer.windows.popleft()
            yield window

    def value_digests(self, windows: Sequence[Window], sections: frozenset[str]) -> list[ValueDigests | None]:
        """See `RankValues`."""
        number = self._next_number()
        answers = self._answers(
            windows,
            number,
            lambda window: ValueDigestsRequest(number, window.index, sections),
            lambda window: WindowValueDigests(number, value_digests(window, sections)),
        )
        return [answer.digests if isinstance(answer, WindowValueDigests) else None for answer in answers]

    def selected(self, windows: Sequence[Window], selection: Selection) -> list[Window | None]:
        """See `RankValues`."""
        number = self._next_number()
        answers = self._answers(
            windows,
            number,
            lambda window: ValuesRequest(number, window.index, selection),
            lambda window: WindowValues(number, selected(window, selection)),
        )
        return [answer.window if isinstance(answer, WindowValues) else None for answer in answers]

    def _next_number(self) -> int:
        self._requests += 1
        return self._requests

    def _answers(
        self,
        windows: Sequence[Window],
        number: int,
        request: Callable[[Window], Message],
        own: Callable[[Window], Message],
    ) -> list[Message | None]:
        """The answers of the ranks of these windows, in their order; `own` makes that of this rank."""
        for window in windows:
            if window.rank == self._rank_info.rank:
                continue
            peer = self._peers[window.rank]
            with self._changed:
                peer.answer = None
                peer.is_answering = True
                connection = peer.connection
            if connection is not None:
                with suppress(OSError):  # the answer will be missing
                    connection.send(request(window))
        deadline = time.monotonic() + ANSWER
        answers: list[Message | None] = []
        for window in windows:
            if window.rank != self._rank_info.rank:
                answers.append(self._answer_of(self._peers[window.rank], number, deadline))
            else:
                held = self._own.get(window.index)
                answers.append(None if held is None else own(held))
        return answers

    def _answer_of(self, peer: _Peer, number: int, deadline: float) -> Message | None:
        with self._changed:
            while not (self._over or peer.connection is None or time.monotonic() > deadline):
                if peer.answer is not None and peer.answer.number == number:
                    break
                self._active = time.monotonic()
                self._changed.wait(PAUSE)
            peer.is_answering = False
            answer = peer.answer
            return answer if answer is not None and answer.number == number else None

    # -- reading ---------------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        try:
            self._read()
        except Exception as error:  # report it, as the thread ends
            with self._changed:
                self._fault = self._fault or f"{type(error).__name__}: {error}"
                self.failed = True
                for peer in self._peers.values():
                    peer.ended = True
                self._changed.notify_all()

    def _read(self) -> None:
        """Read from all connections and accept new ones. Pause a rank that is far ahead."""
        paused: list[selectors.SelectorKey] = []
        last_beat = time.monotonic()
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
                now = time.monotonic()
                if now - last_beat > BEAT:
                    last_beat = now
                    if now - self._active < IDLE and not self._judged:
                        self.broadcast(Alive())

    def _accept(self, ready: selectors.BaseSelector) -> None:
        with suppress(OSError):  # a peer that closes, or sends nothing
            accepted, _ = self._listener.accept()
            connection = Connection(accepted)
            rank = self._rank_of(connection)
            if rank is None:
                connection.close()
                return
            with self._changed:
                peer = self._peers.get(rank)
                is_late = peer is None or (self._judged and not self.failed)
                if peer is not None:
                    peer.connection = connection
                    self._changed.notify_all()
            if is_late:
                connection.send(Ended())
            if peer is not None:
                ready.register(accepted, selectors.EVENT_READ, rank)

    def _rank_of(self, connection: Connection) -> int | None:
        """The rank at the other end; None for a peer outside the job, and for a rank that is connected already."""
        with suppress(OSError):
            hello = connection.receive(LARGEST_GREETING, GREETING)
            if isinstance(hello, Hello) and secrets.compare_digest(hello.word.encode(), self._word.encode()):
                peer = self._peers.get(hello.rank, _Peer())
                is_other = 0 <= hello.rank < self._rank_info.world_size and hello.rank != self._rank_info.rank
                if is_other and not (peer.connection or peer.ended):
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
            elif isinstance(message, WindowValueDigests | WindowValues):
                peer.answer = message
            else:
                peer.was_lost = message is None and not peer.ended
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
