"""Compare the messages between ranks: each one with the tensor that the receiver expects, and with what arrived.

`torch.distributed` pairs the n-th message from a rank to another with some tag with the n-th receive for that tag. Both
ends count from the start of the run. So it does not matter in which window an end is recorded: a pipeline stage that
waits for its input does so before its own step begins.

Note [Room]
A receiver may hold more room than it gets (a buffer for the largest message), so only a message that is larger than its
room is an error. In most programs, the tensor that comes back is as large as the one that was sent: activations and
their gradients, or equal shares of an exchange. This is compared where as many messages go either way in a step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from traincheck.relations.base import context_of, ended, outcome_of
from traincheck.vocab.collectives import COLLECTIVE, NUMBER, PEER, RECEIVES, SENDS, STARTED, STARTERS, WAIT
from traincheck.vocab.demand import ARGUMENTS, CONTENTS, TENSORS, Demand, ValueKind
from traincheck.vocab.events import NO_CALL, Call, TensorSummary, Window
from traincheck.vocab.facts import facts, value_of
from traincheck.vocab.occasion import RANKS, Occasion, Property, Subject
from traincheck.vocab.properties import MESSAGES
from traincheck.vocab.ranks import NONE_DIFFER, DifferingRanks, named_ranks

DTYPE = Property(MESSAGES, "of the type expected")
ROOM = Property(MESSAGES, "no larger than their room")
INTACT = Property(MESSAGES, "received as sent")
EVEN = Property(MESSAGES, "as large as what comes back")

_SENTENCES = {
    DTYPE: "what one rank sends has the dtype that the other receives",
    ROOM: "what one rank sends fits into what the other receives it in",
    INTACT: "what one rank receives is what the other sent",
    EVEN: "what two ranks send each other in turn has the same shape",
}

MAX_PENDING = 10_000
"""Ends of messages that wait for the other end. Beyond this number, all of them are dropped."""

_Route = tuple[int, int, int]
"""From which rank, to which, with which tag."""


class _Message(NamedTuple):
    """One end of a message: its rank, its call, and the tensor as it was sent or is received."""

    rank: int
    call: Call
    tensor: TensorSummary
    fingerprint: int | None


_Judged = tuple[Property, bool, Sequence[_Message]]
"""A property, whether it holds, and the messages that it covers."""


class Messages:
    """Pairs the messages of several ranks. An end is kept until the other end is recorded."""

    def __init__(self) -> None:
        self._pending: dict[tuple[_Route, int, bool], _Message] = {}

    def across(self, windows: Sequence[Window]) -> Iterator[Occasion]:
        """Yield one occasion for each property, with the first call of the first rank that violates it, if any."""
        results: list[_Judged] = []
        sent: dict[_Route, list[_Message]] = {}
        for route, number, sends, message in _message_ends(windows):
            if sends:
                sent.setdefault(route, []).append(message)
            other_end = self._pending.pop((route, number, not sends), None)
            if other_end is None:
                self._keep((route, number, sends), message)
            else:
                pair = (message, other_end) if sends else (other_end, message)
                results += ((prop, holds, pair) for prop, holds in _judge_pair(*pair))
        for (source, target, tag), outgoing in sent.items():
            incoming = sent.get((target, source, tag), ()) if source < target else ()
            if len(outgoing) == len(incoming):  # otherwise what goes there is not the same things as what comes back
                pairs = [
                    turn
                    for turn in zip(outgoing, incoming, strict=True)
                    if turn[0].tensor.dtype == turn[1].tensor.dtype
                ]
                results += ((EVEN, turn[0].tensor.shape == turn[1].tensor.shape, turn) for turn in pairs)
        for prop in dict.fromkeys(prop for prop, _, _ in results):
            yield _occasion(
                prop, [(holds, ends) for judged_prop, holds, ends in results if judged_prop == prop], windows[0]
            )

    def _keep(self, key: tuple[_Route, int, bool], message: _Message) -> None:
        if len(self._pending) >= MAX_PENDING:
            self._pending.clear()
        self._pending[key] = message

    @staticmethod
    def needs(prop: Property) -> Demand:
        """See `Relation.needs`."""
        apis = SENDS | RECEIVES | ({WAIT} if prop == INTACT else set())
        data_kinds: tuple[ValueKind, ...] = (ARGUMENTS, TENSORS, CONTENTS) if prop == INTACT else (ARGUMENTS, TENSORS)
        return Demand.of_calls(*apis, values=data_kinds)

    @staticmethod
    def describe(prop: Property) -> str:
        """See `Relation.describe`."""
        return _SENTENCES[prop]


def _occasion(prop: Property, results: Sequence[tuple[bool, Sequence[_Message]]], window: Window) -> Occasion:
    broken = [ends for holds, ends in results if not holds]
    calls = [end.call for ends in broken or (ends for _, ends in results) for end in ends]
    seq = next((call.seq for call in calls if window.by_seq.get(call.seq) is call), NO_CALL)
    ends = sorted({end.rank for end in broken[0]}) if broken else []
    return Occasion(
        Subject(COLLECTIVE, RANKS),
        context_of(facts(), window.stage),
        *outcome_of(prop, not broken),
        seq,
        note=f"not so between {named_ranks(ends)}" if broken else "",
        differing=DifferingRanks(tuple(ends), len(ends)) if broken else NONE_DIFFER,
    )


def _message_ends(windows: Sequence[Window]) -> Iterator[tuple[_Route, int, bool, _Message]]:
    """The messages that the ranks send and receive, in the order of their calls: route, number, whether it is sent,
    message."""
    for window in windows:
        received = _received_fingerprints(window)
        for call in window.calls:
            sends = call.name in SENDS
            if not (sends or call.name in RECEIVES) or not ended(call) or not call.tensors:
                continue
            result = dict(call.result)
            peer, number, tag = result.get(PEER), result.get(NUMBER), value_of(call.args, "tag")
            if not isinstance(peer, int) or not isinstance(number, int):
                continue
            ranks = (window.rank, peer) if sends else (peer, window.rank)
            value = call.tensors[0].fingerprint if sends else received.get(call.seq, _received_directly(call))
            message = _Message(window.rank, call, call.tensors[0], value)
            yield (*ranks, tag if isinstance(tag, int) else 0), number, sends, message


def _received_directly(call: Call) -> int | None:
    """The fingerprint of the received tensor, if the call itself waited for it."""
    return None if call.name in STARTERS else call.tensors[-1].fingerprint


def _received_fingerprints(window: Window) -> dict[int, int | None]:
    """The fingerprints of received tensors by the call that started the receive."""
    fingerprints: dict[int, int | None] = {}
    for call in window.calls:
        started = value_of(call.result, STARTED)
        if call.name == WAIT and isinstance(started, int) and call.tensors:
            fingerprints[started] = call.tensors[0].fingerprint
    return fingerprints


def _judge_pair(sent: _Message, received: _Message) -> Iterator[tuple[Property, bool]]:
    yield DTYPE, sent.tensor.dtype == received.tensor.dtype
    yield ROOM, math.prod(sent.tensor.shape) <= math.prod(received.tensor.shape)
    comparable = sent.tensor.shape == received.tensor.shape and sent.tensor.dtype == received.tensor.dtype
    if comparable and sent.fingerprint is not None and received.fingerprint is not None:
        yield INTACT, sent.fingerprint == received.fingerprint
