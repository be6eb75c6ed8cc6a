"""Tests that the k-th messages of all workers form a round, even if messages are lost, late or never sent."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from traincheck.sources.data import loader_workers
from traincheck.sources.data.loader_workers import MAX_WAITING_ROUNDS, Message, Rounds


def message(worker: int, batch: int, *, workers: int = 2, epoch_index: int = 0) -> Message:
    return Message(1, epoch_index, worker, workers, batch, 0b0001, (100 * worker + batch, 0, 0, 0))


def positions(rounds: list[list[Message]]) -> list[list[tuple[int, int]]]:
    return [[(entry.worker, entry.batch) for entry in round_] for round_ in rounds]


def rounds_of(*messages: Message) -> Rounds:
    rounds = Rounds(1, 2, 0)
    for entry in messages:
        rounds.add(entry)
    return rounds


def test_a_message_survives_the_pipe() -> None:
    sent = Message(7, 2, 3, 4, 5, 0b1111, (2**64 - 1, 0, 1, 2**63))
    assert Message.unpack(loader_workers._MESSAGE.unpack(sent.pack())) == sent
    assert loader_workers._MESSAGE.size <= 512  # what POSIX promises to write whole


def test_a_round_is_ready_when_its_batches_were_fetched() -> None:
    rounds = rounds_of(*(message(worker, batch) for batch in range(3) for worker in range(2)))
    assert [positions(rounds.ready(fetched, exhausted=False)) for fetched in range(1, 7)] == [
        [],
        [[(0, 0), (1, 0)]],
        [],
        [[(0, 1), (1, 1)]],
        [],
        [[(0, 2), (1, 2)]],
    ]


def test_a_round_that_lost_a_message_is_left_out() -> None:
    rounds = rounds_of(message(0, 0), message(0, 1), message(1, 1), message(0, 2), message(1, 2))
    assert positions(rounds.ready(6, exhausted=False)) == [[(0, 1), (1, 1)], [(0, 2), (1, 2)]]
    assert rounds.lost == 1


def test_a_worker_that_ended_is_not_waited_for_at_the_end() -> None:
    rounds = rounds_of(message(0, 0), message(1, 0), message(0, 1), message(0, 2))
    assert positions(rounds.ready(4, exhausted=False)) == [[(0, 0), (1, 0)]]
    assert positions(rounds.ready(4, exhausted=True)) == [[(0, 1)], [(0, 2)]]
    assert rounds.lost == 0


def test_a_worker_that_ended_long_ago_is_not_waited_for_either() -> None:
    rounds = Rounds(1, 2, 0)
    complete = []
    for batch in range(10 * MAX_WAITING_ROUNDS):
        rounds.add(message(0, batch))
        complete += positions(rounds.ready(batch + 1, exhausted=False))
        assert len(rounds._waiting) <= MAX_WAITING_ROUNDS
    complete += positions(rounds.ready(10 * MAX_WAITING_ROUNDS, exhausted=True))
    assert complete == [[(0, batch)] for batch in range(10 * MAX_WAITING_ROUNDS)]


def test_messages_of_an_earlier_epoch_are_ignored() -> None:
    rounds = Rounds(1, 2, epoch_index=1)
    for entry in (message(0, 5), message(0, 0, epoch_index=1), message(1, 0, epoch_index=1)):
        rounds.add(entry)
    assert positions(rounds.ready(2, exhausted=False)) == [[(0, 0), (1, 0)]]
    assert rounds.lost == 0


@given(st.integers(1, 4), st.integers(0, 12), st.integers(0, 2**32), st.data())
def test_prefetching_does_not_change_events(count: int, batches: int, seed: int, data: st.DataObject) -> None:
    """Messages that arrive ahead of the fetched batches do not change the rounds."""

    def run(ahead: int) -> list[list[list[tuple[int, int]]]]:
        rounds, sent, complete = Rounds(1, count, 0), 0, []
        for fetched in range(1, batches + 1):
            upto = min(batches, fetched + random.Random(f"{seed} {fetched}").randint(0, ahead))
            for number in range(sent, upto):
                rounds.add(message(number % count, number // count, workers=count))
            sent = max(sent, upto)
            complete.append(positions(rounds.ready(fetched, exhausted=False)))
        return [*complete, positions(rounds.ready(batches, exhausted=True))]

    expected = run(0)
    assert run(data.draw(st.integers(0, 2 * count))) == expected
    assert [entry for call in expected for round_ in call for entry in round_] == [
        (number % count, number // count) for number in range(batches)
    ]
