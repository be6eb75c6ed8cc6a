"""The exchange in one process: ranks connect through a store, send windows, and end in any order."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from torch.distributed import PrefixStore, TCPStore

from fake_ranks import STEPS, learned, our_threads, updates, wait_for
from traincheck.checking.digests import lean
from traincheck.checking.rank_engine import RankComparison
from traincheck.runtime.ranks import rank_client, rank_server
from traincheck.runtime.ranks.rank_client import RankClient
from traincheck.runtime.ranks.rank_info import RankInfo
from traincheck.runtime.ranks.rank_protocol import Connection
from traincheck.sources.distributed import job_store, replica_readings
from traincheck.sources.distributed.job_store import JobStore
from traincheck.trace.run_notes import StopRequest
from traincheck.vocab.demand import EVERYTHING
from traincheck.vocab.events import Reading, Window
from traincheck.vocab.finding import Finding
from traincheck.vocab.invariant import Invariant


@pytest.fixture(scope="module")
def rules() -> list[Invariant]:
    return list(learned().invariants)


class Rank:
    """The exchange of one rank, and what it says."""

    def __init__(self, rank: int, size: int, folder: str, rules: list[Invariant]) -> None:
        self.decided = threading.Event()
        self.findings: list[Finding] = []
        self.stops: list[StopRequest] = []
        self.faults: list[BaseException] = []
        self.exchange = RankClient(
            RankInfo(rank, size, "job"),
            folder,
            rules,
            EVERYTHING,
            on_decided=self.decided.set,
            on_finding=self.findings.append,
            on_stop=self.stops.append,
            on_fault=lambda _, error: self.faults.append(error),
        )

    def tell(self, windows: Sequence[Window]) -> None:
        for window in windows:
            self.exchange.add_window(window, lean(window, EVERYTHING))

    @property
    def over(self) -> bool:
        return not self.exchange._thread.is_alive()

    @property
    def steps(self) -> int:
        """Return the last compared step on the first rank."""
        comparison = self.exchange.compared()
        return 0 if comparison is None else comparison.outcome.steps

    @property
    def compared(self) -> RankComparison:
        comparison = self.exchange.compared()
        assert comparison is not None
        return comparison


Begin = Callable[..., list[Rank]]


@pytest.fixture(scope="module")
def store() -> TCPStore:
    return TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=30), wait_for_workers=False)


@pytest.fixture
def begin(
    request: pytest.FixtureRequest, store: TCPStore, rules: list[Invariant], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Begin]:
    """Starts the exchange of some ranks of a job; no thread remains at the end."""

    def connect(job: str, seconds: float) -> JobStore:
        own: Any = TCPStore("127.0.0.1", store.port, None, False, timedelta(seconds=seconds), wait_for_workers=False)
        return JobStore(PrefixStore(request.node.name, own), "127.0.0.1")

    monkeypatch.setattr(job_store, "connect", connect)
    monkeypatch.setattr(replica_readings, "several_ranks", lambda: True)
    monkeypatch.setattr(rank_client, "PAUSE", 0.01)
    monkeypatch.setattr(rank_client, "END", 2.5)
    monkeypatch.setattr(rank_client, "GRACE", 2.0)
    monkeypatch.setattr(rank_client, "LINGER", 0.1)
    monkeypatch.setattr(rank_server, "PAUSE", 0.02)
    monkeypatch.setattr(rank_server, "PATIENCE", 0.2)
    begun: list[Rank] = []

    def start(folders: Sequence[str], size: int = 0, rules: list[Invariant] = rules) -> list[Rank]:
        ranks = [Rank(rank, size or len(folders), folder, rules) for rank, folder in enumerate(folders)]
        begun.extend(ranks)
        return ranks

    yield start
    for rank in begun:
        rank.exchange.close()
    wait_for(lambda: our_threads() == [])


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_connect_and_find_differences(begin: Begin, size: int) -> None:
    ranks = begin([""] * size)
    for number, rank in enumerate(ranks):
        rank.tell(updates(number, differs_from=10 if number == size - 1 else 0))
    wait_for(lambda: ranks[0].findings and ranks[0].steps == STEPS)
    for rank in reversed(ranks):
        rank.exchange.close()
    assert [finding.step for finding in ranks[0].findings] == [10]
    assert ranks[0].compared.not_compared == () and ranks[0].compared.job == "job"
    assert [rank.exchange.compared() for rank in ranks[1:]] == [None] * (size - 1)
    assert all(rank.faults == [] and rank.decided.is_set() and rank.exchange.dropped == 0 for rank in ranks)
    assert ranks[0].exchange.sent == {}
    assert all(rank.exchange.sent["messages"] >= STEPS + 2 for rank in ranks[1:])


@pytest.mark.parametrize(("folders", "here"), [(["one", "one"], False), (["one", "two"], True), (["", ""], True)])
def test_files_are_compared_where_all_write_into_one_folder(begin: Begin, folders: list[str], here: bool) -> None:
    ranks = begin(folders)
    for number, rank in enumerate(ranks):
        rank.tell(updates(number))
    if here:
        wait_for(lambda: all(rank.decided.is_set() for rank in ranks))
    else:
        wait_for(lambda: all(rank.over for rank in ranks))
        ranks[0].tell(updates(0))
        assert all(rank.exchange._waiting.empty() for rank in ranks), "what waited is not kept"
    for rank in ranks:
        rank.exchange.close()
    assert [rank.decided.is_set() for rank in ranks] == [here] * 2
    assert (ranks[0].exchange.compared() is not None) == here
    assert all(rank.faults == [] for rank in ranks)


def test_a_rank_that_never_connects_is_reported_once(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_client, "START", 0.1)
    ranks = begin(["", ""], size=3)
    wait_for(lambda: all(rank.over for rank in ranks))
    assert [str(rank.faults[0]) for rank in ranks] == [
        "not all ranks could be reached in 0 s",
        "rank 0 could not be reached in 0 s",
    ]
    for rank in ranks:
        rank.tell(updates(0))
        assert rank.exchange.close() is None
    assert [len(rank.faults) for rank in ranks] == [1, 1]


@pytest.mark.parametrize("folder", ["one", ""])
def test_a_job_that_ends_before_all_ranks_connect(begin: Begin, folder: str) -> None:
    """The command compares files if possible; otherwise the failure is reported."""
    ranks = begin([folder, folder], size=3)
    for rank in ranks:
        rank.exchange.close()
    assert all(rank.over for rank in ranks)
    assert [len(rank.faults) for rank in ranks] == ([0, 0] if folder else [1, 1])


def test_an_unreachable_store_is_reported(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(job: str, seconds: float) -> JobStore:
        raise LookupError("a HashStore cannot be reached over a second connection")

    monkeypatch.setattr(job_store, "connect", connect)
    monkeypatch.setattr(replica_readings, "several_ranks", lambda: True)
    (rank,) = begin([""], size=2)
    wait_for(lambda: rank.faults and rank.over)
    rank.tell(updates(0))
    assert rank.exchange.close() is None and len(rank.faults) == 1


def test_the_first_rank_may_end_before_the_others(begin: Begin) -> None:
    first, other = begin(["", ""])
    first.tell(updates(0, 5))
    other.tell(updates(1, 5))
    wait_for(lambda: first.steps == 5)
    assert first.exchange.close() is not None
    wait_for(lambda: other.over)
    other.tell(updates(1, 400)[5:])
    other.exchange.close()
    assert first.compared.outcome.steps == 5
    assert other.faults == [] and other.exchange.dropped == 0, "it tells nothing that nobody wants"


def test_the_others_may_end_before_the_first(begin: Begin) -> None:
    first, other = begin(["", ""])
    other.tell(updates(1, 5))
    wait_for(lambda: other.decided.is_set())
    assert other.exchange.close() is None and other.over
    first.tell(updates(0, 400))
    wait_for(lambda: first.exchange._waiting.empty())
    first.exchange.close()
    assert first.over and first.compared.outcome.steps == 5
    assert first.compared.not_compared == (
        "ranks of job job were compared up to step 5: rank 1 recorded no more, others went on",
    )
    assert first.faults == other.faults == []


def test_a_dead_first_rank_is_reported_once(begin: Begin) -> None:
    first, other = begin(["", ""])
    wait_for(lambda: first.exchange._server is not None and first.exchange._server._connections())
    line = first.exchange._server._connections()[0]  # type: ignore[union-attr]
    line.close()
    for window in updates(1, 200):
        other.exchange.add_window(window, lean(window, EVERYTHING))
        time.sleep(0.001)
    wait_for(lambda: other.over)
    assert len(other.faults) == 1 and isinstance(other.faults[0], OSError)
    other.exchange.close()
    assert len(other.faults) == 1


def test_sending_never_blocks_without_a_reader(begin: Begin) -> None:
    """The last rank never connects, so there is no reader; windows are dropped and counted."""
    ranks = begin(["", ""], size=3)
    windows = updates(0, rank_client.MAX_WAITING + 50)
    for rank in ranks:
        rank.tell(windows)
        assert rank.exchange.dropped == 50
        rank.exchange.close()
        assert rank.over


def test_a_slow_rank_does_not_delay_the_end(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first rank is far ahead of a rank that lives but no longer trains."""
    monkeypatch.setattr(rank_server, "MAX_AHEAD", 4)
    first, other = begin(["", ""])
    other.tell(updates(1, 3))
    first.tell(updates(0, 100))
    wait_for(lambda: first.steps == 3)
    comparison = first.exchange.close()
    assert first.over and comparison is not None
    assert comparison.not_compared == ("ranks were compared up to step 3 only: rank 1 sent nothing more in time",)


