"""The comparing rank: takes what the other ranks tell over their lines, and compares it in the order of the run."""

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
from traincheck.checking.notifier import Teller
from traincheck.checking.rank_engine import Compared, RankEngine, not_compared, told_demand
from traincheck.runtime.ranks.rank_info import RankInfo
from traincheck.runtime.ranks.rank_protocol import Asked, Ended, Hello, InFull, Line, Message, Told
from traincheck.runtime.ranks.recent_windows import RecentWindows
from traincheck.trace.alignment import aligned
from traincheck.vocab.events import Window
from traincheck.vocab.finding import Finding
from traincheck.vocab.invariant import Invariant
from traincheck.vocab.ranks import named_ranks

PAUSE = 0.2
"""Seconds between two looks at whether it is over."""
MOST_AHEAD = 64
"""Windows that are taken from a rank before the others have told theirs; it waits with the next ones."""
GREETING = 5.0
LARGEST_GREETING = 1024
"""Seconds that a new line has to say whose it is, and bytes."""
ANSWER = 20.0
"""Seconds in which the ranks have to give their windows of a step in full."""
PATIENCE = 10.0
"""Seconds that the end of this rank waits for what the others have told to be compared."""


class _Peer:
    """What one rank has told and was not yet compared. `ended` says that no more comes."""

    def __init__(self) -> None:
        self.line: Line | None = None
        self.told: deque[Window] = deque()
        self.answers: dict[int, Window | None] = {}
        self.asked = False
        self.ended = False
        self.last_step = -1


