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
from traincheck.checking.rank_engine import RankComparison, RankEngine
from traincheck.runtime.ranks import comparing_rank, rank_client, rank_server
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
    monkeypatch.setattr(rank_server, "LATE", 0.1)
    monkeypatch.setattr(rank_server, "PROGRESS", 0.0)
    monkeypatch.setattr(rank_client, "CHECK", 0.05)
    monkeypatch.setattr(rank_client, "JOIN", 2.0)
    monkeypatch.setattr(rank_client, "TAKE_OVER", 1.0)
    monkeypatch.setattr(comparing_rank, "TURN", 0.05)
    monkeypatch.setattr(comparing_rank, "PAUSE", 0.01)
    monkeypatch.setattr(comparing_rank, "CLAIM", 3.0)
    begun: list[Rank] = []

    def start(folders: Sequence[str], size: int = 0, rules: list[Invariant] = rules, first: int = 0) -> list[Rank]:
        ranks = [Rank(rank, size or len(folders), folder, rules) for rank, folder in enumerate(folders, first)]
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


def test_ranks_are_compared_without_a_rank_that_never_connects(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_client, "START", 0.2)
    monkeypatch.setattr(rank_client, "JOIN", 0.5)
    ranks = begin(["", ""], size=3)
    for number, rank in enumerate(ranks):
        rank.tell(updates(number, differs_from=10 * number))
    wait_for(lambda: ranks[1].findings and ranks[1].steps == STEPS)
    assert ranks[1].compared.not_compared == ("rank 2 took no part in the comparison from step 1 on",)
    assert [rank.faults for rank in ranks] == [[], []]


