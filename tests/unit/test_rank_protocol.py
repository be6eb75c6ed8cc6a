"""Lines: messages arrive as they were sent, and what is not a message of TrainCheck ends the line."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traincheck.checking.digests import Selection
from traincheck.runtime.ranks.rank_protocol import (
    LARGEST,
    Alive,
    Connection,
    Ended,
    Hello,
    Message,
    Stop,
    ValueDigestsRequest,
    ValuesRequest,
    WindowDigest,
    WindowValueDigests,
    WindowValues,
)
from traincheck.vocab.events import Call, Change, Reading, TensorSummary, Window

texts = st.sampled_from(["", "Net.fc.weight"]) | st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
numbers = st.integers(-(2**63), 2**64 - 1)
values = st.none() | st.booleans() | numbers | st.sampled_from([0, 1, 1.0]) | st.floats() | texts
all_facts = st.dictionaries(texts, values, max_size=3).map(lambda pairs: tuple(sorted(pairs.items())))
positions = st.integers(-1, 2**63 - 1)
fingerprints = st.none() | st.integers(0, 2**64 - 1)
shapes = st.lists(st.integers(0, 2**62), max_size=3).map(tuple)
tensors = st.builds(TensorSummary, texts, texts, shapes, st.booleans(), texts, fingerprints, all_facts)
calls = st.builds(
    Call,
    positions,
    positions,
    positions,
    texts,
    st.lists(texts, min_size=1, max_size=3).map(tuple),
    texts,
    texts,
    thread=positions,
    context=all_facts,
    args=all_facts,
    result=all_facts,
    tensors=st.lists(tensors, max_size=2).map(tuple),
)
changes = st.builds(
    Change, positions, positions, texts, texts, texts, texts, texts, st.booleans(), texts, all_facts, fingerprints
)
readings = st.builds(Reading, positions, positions, texts, texts, texts, values, texts, all_facts)
windows = st.builds(
    Window,
    positions,
    positions,
    texts,
    st.lists(calls, max_size=3).map(tuple),
    st.lists(changes, max_size=3).map(tuple),
    readings=st.lists(readings, max_size=3).map(tuple),
)
ranks = st.integers(0, 2**31)
sections = st.frozensets(texts, max_size=1)  # the text of a larger set has no order
messages = st.one_of(
    st.builds(Hello, ranks, texts),
    st.builds(WindowDigest, windows),
    st.builds(ValueDigestsRequest, positions, positions, sections),
    st.builds(WindowValueDigests, positions, st.none() | st.dictionaries(texts, st.lists(positions, max_size=2))),
    st.builds(ValuesRequest, positions, positions, st.builds(Selection, sections, sections)),
    st.builds(WindowValues, positions, st.none() | windows),
    st.just(Alive()),
    st.just(Ended()),
    st.builds(Stop, texts, positions),
)


def _connected() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname(), 10)
        server, _ = listener.accept()
    server.settimeout(10)
    return client, server


@pytest.fixture
def wire() -> Iterator[tuple[socket.socket, Connection]]:
    """A foreign socket, and a connection of TrainCheck."""
    client, server = _connected()
    line = Connection(server)
    yield client, line
    client.close()
    line.close()


@settings(max_examples=40)
@given(st.lists(messages, max_size=3))
def test_messages_arrive_as_they_were_sent(sent: list[Message]) -> None:
    sender, receiver = (Connection(end) for end in _connected())
    for message in sent:
        if isinstance(message, WindowDigest):
            assert message.window.by_seq is not None  # what a window remembers of itself is not sent
        sender.send(message)
    received = [receiver.receive() for _ in sent]
    sender.close()
    receiver.close()
    assert repr(received) == repr(sent)  # by repr, which tells 1 from True and 1.0


def test_long_messages_arrive_whole_from_several_threads() -> None:
    sender, receiver = (Connection(end) for end in _connected())
    long = [WindowDigest(Window(index, index, "x" * 3_000_000)) for index in range(4)]
    threads = [threading.Thread(target=sender.send, args=(message,), daemon=True) for message in long]
    for thread in threads:
        thread.start()
    received = [receiver.receive() for _ in long]
    assert sorted(map(repr, received)) == sorted(map(repr, long))
    for thread in threads:
        thread.join(30)
    assert sender.sent == 4 and sender.bytes_sent > 4 * 3_000_000
    sender.close()
    receiver.close()


@pytest.mark.parametrize(
    "body",
    [b"", b"\xc1", b"no message", msgspec.msgpack.encode({"type": "Unheard"}), b"\xd9\x02\xff\xfe", b"\x91" * 100_000],
    ids=["empty", "reserved", "text", "unknown", "no unicode", "deep"],
)
def test_garbled_data_closes_the_connection(wire: tuple[socket.socket, Connection], body: bytes) -> None:
    bare, line = wire
    bare.sendall(struct.pack("!I", len(body)) + body)
    with pytest.raises(OSError, match="not a message of TrainCheck"):
        line.receive()


def test_text_that_is_no_unicode_ends_the_line(wire: tuple[socket.socket, Connection]) -> None:
    bare, line = wire
    body = msgspec.msgpack.encode(Hello(1, "ab")).replace(b"ab", b"\xff\xfe")
    bare.sendall(struct.pack("!I", len(body)) + body)
    with pytest.raises(OSError, match="not a message of TrainCheck"):
        line.receive()


def test_long_messages_are_not_read(wire: tuple[socket.socket, Connection]) -> None:
    bare, line = wire
    bare.sendall(struct.pack("!I", LARGEST + 1))
    with pytest.raises(OSError, match="a message of"):
        line.receive()
    bare.sendall(struct.pack("!I", 11))
    with pytest.raises(OSError, match="a message of 11 bytes"):
        line.receive(largest=10)


def test_an_incomplete_message_times_out(wire: tuple[socket.socket, Connection]) -> None:
    bare, line = wire
    over = threading.Event()

    def drip() -> None:
        while not over.wait(0.01):
            bare.sendall(b"\0")

    bare.sendall(struct.pack("!I", 1_000_000))
    dripping = threading.Thread(target=drip)
    dripping.start()
    with pytest.raises(TimeoutError):
        line.receive(seconds=0.1)
    over.set()
    dripping.join(30)


def test_a_message_in_time_leaves_the_line_as_it_was(wire: tuple[socket.socket, Connection]) -> None:
    bare, line = wire
    Connection(bare).send(Stop("found", 7))
    assert line.receive(seconds=10) == Stop("found", 7) and line._connection.gettimeout() is None


@pytest.mark.parametrize("payload", [b"", b"\0\0", struct.pack("!I", 5) + b"abc"], ids=["nothing", "a bit", "half"])
def test_an_end_that_is_gone_is_noticed(wire: tuple[socket.socket, Connection], payload: bytes) -> None:
    bare, line = wire
    bare.sendall(payload)
    bare.close()
    with pytest.raises(OSError):
        line.receive()
    with pytest.raises(OSError):
        for _ in range(1000):
            line.send(WindowDigest(Window(0, 0, "x" * 1000)))


def test_a_waiting_reader_wakes_when_the_connection_closes(wire: tuple[socket.socket, Connection]) -> None:
    _, line = wire
    raised: list[BaseException] = []

    def wait() -> None:
        try:
            line.receive()
        except OSError as error:
            raised.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    line.close()
    waiting.join(30)
    assert len(raised) == 1
    line.close()


@pytest.mark.parametrize("value", [2**64, -(2**63) - 1, "\ud800"], ids=["too large", "too small", "half a character"])
def test_unwritable_messages_are_refused_and_harm_no_others(
    wire: tuple[socket.socket, Connection], value: int | str
) -> None:
    bare, line = wire
    window = Window(0, 1, "train", readings=(Reading(0, -1, "SGD", "hyperparameter", "seed", value),))
    with pytest.raises(ValueError):
        line.send(WindowDigest(window))
    other = Connection(bare)
    line.send(WindowDigest(replace(window, readings=())))
    assert other.receive() == WindowDigest(replace(window, readings=())) and line.sent == 1