def test_a_stop_request_reaches_all_ranks(begin: Begin) -> None:
    ranks = begin([""] * 3)
    wait_for(lambda: ranks[0].exchange._server is not None and len(ranks[0].exchange._server._connections()) == 2)
    because = StopRequest(title="Gradients differ", step=7)
    ranks[0].exchange.broadcast_stop(because)
    ranks[1].exchange.broadcast_stop(because)
    wait_for(lambda: all(rank.stops == [because] for rank in ranks[1:]))
    assert ranks[0].stops == []


def with_number(window: Window, value: int) -> Window:
    """Return the window with an event that is sent unchanged."""
    reading = Reading(5, window.calls[0].seq, "SGD", "optimizer_state", "step", value)
    readings = sorted([*window.readings, reading], key=lambda item: item.seq)
    return replace(window, readings=tuple(readings))


def test_a_window_that_cannot_be_written_is_left_out_alone(begin: Begin) -> None:
    first, other = begin(["", ""])
    first.tell([with_number(window, window.step) for window in updates(0)])
    other.tell(
        [with_number(window, 2**70 if window.step == 4 else window.step) for window in updates(1, differs_from=10)]
    )
    wait_for(lambda: first.findings)
    wait_for(lambda: first.steps == STEPS)
    assert other.exchange.dropped == 1 and other.faults == [] and first.findings[0].step == 10


