"""Readers return all written windows exactly, and those before the tear of a torn file."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from traincheck.testing.readable_traces import from_text, to_text
from traincheck.trace.reader import read_windows
from traincheck.trace.writer import TraceWriter
from traincheck.vocab.events import CALL_KINDS, ROLES, STAGES, Call, Change, Reading, TensorSummary, Window

texts = st.sampled_from(["", "a", "Net.fc.weight"]) | st.text(max_size=8)
names = st.sampled_from(["torch.add", "f.<locals>.g"]) | st.text(
    st.characters(exclude_characters="<", exclude_categories=["Cs"]), max_size=8
)
values = st.none() | st.booleans() | st.integers() | st.sampled_from([0, 1]) | st.floats() | texts
all_facts = st.dictionaries(texts, values, max_size=3).map(lambda pairs: tuple(sorted(pairs.items())))
positions = st.integers(-1, 20) | st.integers(-(2**63), 2**63 - 1)
fingerprints = st.none() | st.integers(0, 2**64 - 1)
facts_of_values = st.dictionaries(st.sampled_from(["finite", "norm", "zero"]) | texts, values, max_size=3).map(
    lambda pairs: tuple(sorted(pairs.items()))
)
tensors = st.lists(
    st.builds(
        TensorSummary,
        role=texts,
        dtype=texts | st.sampled_from(["float32", "a[1]", "a requires_grad"]),
        shape=st.lists(st.integers(0, 9) | st.integers(0, 2**62), max_size=3).map(tuple),
        requires_grad=st.booleans(),
        storage=texts,
        fingerprint=fingerprints,
        facts=facts_of_values,
    ),
    max_size=3,
).map(tuple)

sites = st.just("") | st.builds(
    "{}:{}:{}".format, texts, st.integers(0, 10**6), texts.map(lambda name: name.replace(":", "."))
)


def inside(call: Call) -> Call:
    """The enclosing call began earlier."""
    return call if call.parent < call.seq else call._replace(parent=call.seq - 1)


calls = st.builds(
    Call,
    seq=positions.filter(lambda seq: seq > -(2**63)),
    end=positions,
    parent=positions,
    kind=st.sampled_from(CALL_KINDS),
    levels=st.lists(names, min_size=1, max_size=3).map(tuple),
    receiver=texts,
    site=sites,
    context=all_facts,
    args=all_facts,
    result=all_facts,
    thread=st.integers(0, 3),
    tensors=tensors,
).map(inside)
changes = st.builds(
    Change,
    seq=positions,
    call=positions,
    variable=texts,
    kind=texts,
    attribute=texts,
    before=texts,
    after=texts,
    changed=st.booleans(),
    owner=texts,
    context=all_facts,
    fingerprint=fingerprints,
)
readings = st.builds(
    Reading,
    seq=positions,
    call=positions,
    variable=texts,
    kind=texts,
    attribute=texts | st.just("data"),
    value=values | st.integers(0, 2**64) | st.just(-1),
    role=st.sampled_from(ROLES) | texts,
    context=all_facts,
)
windows_of_a_process = st.lists(
    st.builds(
        Window,
        index=st.integers(0, 2**31 - 1),
        step=st.integers(0, 2**63 - 1),
        stage=st.sampled_from(STAGES),
        calls=st.lists(calls, max_size=4).map(tuple),
        changes=st.lists(changes, max_size=4).map(tuple),
        readings=st.lists(readings, max_size=4).map(tuple),
    ),
    max_size=4,
)


def written(folder: str, windows: list[Window]) -> tuple[Path, list[int]]:
    """The event file of `windows`, and its size after each of them."""
    sizes = []
    with TraceWriter(folder, 0, 0) as writer:
        for window in windows:
            writer.write(window)
            sizes.append(writer.bytes_written)
    return writer.path, sizes


@given(windows_of_a_process, st.booleans())
def test_windows_round_trip_exactly(windows: list[Window], again: bool) -> None:
    windows = windows * 2 if again else windows
    with tempfile.TemporaryDirectory() as folder:
        path, _ = written(folder, windows)
        restored = list(read_windows(path)) if windows else []
    assert repr(restored) == repr(windows)  # by repr, which tells 1 from True and takes nan for nan


@given(windows_of_a_process.filter(len), st.data())
def test_a_torn_file_gives_a_prefix(windows: list[Window], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path, sizes = written(folder, windows)
        content = path.read_bytes()
        cut = data.draw(st.integers(0, len(content)))
        path.write_bytes(content[:cut])
        restored = list(read_windows(path))
    assert repr(restored) == repr(windows[: sum(size <= cut for size in sizes)])


def _seq(event: Call | Reading) -> int:
    return event.seq


words = st.text(st.characters(codec="ascii", categories=["L", "N", "P", "Zs"]), min_size=1, max_size=8)
readable_calls = st.builds(
    Call,
    seq=st.integers(0, 30),
    end=st.integers(-1, 30),
    parent=st.integers(-1, 30),
    kind=st.sampled_from(CALL_KINDS),
    levels=st.lists(words, min_size=1, max_size=3).map(tuple),
    receiver=words,
    site=words,
    context=all_facts,
    args=all_facts,
    result=all_facts,
    thread=st.integers(0, 3),
    tensors=tensors,
).map(inside)
readable_readings = st.builds(
    Reading,
    seq=st.integers(51, 60),
    call=st.integers(-1, 30),
    variable=texts,
    kind=st.sampled_from(["parameter", "worker"]),
    attribute=words | st.just("random.python"),
    value=values,
    role=st.sampled_from(ROLES) | words,
    context=all_facts,
)


@given(
    st.lists(readable_calls, max_size=5, unique_by=lambda call: call.seq).map(lambda calls: sorted(calls, key=_seq)),
    st.lists(readable_readings, max_size=3, unique_by=lambda reading: reading.seq).map(
        lambda readings: sorted(readings, key=_seq)
    ),
    words,
)
def test_readable_lines_describe_the_window(calls: list[Call], readings: list[Reading], variable: str) -> None:
    change = Change(50, -1, variable, "parameter", "grad", "some", "none", True)
    windows = [Window(0, 1, "train", tuple(calls), (change,), readings=tuple(readings))]
    assert repr(from_text(to_text(windows))) == repr(windows)