class RankServer:
    """Compares on two threads of its own: one that reads from all lines, one that judges."""

    def __init__(
        self,
        place: RankInfo,
        rules: Sequence[Invariant],
        on_finding: Callable[[Finding], None],
        listener: socket.socket,
        word: str,
    ) -> None:
        self.ranks = RankEngine([rules], self._in_full)
        self._demand = told_demand(rules)
        self._place = place
        self._word = word
        self._listener = listener
        self._teller = Teller(on_finding)
        self._peers = {rank: _Peer() for rank in range(place.world_size)}
        self._own = RecentWindows(2 * MOST_AHEAD)  # more than it is let run ahead
        self._news = threading.Condition()
        self._over = False
        self._judged = False
        self._fault = ""
        self._reading = background(self._listen, "traincheck-lines")
        self._judging = background(self._compare, "traincheck-ranks")

    def tell(self, window: Window, told: Window) -> None:
        """What this rank itself has to tell of a window; waits while the others are far behind."""
        mine = self._peers[self._place.rank]
        with self._news:
            while self._far_ahead(mine) and not self._over:
                self._news.wait(PAUSE)
            self._own.add(window)
            self._add(mine, told)

    def close(self) -> None:
        """Compare what is left, and end."""
        with self._news:
            self._peers[self._place.rank].ended = True
            self._news.notify_all()
        self._judging.join(PATIENCE)
        self.give_up()
        self._judging.join(2 * PAUSE)
        self._reading.join(2 * PAUSE)
        for line in self._lines():
            line.close()
        self._reading.join(2 * PAUSE)  # it may have waited for the rest of a message

    def give_up(self) -> None:
        """Compare no more, and wait for nobody."""
        with self._news:
            if not (self._judged or self._fault):
                others = {rank: peer for rank, peer in self._peers.items() if rank != self._place.rank}
                silent = [rank for rank, peer in others.items() if not (peer.told or peer.ended)]
                if not silent:
                    self._fault = "there was no time for the rest"
                elif any(self._peers[rank].last_step >= 0 for rank in silent):
                    self._fault = f"of {named_ranks(silent)} nothing more came in time"
            self._over = True
            self._news.notify_all()

    def say_to_all(self, message: Message) -> None:
        """Send a message to all other ranks."""
        for line in self._lines():
            with suppress(OSError):  # one that is gone need not know
                line.send(message)

    def compared(self) -> Compared:
        """What was found so far, and what could not be compared."""
        (engine,) = self.ranks.engines
        with self._news:
            last_steps = {rank: peer.last_step for rank, peer in self._peers.items() if peer.last_step >= 0}
            ended = [rank for rank in last_steps if self._peers[rank].ended and not self._peers[rank].told]
        reasons = not_compared(self._place.job, self._place.world_size, last_steps, ended, self.ranks.steps)
        if self._fault:
            reasons = (f"ranks were compared up to step {self.ranks.steps} only: {self._fault}",)
        return Compared(engine.outcome, reasons + self.ranks.classes.not_compared(), self._place.job)

    def _lines(self) -> list[Line]:
        with self._news:
            return [peer.line for peer in self._peers.values() if peer.line is not None]

    # -- judging ---------------------------------------------------------------------------------------------------

    def _compare(self) -> None:
        (engine,) = self.ranks.engines
        try:
            for windows in aligned([self._told_by(rank) for rank in self._peers]):
                (violations,) = self.ranks.feed(windows)
                self._teller.feed(violations, engine.outcome.violations)
                self._own.release(windows[0].index)
        except Exception as error:  # a thread of ours must not end without a word
            self._fault = f"{type(error).__name__}: {error}"
        with self._news:
            self._judged = True
            self._news.notify_all()
        self.say_to_all(Ended())

    def _told_by(self, rank: int) -> Iterator[Window]:
        peer = self._peers[rank]
        while True:
            with self._news:
                while not (peer.told or peer.ended or self._over):
                    self._news.wait(PAUSE)
                if self._over or not peer.told:
                    return
                window = peer.told.popleft()
                self._news.notify_all()
            yield window

    def _in_full(self, windows: Sequence[Window]) -> list[Window | None]:
        others = [window for window in windows if window.rank != self._place.rank]
        for window in others:
            with self._news:
                self._peers[window.rank].asked = True
                self._peers[window.rank].answers.clear()  # one that came too late
                line = self._peers[window.rank].line
            if line is not None:
                with suppress(OSError):  # there will be no answer
                    line.send(Asked(window.index))
        deadline = time.monotonic() + ANSWER
        answers = {window.rank: self._answer_of(window, deadline) for window in others}
        return [answers[each.rank] if each.rank in answers else self._own_in_full(each.index) for each in windows]

    def _own_in_full(self, index: int) -> Window | None:
        window = self._own.get(index)
        return None if window is None else full(window, self._demand)

    def _answer_of(self, window: Window, deadline: float) -> Window | None:
        peer = self._peers[window.rank]
        with self._news:
            while not (window.index in peer.answers or peer.line is None or self._over):
                if time.monotonic() > deadline:
                    break
                self._news.wait(PAUSE)
            peer.asked = False
            return peer.answers.pop(window.index, None)

    # -- reading ---------------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        try:
            self._read()
        except Exception as error:  # a thread of ours must not end without a word
            with self._news:
                self._fault = self._fault or f"{type(error).__name__}: {error}"
                for peer in self._peers.values():
                    peer.ended = True
                self._news.notify_all()

    def _read(self) -> None:
        """Read from all lines, and let new ones in, until it is over. Who is far ahead is not read for a while."""
        resting: list[selectors.SelectorKey] = []
        with selectors.DefaultSelector() as ready:
            self._listener.settimeout(GREETING)
            ready.register(self._listener, selectors.EVENT_READ)
            while not self._over:
                for key, _ in ready.select(PAUSE):
                    if key.data is None:
                        self._let_in(ready)
                    elif not self._take(key.data):
                        ready.unregister(key.fileobj)
                    elif self._far_ahead(self._peers[key.data]):
                        resting.append(ready.unregister(key.fileobj))
                for key in [key for key in resting if not self._far_ahead(self._peers[key.data])]:
                    resting.remove(key)
                    ready.register(key.fileobj, selectors.EVENT_READ, key.data)

    def _let_in(self, ready: selectors.BaseSelector) -> None:
        with suppress(OSError):  # somebody who hangs up again, or says nothing
            connection, _ = self._listener.accept()
            line = Line(connection)
            rank = self._greeted(line)
            if rank is None:
                line.close()
                return
            with self._news:
                self._peers[rank].line = line
            ready.register(connection, selectors.EVENT_READ, rank)

    def _greeted(self, line: Line) -> int | None:
        """The rank at the other end; None for a stranger."""
        with suppress(OSError):
            hello = line.receive(LARGEST_GREETING, GREETING)
            if isinstance(hello, Hello) and secrets.compare_digest(hello.word.encode(), self._word.encode()):
                peer = self._peers.get(hello.rank)
                if peer is not None and hello.rank != self._place.rank and not (peer.line or peer.ended):
                    return hello.rank
        return None

    def _take(self, rank: int) -> bool:
        """Read a message of a rank; whether there may be more."""
        peer = self._peers[rank]
        try:
            message: Message | None = peer.line.receive() if peer.line is not None else None
        except OSError:
            message = None
        with self._news:
            if isinstance(message, Told):
                self._add(peer, message.window)
            elif isinstance(message, InFull):
                peer.answers[message.index] = message.window
            else:
                peer.ended = True
            if message is None and peer.line is not None:
                peer.line.close()
                peer.line = None
            self._news.notify_all()
            return peer.line is not None

    def _far_ahead(self, peer: _Peer) -> bool:
        """Whether it should wait; not where an answer is behind what it has told, nor where all is thrown away."""
        return len(peer.told) > MOST_AHEAD and not (peer.asked or self._judged)

    def _add(self, peer: _Peer, window: Window) -> None:
        if not self._judged:
            peer.told.append(window)
        peer.last_step = max(peer.last_step, window.step)
        self._news.notify_all()