@pytest.mark.parametrize("folder", ["one", ""])
def test_ranks_are_compared_without_a_first_rank_that_never_starts(
    begin: Begin, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    monkeypatch.setattr(rank_client, "START", 0.2)
    monkeypatch.setattr(rank_client, "JOIN", 0.5)
    ranks = begin([folder, folder], size=3, first=1)
    for number, rank in enumerate(ranks):
        rank.tell(updates(1 + number, differs_from=10 * number))
    if folder:
        wait_for(lambda: all(rank.over for rank in ranks))  # the command compares their files
        assert [rank.exchange.compared() for rank in ranks] == [None, None]
    else:
        wait_for(lambda: ranks[0].findings and ranks[0].steps == STEPS)
        assert ranks[0].compared.not_compared == ("rank 0 took no part in the comparison from step 1 on",)
    assert [rank.faults for rank in ranks] == [[], []]


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


def connected(rank: Rank) -> int:
    """The number of ranks that report to a comparing rank."""
    server = rank.exchange._server
    return 0 if server is None else len(server._connections())


def lose_connections(rank: Rank) -> None:
    for connection in rank.exchange._server._connections():  # type: ignore[union-attr]
        connection.abort()


def lose_threads(rank: Rank) -> None:
    """End the comparison of a rank with an error."""

    def broken(windows: Sequence[Window]) -> list[list[object]]:
        raise KeyError("a mistake of ours")

    rank.exchange._server.ranks.feed = broken  # type: ignore[union-attr, assignment, method-assign]


@pytest.mark.parametrize("size", [2, 3, 12])
@pytest.mark.parametrize("lose", [lose_connections, lose_threads])
def test_the_next_rank_takes_over_from_a_lost_one(begin: Begin, size: int, lose: Callable[[Rank], None]) -> None:
    ranks = begin([""] * size)
    windows = [updates(number, differs_from=25 if number == size - 1 else 0) for number in range(size)]
    for rank, of_rank in zip(ranks, windows, strict=True):
        rank.tell(of_rank[:10])
    wait_for(lambda: ranks[0].steps == 10)
    lose(ranks[0])
    for rank, of_rank in zip(ranks, windows, strict=True):
        rank.tell(of_rank[10:15])  # sent to rank 0, or to nobody
    wait_for(lambda: connected(ranks[1]) == size - 1)
    for rank, of_rank in zip(ranks, windows, strict=True):
        rank.tell(of_rank[15:])
    wait_for(lambda: ranks[1].findings and ranks[1].steps == STEPS)
    assert [finding.step for finding in ranks[1].findings] == [25] and ranks[0].findings == []
    assert ranks[1].findings[0].ranks == ((0, 1) if size == 2 else (size - 1,))
    for reason in ranks[1].compared.not_compared:  # not all ranks may have lost the same windows
        assert reason.startswith("ranks were not compared from step 11 to step 1"), reason
        assert reason.endswith("rank 0, which compared them, was lost")
    wait_for(lambda: len(ranks[0].compared.not_compared) == 1)
    assert ranks[0].compared.not_compared[0].startswith("ranks were compared up to step 10 only: ")
    assert all(rank.faults == [] and rank.exchange.compared() is None for rank in ranks[2:])


def test_steps_that_no_rank_compared_are_reported(begin: Begin) -> None:
    ranks = begin([""] * 3)
    for number, rank in enumerate(ranks):
        rank.tell(updates(number)[:10])
    wait_for(lambda: ranks[0].steps == 10)
    lose_connections(ranks[0])
    wait_for(lambda: connected(ranks[1]) == 2)
    for number, rank in enumerate(ranks):
        rank.tell(updates(number)[13:])
    wait_for(lambda: ranks[1].steps == STEPS)
    assert ranks[1].compared.not_compared == (
        "ranks were not compared from step 11 to step 13: rank 0, which compared them, was lost",
    )
    assert ranks[0].compared.not_compared == ("ranks were compared up to step 10 only: rank 1 compares them since",)
    assert all(rank.faults == [] for rank in ranks)


def test_a_rank_takes_over_from_the_one_that_took_over(begin: Begin) -> None:
    ranks = begin([""] * 4)
    for number in range(3):
        wait_for(lambda number=number: connected(ranks[number]) == 3)  # type: ignore[misc]
        for index, rank in enumerate(ranks):
            rank.tell(updates(index)[10 * number : 10 * number + 10])
        wait_for(lambda number=number: ranks[number].steps == 10 * number + 10)  # type: ignore[misc]
        lose_connections(ranks[number])
    wait_for(lambda: connected(ranks[3]) == 3)
    assert ranks[2].compared.not_compared == ("ranks were compared up to step 30 only: rank 3 compares them since",)
    assert all(rank.faults == [] for rank in ranks)


@pytest.mark.parametrize("beat", [0.02, 100.0], ids=["alive", "silent"])
def test_a_comparing_rank_is_lost_if_it_is_silent(begin: Begin, monkeypatch: pytest.MonkeyPatch, beat: float) -> None:
    monkeypatch.setattr(rank_client, "SILENCE", 0.4)
    monkeypatch.setattr(rank_server, "BEAT", beat)
    ranks = begin([""] * 3)
    wait_for(lambda: connected(ranks[0]) == 2)
    if beat < 1:
        time.sleep(0.8)
        assert connected(ranks[0]) == 2 and connected(ranks[1]) == 0
    else:
        wait_for(lambda: ranks[1].exchange._server is not None)


def test_an_error_in_each_comparing_rank_ends_the_comparison(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparing_rank, "CLAIM", 0.3)

    def broken(self: RankEngine, windows: Sequence[Window]) -> list[list[object]]:
        raise KeyError("a mistake of ours")

    monkeypatch.setattr(RankEngine, "feed", broken)
    ranks = begin([""] * 2)
    for number, rank in enumerate(ranks):
        rank.tell(updates(number, 100))
    wait_for(lambda: ranks[1].exchange._server is not None)
    for number, rank in enumerate(ranks):
        rank.tell(updates(number, 200)[100:])
    wait_for(lambda: all(rank.over for rank in ranks))
    for rank in ranks:
        assert "KeyError: 'a mistake of ours'" in rank.compared.not_compared[-1]
        assert "no other rank took over" in str(rank.faults[0])


def test_the_loss_of_the_store_with_the_comparing_rank_is_reported_once(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(self: JobStore, key: str) -> bool:
        raise RuntimeError("Connection reset by peer")

    first, other = begin(["", ""])
    wait_for(lambda: connected(first))
    monkeypatch.setattr(JobStore, "has", gone)
    lose_connections(first)
    wait_for(lambda: other.over)
    assert [str(error) for error in other.faults] == [
        "rank 0, which compares the ranks, was lost, and the key-value store of the job with it"
    ]
    assert first.faults == [] and not first.over
    other.exchange.close()
    assert len(other.faults) == 1


def test_the_end_of_the_program_does_not_wait_for_a_take_over(begin: Begin) -> None:
    ranks = begin([""] * 3)
    for number, rank in enumerate(ranks):
        rank.tell(updates(number, 5))
    wait_for(lambda: ranks[0].steps == 5)
    lose_connections(ranks[0])
    began = time.monotonic()
    for rank in ranks:
        rank.exchange.close()
    assert time.monotonic() - began < 5 and all(rank.over and rank.faults == [] for rank in ranks)


def test_sending_never_blocks_without_a_reader(begin: Begin) -> None:
    """The last rank never connects, so there is no reader; windows are dropped and counted."""
    ranks = begin(["", ""], size=3)
    windows = updates(0, rank_client.MAX_WAITING + 50)
    for rank in ranks:
        rank.tell(windows)
        assert rank.exchange.dropped == 50, rank.faults
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
    with comparing_rank.listen("127.0.0.1", 2) as listener:
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
