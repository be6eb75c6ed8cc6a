"""The comparing rank over real connections: it finds the same as a file comparison, and no peer can harm it."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from fake_ranks import STEPS, Peer, learned, our_threads, recorded, seen, updates, wait_for
from traincheck.checking.digests import Selection, lean, selected
from traincheck.checking.rank_engine import RankComparison
from traincheck.runtime.ranks import rank_server
from traincheck.runtime.ranks.rank_info import RankInfo
from traincheck.runtime.ranks.rank_protocol import Ended, Hello, Stop, ValueDigestsRequest, ValuesRequest, WindowDigest
from traincheck.runtime.ranks.rank_server import RankServer
from traincheck.vocab.demand import EVERYTHING
from traincheck.vocab.events import Window
from traincheck.vocab.finding import Finding
from traincheck.vocab.invariant import Invariant

WORD = "only ranks know"


@pytest.fixture(scope="module")
def rules() -> list[Invariant]:
    return list(learned().invariants)


class First:
    """The first rank of a job, and the others as a test plays them."""

    def __init__(self, size: int, rules: Sequence[Invariant]) -> None:
        self.findings: list[Finding] = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.rank = RankServer(RankInfo(0, size, "job"), rules, self.findings.append, self.listener, WORD)
        self.peers: list[Peer] = []

    def peer(self, rank: int, answers: Callable[[int], Window | None] | None = None) -> Peer:
        self.peers.append(Peer(rank, self.port, WORD, answers))
        return self.peers[-1]

    def stranger(self, payload: bytes) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self.port), 10)
        connection.sendall(payload)
        return connection

    def tell(self, windows: Sequence[Window]) -> None:
        for window in windows:
            self.rank.add_window(window, lean(window, EVERYTHING))

    def close(self) -> RankComparison:
        self.rank.close()
        return self.rank.compared()


@pytest.fixture
def job(rules: list[Invariant], monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], First]]:
    """Starts jobs of `ranks` ranks; no thread remains afterwards."""
    monkeypatch.setattr(rank_server, "PAUSE", 0.02)
    monkeypatch.setattr(rank_server, "PATIENCE", 0.2)
    begun: list[First] = []

    def begin(size: int) -> First:
        begun.append(First(size, rules))
        return begun[-1]

    yield begin
    for first in begun:
        first.rank.close()
        for peer in first.peers:
            peer.close()
        first.listener.close()
    wait_for(lambda: our_threads() == [])


def framed(message: object) -> bytes:
    body = msgspec.msgpack.encode(message)
    return struct.pack("!I", len(body)) + body


@pytest.mark.parametrize("since", [0, 10], ids=["alike", "apart"])
def test_live_comparison_matches_the_files(
    tmp_path: Path, rules: list[Invariant], job: Callable[[int], First], since: int
) -> None:
    windows = {0: updates(0), 1: updates(1), 2: updates(2, differs_from=since)}
    first = job(3)
    for rank in (2, 1):
        first.peer(rank, windows[rank].__getitem__).tell(windows[rank], end=True)
    first.tell(windows[0])
    by_files = recorded(tmp_path, windows, rules)
    wait_for(lambda: first.rank.ranks.steps == STEPS)
    comparison = first.close()
    assert seen(comparison) == seen(by_files) and bool(seen(comparison)) == bool(since)
    assert comparison.outcome.tried == by_files.outcome.tried
    assert comparison.not_compared == by_files.not_compared == ()
    assert [finding.step for finding in first.findings] == ([since] if since else [])
    assert not since or first.findings[0].ranks == (2,)
    requests = [
        message
        for peer in first.peers
        for message in peer.heard
        if isinstance(message, ValueDigestsRequest | ValuesRequest)
    ]
    assert bool(requests) == bool(since), "only what differs is asked for"
    wait_for(lambda: all(peer.heard[-1:] == [Ended()] for peer in first.peers))


def test_a_dead_peer_is_reported_and_does_not_block(job: Callable[[int], First]) -> None:
    """All ranks, also the first, send far more than is stored for it."""
    first = job(3)
    dying, going_on = first.peer(1), first.peer(2)
    dying.tell(updates(1, 5))
    dying.close()
    going_on.tell(updates(2, 300), end=True)
    first.tell(updates(0, 300))
    wait_for(lambda: first.rank.is_judged)
    assert first.rank.has_lost_ranks and Ended() not in going_on.heard, "another rank may take over"
    comparison = first.close()
    wait_for(lambda: Ended() in going_on.heard)
    assert comparison.outcome.steps == 5
    assert comparison.not_compared == (
        "ranks of job job were compared up to step 5: rank 1 recorded no more, others went on",
    )


def test_a_peer_that_never_came_is_named(job: Callable[[int], First]) -> None:
    first = job(3)
    first.peer(1).tell(updates(1, 5), end=True)
    first.tell(updates(0, 5))
    wait_for(lambda: 1 in first.rank._peers and first.rank._peers[1].ended)
    assert first.close().not_compared[0] == "rank 2 of job job left no recording"


STRANGERS = {
    "hangs up": b"",
    "half a length": b"\0\0",
    "half a message": framed(Hello(1, WORD))[:-3],
    "another protocol": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a long message": struct.pack("!I", 2**30) + b"\x81" * 5000,
    "deep": struct.pack("!I", 1000) + b"\x91" * 1000,
    "no unicode": framed(Hello(1, "ab")).replace(b"ab", b"\xff\xfe"),
    "another message": framed(WindowDigest(Window(0, 1, "train"))),
    "the wrong word": framed(Hello(1, "guessed")),
    "a word in other letters": framed(Hello(1, "größer")),
    "a rank that is not of the job": framed(Hello(7, WORD)),
    "the first rank": framed(Hello(0, WORD)),
}


@pytest.mark.parametrize("silent", [False, True], ids=["and hangs up", "and waits"])
def test_foreign_connections_are_closed_without_harm(
    job: Callable[[int], First], silent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_server, "GREETING", 0.05)
    first = job(2)
    connections = [first.stranger(payload) for payload in STRANGERS.values()]
    if not silent:
        for connection in connections:
            connection.close()
    windows = {0: updates(0), 1: updates(1, differs_from=10)}
    peer = first.peer(1, windows[1].__getitem__)
    peer.tell(windows[1], end=True)
    first.tell(windows[0])
    wait_for(lambda: first.rank.ranks.steps == STEPS)
    assert first.close().not_compared == () and first.findings
    for connection in connections if silent else []:
        connection.settimeout(10)
        with suppress(ConnectionResetError):
            assert connection.recv(1) == b"", "it was hung up on"
        connection.close()


def test_the_place_of_a_rank_is_taken_once(job: Callable[[int], First]) -> None:
    first = job(2)
    peer = first.peer(1)
    peer.tell(updates(1, 3))
    wait_for(lambda: first.rank._peers[1].last_step == 3)
    second = first.stranger(framed(Hello(1, WORD)) + framed(Ended()))
    second.settimeout(10)
    with suppress(ConnectionResetError):
        assert second.recv(1) == b""
    second.close()
    peer.tell(updates(1, 6)[3:], end=True)
    first.tell(updates(0, 6))
    wait_for(lambda: first.rank.ranks.steps == 6)
    assert first.close().not_compared == ()


def test_a_peer_far_ahead_is_not_read_but_answers(job: Callable[[int], First], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_server, "MAX_AHEAD", 8)
    first = job(2)
    windows = {0: updates(0), 1: updates(1, differs_from=3)}
    peer = first.peer(1, windows[1].__getitem__)
    peer.tell(windows[1], end=True)
    theirs = first.rank._peers[1]
    wait_for(lambda: len(theirs.windows) == 9)
    first.tell(windows[0][:4])
    wait_for(lambda: first.rank.ranks.steps == 4)
    assert len(theirs.windows) <= STEPS - 4 and first.findings[0].step == 3
    first.tell(windows[0][4:])
    wait_for(lambda: first.rank.ranks.steps == STEPS)
    assert first.close().not_compared == ()


def test_a_peer_far_ahead_fills_no_memory(job: Callable[[int], First], monkeypatch: pytest.MonkeyPatch) -> None:
    """Unread data stays with the sender: it cannot send more than the network buffers."""
    monkeypatch.setattr(rank_server, "MAX_AHEAD", 8)
    first = job(2)
    peer = first.peer(1)
    theirs = first.rank._peers[1]
    peer.tell(updates(1, 200))
    wait_for(lambda: len(theirs.windows) == 9)
    time.sleep(0.1)
    assert len(theirs.windows) == 9


def test_windows_dropped_by_a_peer_are_reported(job: Callable[[int], First]) -> None:
    first = job(2)
    peer = first.peer(1, lambda index: None)
    peer.tell(updates(1, differs_from=3), end=True)
    first.tell(updates(0))
    wait_for(lambda: first.rank.ranks.steps == STEPS)
    comparison = first.close()
    assert comparison.outcome.violations == [] and first.findings == []
    assert "too many ranks differed, or were too slow" in comparison.not_compared[0]


def test_a_late_reply_is_not_used_for_the_next_request(
    job: Callable[[int], First], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, windows, slow = job(2), updates(1, 4), threading.Event()

    def answer(index: int) -> Window:
        slow.wait(30)
        return windows[index]

    first.peer(1, answer)
    wait_for(lambda: first.rank._peers[1].connection)
    monkeypatch.setattr(rank_server, "ANSWER", 0.05)
    everything = Selection(frozenset(), frozenset({"layers.#.weight"}))
    assert first.rank.selected(windows[1:2], everything) == [None]
    monkeypatch.setattr(rank_server, "ANSWER", 30.0)
    slow.set()
    assert first.rank.selected(windows[2:3], everything) == [selected(windows[2], everything)]


@pytest.mark.parametrize("is_asked", [False, True], ids=["says nothing", "does not answer"])
def test_the_end_does_not_wait_long_for_peers_that_hang(job: Callable[[int], First], is_asked: bool) -> None:
    first = job(3)
    first.peer(1).tell(updates(1, 9), end=True)
    first.peer(2).tell(updates(2, 9 if is_asked else 4, differs_from=3 if is_asked else 0))
    first.tell(updates(0, 9))
    if is_asked:
        wait_for(lambda: any(isinstance(message, ValueDigestsRequest) for message in first.peers[1].heard))
    else:
        wait_for(lambda: first.rank.ranks.steps == 4)
    begin = time.monotonic()
    comparison = first.close()
    assert time.monotonic() - begin < 10
    if is_asked:
        assert "step 3 only: there was no time for the remaining steps" in comparison.not_compared[0]
    else:
        assert comparison.not_compared == ("ranks were compared up to step 4 only: rank 2 sent nothing more in time",)
    wait_for(lambda: our_threads() == [])


def test_a_peer_that_hangs_in_a_message_does_not_keep_the_reader(job: Callable[[int], First]) -> None:
    first = job(2)
    stuck = first.stranger(framed(Hello(1, WORD)) + framed(Ended())[:-1])
    first.tell(updates(0, 3))
    wait_for(lambda: first.rank._peers[1].connection is not None)
    first.close()
    wait_for(lambda: our_threads() == [])
    stuck.close()


def test_sending_ends_after_a_failure(job: Callable[[int], First], monkeypatch: pytest.MonkeyPatch) -> None:
    """The first rank waits for those behind it, but not when the program is over."""
    monkeypatch.setattr(rank_server, "MAX_AHEAD", 4)
    first = job(2)
    first.peer(1).tell(updates(1, 2))
    first.tell(updates(0, 6))
    wait_for(lambda: first.rank.ranks.steps == 2)
    first.rank.give_up()
    first.tell(updates(0, 20)[6:])
    assert "rank 1 sent nothing more in time" in first.close().not_compared[0]


def test_windows_of_a_single_rank_are_dropped(job: Callable[[int], First]) -> None:
    first = job(2)
    peer = first.peer(1)
    peer.line.send(WindowDigest(lean(updates(1, 500)[-1], EVERYTHING)))
    first.tell(updates(0, 499))
    wait_for(lambda: not first.rank._peers[0].windows)
    assert len(first.rank._own) <= 2 * rank_server.MAX_AHEAD


def test_a_failing_comparison_is_reported_and_stops_no_rank(
    job: Callable[[int], First], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = job(2)

    def broken(windows: Sequence[Window]) -> list[list[object]]:
        raise KeyError("a mistake of ours")

    monkeypatch.setattr(first.rank.ranks, "feed", broken)
    peer = first.peer(1)
    peer.tell(updates(1, 200), end=True)
    first.tell(updates(0, 200))
    wait_for(lambda: first.rank.failed and not peer.is_connected)
    assert Ended() not in peer.heard, "another rank is to take over"
    assert first.close().not_compared == ("ranks were compared up to step 0 only: KeyError: 'a mistake of ours'",)


def test_all_ranks_stop_even_if_one_is_gone(job: Callable[[int], First]) -> None:
    first = job(3)
    gone, there = first.peer(1), first.peer(2)
    wait_for(lambda: all(first.rank._peers[rank].connection for rank in (1, 2)))
    gone.close()
    first.rank.broadcast(Stop("Gradients differ", 3))
    wait_for(lambda: Stop("Gradients differ", 3) in there.heard)
