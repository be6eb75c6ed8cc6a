"""The exchange: ranks without a common run folder tell the first of them what they hold, and it compares them.

Note [Never in the way]
The job's own process groups are not used: a collective of ours could wait for a rank that has gone elsewhere, or come
between two of the program's. Each rank has a line to the first one, which it found through the job's store, and threads
that write to it and read from it; the training thread only hands over its windows, as it does to the trace. It tells of
each window a few numbers (see checking/digests.py), in one message, and is asked for more only where these differ.
Where a line breaks, a rank dies, or the first rank cannot keep up, the comparison ends or has gaps, and says so; nobody
waits for it but the end of the program, and that for seconds.
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
from traincheck.checking.rank_engine import Compared
from traincheck.runtime.ranks.rank_info import RankInfo
from traincheck.runtime.ranks.rank_protocol import Asked, Ended, Hello, InFull, Line, Stop, Told
from traincheck.runtime.ranks.rank_server import RankServer
from traincheck.runtime.ranks.recent_windows import RecentWindows
from traincheck.trace.run_notes import StopAsked
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import Window
from traincheck.vocab.finding import Finding
from traincheck.vocab.invariant import Invariant

if TYPE_CHECKING:
    from traincheck.sources.distributed.job_store import JobStore

START = 300.0
"""Seconds in which the ranks have to find each other."""
CONNECT = 20.0
"""Seconds for a single connection."""
MOST_WAITING = 256
"""Windows that wait to be told; further ones are left out."""
LINGER = 5.0
"""Seconds that the end of a rank waits for the first one to ask for what it still keeps."""

END, GRACE = 15.0, 2.0
"""Seconds in all that the end of the program may take for it, and those of them that are left when it is cut short."""
PAUSE = 0.1

IN_FILES = b"files"
"""What the first rank says where all write into one run folder, which somebody else reads."""


class RankClient:
    """The part of one rank in the exchange. It starts with the first window, and never raises.

    `folder` is a word that is the same for ranks with the same run folder, empty where they are to be compared here in
    any case. `on_decided` is called when it is known that they are compared here, `on_finding` on the first rank for
    each new finding, `on_stop` where the first rank asks to stop, `on_fault` once when a rank gives up; all on threads
    of the exchange.
    """

    def __init__(
        self,
        place: RankInfo,
        folder: str,
        rules: list[Invariant],
        demand: Demand,
        *,
        on_decided: Callable[[], None],
        on_finding: Callable[[Finding], None],
        on_stop: Callable[[StopAsked], None],
        on_fault: Callable[[str, BaseException], None],
    ) -> None:
        self._place = place
        self._folder = folder
        self._rules = rules
        self._demand = demand
        self._on_decided = on_decided
        self._on_finding = on_finding
        self._on_stop = on_stop
        self._on_fault = on_fault
        self._waiting: queue.Queue[tuple[Window, Window]] = queue.Queue(MOST_WAITING)
        self._closing = threading.Event()
        self._over = threading.Event()
        self._held = RecentWindows()
        self._failed = False
        self._first: RankServer | None = None
        self._muted: Mapping[str, str] = {}
        self._line: Line | None = None
        self.left_out = 0
        """Windows that were not told, as they came too fast or cannot be written."""
        self._thread = background(self._work, "traincheck-exchange")

    def tell(self, window: Window, told: Window) -> None:
        """Hand over a window and what is told of it; never blocks."""
        if self._over.is_set():
            return
        try:
            self._waiting.put_nowait((window, told))
        except queue.Full:
            self.left_out += 1

    def close(self) -> Compared | None:
        """Tell what is left and end; what was compared, on the first rank."""
        self._closing.set()
        self._thread.join(END - GRACE)
        if self._first is not None:
            self._first.give_up()
        if self._line is not None:
            self._line.close()
        self._thread.join(GRACE)
        return self.compared()

    def mute(self, muted: Mapping[str, str]) -> None:
        """From now on these rules are not judged, where this is the first rank."""
        self._muted = muted
        if self._first is not None:
            self._first.ranks.mute(muted)

    @property
    def sent(self) -> dict[str, int]:
        """How many messages went to the first rank, and their bytes."""
        return {} if self._line is None else {"messages": self._line.sent, "bytes": self._line.bytes_sent}

    def compared(self) -> Compared | None:
        """What was compared so far, on the first rank."""
        return self._first.compared() if self._first is not None else None

    # -- on the thread of the exchange -----------------------------------------------------------------------------

    def _work(self) -> None:
        from traincheck.sources.distributed.job_store import connect  # here, for they import torch
        from traincheck.sources.distributed.replica_readings import several_ranks

        try:
            if self._folder and not several_ranks():
                return  # ranks that never speak to each other; their files can be compared
            store = connect(self._place.job, CONNECT)
            if self._place.rank == 0:
                self._compare(store)
            else:
                self._report(store)
        except Exception as error:
            self._fail(error)
        finally:
            self._over.set()
            if self._line is not None:
                self._line.close()  # so that the first rank does not wait for more
            with suppress(queue.Empty):
                while True:
                    self._waiting.get_nowait()

    def _fail(self, error: Exception) -> None:
        """Say once what went wrong."""
        if not (self._closing.is_set() or self._over.is_set() or self._failed):  # at the end the others may be gone
            self._failed = True
            self._on_fault("ranks", error)

    def _compare(self, store: JobStore) -> None:
        """As the first rank."""
        store.put("folder/0", self._folder.encode())
        keys = [f"folder/{rank}" for rank in range(self._place.world_size)]
        folders = store.get(keys, START, self._closing.is_set)
        if folders is None:
            self._not_reached("not all ranks could")
            return
        if self._folder and len(set(folders)) == 1:
            store.put("address", IN_FILES)
            return
        word = secrets.token_hex(16)
        with _listen(store.host, self._place.world_size) as listener:
            self._first = first = RankServer(self._place, self._rules, self._on_finding, listener, word)
            first.ranks.mute(self._muted)
            store.put("address", f"{listener.getsockname()[1]} {word}".encode())
            self._on_decided()
            while (both := self._next()) is not None:
                first.tell(*both)
            first.close()

    def _report(self, store: JobStore) -> None:
        """As one of the others."""
        store.put(f"folder/{self._place.rank}", self._folder.encode())
        address = store.get(["address"], START, self._closing.is_set)
        if address is None:
            self._not_reached("the first rank could not")
            return
        if address[0] == IN_FILES:
            return
        port, word = address[0].decode().split()
        self._line = line = Line(socket.create_connection((store.host, int(port)), CONNECT))
        self._on_decided()
        line.send(Hello(self._place.rank, word))
        answering = background(self._answer, "traincheck-answers", line)
        while (both := self._next()) is not None:
            window, told = both
            self._held.add(window)
            try:
                line.send(Told(told))
            except ValueError:  # a number of more than 64 bits
                self.left_out += 1
        line.send(Ended())
        answering.join(LINGER)

    def _not_reached(self, who: str) -> None:
        """Say so, but at an early end where files are compared anyway."""
        if not self._closing.is_set():
            raise TimeoutError(f"{who} be reached in {START:.0f} s")
        if not self._folder:
            self._on_fault("ranks", TimeoutError(f"{who} be reached before the end"))

    def _answer(self, line: Line) -> None:
        """Give the first rank what it asks for, until it needs no more."""
        try:
            while not isinstance(message := line.receive(), Ended):
                if isinstance(message, Asked):
                    self._give(line, message.index)
                elif isinstance(message, Stop):
                    self._on_stop(StopAsked(title=message.title, step=message.step))
            self._over.set()
        except OSError:
            pass  # the other thread sees it too, and says so
        except Exception as error:
            self._fail(error)
            line.close()

    def _give(self, line: Line, index: int) -> None:
        window = self._held.get(index)
        try:
            line.send(InFull(index, None if window is None else full(window, self._demand)))
        except ValueError:  # a number of more than 64 bits
            line.send(InFull(index, None))

    def _next(self) -> tuple[Window, Window] | None:
        """The next window, and what is told of it; None when there will be none, or none is needed."""
        while not self._over.is_set():
            try:
                return self._waiting.get(timeout=PAUSE)
            except queue.Empty:
                if self._closing.is_set():
                    return None
        return None

    def stop_all(self, because: StopAsked) -> None:
        """Ask the other ranks to stop; on the first rank only."""
        if self._first is not None:
            self._first.say_to_all(Stop(because.title, because.step))


def _listen(host: str, ranks: int) -> socket.socket:
    """A port on this host, which is the one that the others reach the first rank at."""
    with suppress(OSError):  # otherwise the name stands for another machine in between
        for family, _, _, _, address in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM):
            with suppress(OSError):
                return socket.create_server((str(address[0]), 0), family=family, backlog=ranks)
    return socket.create_server(("", 0), backlog=ranks)