def test_a_failing_reply_is_reported_once_and_does_not_block(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    first, other = begin(["", ""])

    def broken(index: int) -> Window:
        raise KeyError("a mistake of ours")

    monkeypatch.setattr(other.exchange._held, "get", broken)
    other.tell(updates(1, differs_from=3))
    first.tell(updates(0))
    wait_for(lambda: other.faults)
    wait_for(lambda: first.exchange._server._peers[1].ended)  # type: ignore[union-attr]
    other.tell(updates(1, STEPS + 1)[STEPS:])
    wait_for(lambda: other.over)
    assert [repr(error) for error in other.faults] == ["KeyError('a mistake of ours')"]


def test_foreign_connections_do_not_disturb_ranks(begin: Begin) -> None:
    first, other = begin(["", ""])
    wait_for(lambda: first.exchange._server is not None)
    port = first.exchange._server._listener.getsockname()[1]  # type: ignore[union-attr]
    with socket.create_connection(("127.0.0.1", port), 10) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        for number, rank in enumerate((first, other)):
            rank.tell(updates(number, 5))
        wait_for(lambda: first.steps == 5)


def test_the_port_is_open_where_the_job_finds_the_first_rank_and_nowhere_else() -> None:
    with rank_client._listen("127.0.0.1", 2) as listener:
        assert listener.getsockname()[0] == "127.0.0.1"


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xff" * 64,
        b"\x00\x00\x00\x04\x91\x91\x91\x91",
        b"\x00\x00\x04\x01" + b"\x91" * 1025,
        b"\x00\x00\x03\xff" + b"\x91" * 1023,
    ],
)
def test_a_foreign_connection_is_rejected(payload: bytes) -> None:
    """Among others by what claims to be longer than a greeting, and by lists in lists."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        theirs = socket.create_connection(server.getsockname())
        ours, _ = server.accept()
    with theirs:
        theirs.sendall(payload)
        theirs.shutdown(socket.SHUT_WR)
        line = Connection(ours)
        with pytest.raises(OSError):
            line.receive(rank_server.LARGEST_GREETING, rank_server.GREETING)
        line.close()
