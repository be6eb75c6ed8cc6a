"""The reader: the windows of one event file, in order, without holding more than one of them."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate, islice
from operator import itemgetter
from typing import Any, Literal

import msgspec
import pyarrow as pa

from traincheck.errors import TraceOutOfReach, TraceUnreadable
from traincheck.trace.encoding import text_to_facts, text_to_levels, text_to_type, text_to_value, with_norm
from traincheck.trace.growing import PAUSE, GrowingFile
from traincheck.trace.schema import COLUMNS, EVENTS, TEXT, owner
from traincheck.vocab.events import Call, Change, Reading, TensorSummary, Window
from traincheck.vocab.facts import FactValue

_GARBLED = (pa.ArrowException, OSError, ValueError, LookupError, TypeError, msgspec.MsgspecError)
"""What pyarrow and the decoding raise over bytes that were tampered with."""

_STREAM_BEGINS = b"\xff\xff\xff\xff"
"""The first bytes of every Arrow IPC stream (the continuation marker of its schema message)."""

_call = functools.partial(tuple.__new__, Call)  # as Call._make, without its Python frame
_change = functools.partial(tuple.__new__, Change)
_reading = functools.partial(tuple.__new__, Reading)
_tensor = functools.partial(tuple.__new__, TensorSummary)


def read_windows(path: str | os.PathLike[str]) -> Iterator[Window]:
    """The windows of the event file `path`, each made when it is asked for.

    The file may still be written, or its process may have been killed: a tail that is not a whole window is no error,
    the windows before it are read. Raises, at the first window or later, TraceOutOfReach, TraceTooNew, or
    TraceUnreadable for a file that is something else or garbled.

    Known limitations: a length in the file that was garbled so that it points beyond the end looks like a torn tail.
    """
    with _opened(path) as file:
        # Its size now: while the file is being written, the end that a read ran into is not where it ends afterwards.
        size = file.size()
        yield from _windows(file, lambda: size, path, lambda index: True)


def follow_windows(
    path: str | os.PathLike[str],
    ended: Callable[[], bool],
    pause: float = PAUSE,
    wanted: Callable[[int], bool] = lambda index: True,
) -> Iterator[Window]:
    """What `read_windows` yields, of a file that is still being written: the next window is waited for.

    Windows whose index is not `wanted` are passed over, which costs little. Once `ended` returns True, what is there by
    then is read, and nothing more is waited for; it is asked every `pause` seconds while nothing comes. Raises as
    `read_windows`.
    """
    try:
        growing = GrowingFile(path, ended, pause)
    except OSError as error:
        raise TraceOutOfReach(path, os.strerror(error.errno) if error.errno else str(error)) from error
    with growing, pa.PythonFile(growing, mode="r") as file:
        yield from _windows(file, lambda: growing.end, path, wanted)


def count_windows(path: str | os.PathLike[str]) -> int:
    """How many windows the event file `path` holds, without decoding them; those before a tear or garbled bytes.

    Raises TraceOutOfReach where the system refuses.
    """
    found = 0
    with _opened(path) as file, contextlib.suppress(pa.ArrowException, OSError, StopIteration):
        messages = pa.ipc.MessageReader.open_stream(file)
        while True:
            found += messages.read_next_message().type == "record batch"
    return found


def last_step(path: str | os.PathLike[str]) -> int:
    """The training step of the last window in the event file `path`, as `count_windows` finds them; 0 without any.

    Raises TraceOutOfReach where the system refuses.
    """
    found = 0
    with _opened(path) as file, contextlib.suppress(*_GARBLED, StopIteration):
        names = pa.ipc.open_stream(file).schema.names
        file.seek(0)
        only = pa.ipc.IpcReadOptions(use_threads=False, included_fields=[names.index("step")])
        stream = pa.ipc.open_stream(file, options=only)
        while True:
            found = stream.read_next_batch().column(0)[0].as_py()
    return found


def _opened(path: str | os.PathLike[str]) -> pa.NativeFile:
    try:
        return pa.OSFile(os.fspath(path), "rb")
    except OSError as error:
        raise TraceOutOfReach(path, os.strerror(error.errno) if error.errno else str(error)) from error


def _windows(
    file: pa.NativeFile, end: Callable[[], int], path: str | os.PathLike[str], wanted: Callable[[int], bool]
) -> Iterator[Window]:
    """The windows in `file` that are wanted; `end` tells where it ends once a read has come there."""
    begins = file.read(len(_STREAM_BEGINS))
    if not _STREAM_BEGINS.startswith(begins):
        raise TraceUnreadable(path, "it is not an Arrow stream")
    file.seek(0)
    batches: _Batches | None = None
    while True:
        try:
            if batches is None:
                stream = pa.ipc.open_stream(file, options=pa.ipc.IpcReadOptions(use_threads=False))
                batches = _Batches(*owner(stream.schema, path))
            batch = stream.read_next_batch()
        except StopIteration:
            return
        except (pa.ArrowException, OSError) as error:
            if file.tell() >= end():
                return
            raise TraceUnreadable(path, f"garbled before byte {file.tell()} ({error})") from error
        try:
            if not wanted(batches.index(batch)):
                continue
            window = batches.window(batch, stream.stats.num_replaced_dictionaries)
        except _GARBLED as error:
            raise TraceUnreadable(path, f"garbled before byte {file.tell()} ({error})") from error
        yield window


class _Values(list[Any]):
    """The values of the dictionary of one column, each decoded once and shared by all rows of the file that have it."""

    def __init__(self, decode: Callable[[str], Any]) -> None:
        self._decode = decode

    def grow(self, dictionary: pa.Array) -> None:
        """Take in what was added to the dictionary."""
        if len(dictionary) > len(self):
            added = dictionary.slice(len(self))
            added.validate(full=True)  # pyarrow would follow a garbled offset to wherever it leads
            self.extend(map(self._decode, added.to_pylist()))


class _Rows:
    """Rows `start` to `stop` of a batch, column by column."""

    def __init__(self, columns: dict[str, Any], values: dict[str, _Values], start: int, stop: int) -> None:
        self._columns = columns
        self._values = values
        self._start = start
        self._stop = stop

    def __len__(self) -> int:
        return self._stop - self._start

    def int64(self, name: str) -> list[int]:
        return self._numbers(self._columns[name], "q")

    def int32(self, name: str) -> list[int]:
        return self._numbers(self._columns[name], "i")

    def texts(self, name: str) -> Iterator[Any]:
        """What a dictionary column tells, decoded."""
        column, values = self._columns[name], self._values[name]
        values.grow(column.dictionary)
        return map(values.__getitem__, self._numbers(column.indices, "i"))

    def objects(self, name: str) -> list[Any]:
        """A column that is packed in bits or has nulls of its own."""
        found: list[Any] = self._columns[name][self._start : self._stop].to_pylist()
        return found

    def texts_of_some(self, name: str) -> list[Any]:
        """What a dictionary column tells that has nulls of its own, decoded."""
        column, values = self._columns[name], self._values[name]
        values.grow(column.dictionary)
        codes = column.indices[self._start : self._stop].to_pylist()
        return [None if code is None else values[code] for code in codes]

    def _numbers(self, column: pa.Array, letter: Literal["i", "q"]) -> list[int]:
        # Straight from the buffer: pyarrow's to_pylist makes a scalar of each number first.
        buffer: memoryview[int] = memoryview(column.buffers()[1]).cast(letter)
        return buffer[self._start : self._stop].tolist()


class _Batches:
    """Turns the batches of one file back into windows."""

    def __init__(self, rank: int, process: int) -> None:
        self._owner = rank, process
        self._replaced = 0
        decoders: dict[str, Callable[[str], Any]] = {
            "levels": text_to_levels,
            "type": text_to_type,
            "value": text_to_value,
        }
        decoders |= dict.fromkeys(("context", "args", "result"), text_to_facts)
        self._values = {name: _Values(decoders.get(name, str)) for name, kind, _ in COLUMNS if kind == TEXT}

    @staticmethod
    def index(batch: pa.RecordBatch) -> int:
        """The index of the window of `batch`, without a look at the rest of it."""
        found: int = batch.column("window")[0].as_py()
        return found

    def window(self, batch: pa.RecordBatch, replaced: int) -> Window:
        """The window of `batch`; `replaced` says how many dictionaries were replaced in the stream so far."""
        batch.validate()
        if replaced != self._replaced:  # which one is not told: forget them all, which costs little and comes seldom
            self._replaced = replaced
            for values in self._values.values():
                values.clear()
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        events = bytes(columns["event"].indices.buffers()[1])[: len(batch)]
        lengths = list(map(events.count, range(len(EVENTS))))
        if lengths[0] != 1 or events != bytes(sorted(events)) or len(events) != sum(lengths):
            raise ValueError("its rows are not one window")
        ends = list(accumulate(lengths))
        first, *rest = (
            _Rows(columns, self._values, end - length, end) for end, length in zip(ends, lengths, strict=True)
        )
        calls, changes, readings, tensors = rest
        rank, process = self._owner
        return Window(
            index=first.int32("window")[0],
            step=first.int64("step")[0],
            stage=next(first.texts("stage")),
            calls=_calls(calls, _tensors_of(calls, tensors)),
            changes=_changes(changes),
            rank=rank,
            process=process,
            readings=_readings(readings),
        )


def _calls(rows: _Rows, tensors: Iterable[tuple[TensorSummary, ...]]) -> tuple[Call, ...]:
    fields = (
        *map(rows.int64, ("seq", "end", "parent")),
        *map(rows.texts, ("kind", "levels", "receiver", "site", "context", "args", "result")),
        rows.int32("thread"),
    )
    return tuple(map(_call, zip(*fields, tensors, strict=True)))


def _changes(rows: _Rows) -> tuple[Change, ...]:
    fields = (
        *map(rows.int64, ("seq", "parent")),
        *map(rows.texts, ("name", "kind", "attribute", "before", "after")),
        rows.objects("changed"),
        *map(rows.texts, ("receiver", "context")),
        rows.objects("fingerprint"),
    )
    return tuple(map(_change, zip(*fields, strict=True)))


def _tensors_of(calls: _Rows, rows: _Rows) -> list[tuple[TensorSummary, ...]]:
    """The tensors of each of `calls`."""
    if not rows:
        return [()] * len(calls)  # as in a file of format 1, which has no such columns
    types = list(rows.texts("type"))
    facts = rows.texts("context")
    fields = (
        rows.texts("role"),
        *(map(itemgetter(part), types) for part in range(3)),
        rows.texts("storage"),
        rows.objects("fingerprint"),
        map(with_norm, facts, rows.objects("number")),
    )
    tensors = map(_tensor, zip(*fields, strict=True))
    counts = calls.int32("tensors")
    if sum(counts) != len(rows):
        raise ValueError("its tensors are of no call")
    return [tuple(islice(tensors, count)) for count in counts]


def _readings(rows: _Rows) -> tuple[Reading, ...]:
    if not rows:
        return ()
    values = list(map(_value, *map(rows.objects, ("number", "integer", "fingerprint")), rows.texts_of_some("value")))
    fields = (
        *map(rows.int64, ("seq", "parent")),
        *map(rows.texts, ("name", "kind", "attribute")),
        values,
        *map(rows.texts, ("role", "context")),
    )
    return tuple(map(_reading, zip(*fields, strict=True)))


def _value(*columns: FactValue) -> FactValue:
    """What the one of the columns that is not null says; None where none does."""
    return next((value for value in columns if value is not None), None)
