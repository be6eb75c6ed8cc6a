"""Read the windows of one recording in order, holding only one of them in memory.

A recording is an event file, followed by further segments in a long run (see segments.py). Removed parts appear as gaps
in `Window.index`, like dropped windows.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import os
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate, islice
from operator import itemgetter
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

import msgspec
import pyarrow as pa

from traincheck.addresses import local_copy
from traincheck.errors import TraceOutOfReach, TraceUnreadable
from traincheck.trace.encoding import (
    text_to_facts,
    text_to_levels,
    text_to_site,
    text_to_stage,
    text_to_type,
    text_to_value,
    with_norm,
)
from traincheck.trace.growing_files import PAUSE, GrowingFile
from traincheck.trace.message_limits import Bounds
from traincheck.trace.schema import COLUMNS, EVENTS, TEXT, owner, removed_before
from traincheck.trace.segments import is_gone, segments, segments_in_turn
from traincheck.vocab.events import Call, Change, Reading, TensorSummary, Window
from traincheck.vocab.facts import FactValue

_GARBLED = (
    pa.ArrowException,
    OSError,
    ValueError,
    LookupError,
    TypeError,
    msgspec.MsgspecError,
    RecursionError,
    MemoryError,
)
"""The errors that pyarrow and the decoders raise for damaged bytes."""

_STREAM_BEGINS = b"\xff\xff\xff\xff"
"""The first bytes of every Arrow IPC stream (the continuation marker of its schema message)."""

_call = functools.partial(tuple.__new__, Call)  # as Call._make, without its Python frame
_change = functools.partial(tuple.__new__, Change)
_reading = functools.partial(tuple.__new__, Reading)
_tensor = functools.partial(tuple.__new__, TensorSummary)


def read_windows(path: str | os.PathLike[str]) -> Iterator[Window]:
    """Yield the windows of the event file `path`, each created when it is requested.

    The file may still be growing, or its process may have been killed. An incomplete window at the end is no error: the
    windows before it are read. Raises TraceOutOfReach, TraceTooNew, or TraceUnreadable for another or damaged file, at
    the first window or later.

    Known limitations: a damaged length that points beyond the end of the file looks like an incomplete window.
    """
    return _read(path, lambda batch: True)


def read_steps(path: str | os.PathLike[str], first: int, last: int) -> Iterator[Window]:
    """Yield the windows of the training steps `first` to `last`; other windows are skipped, which costs little."""
    return _read(path, lambda batch: first <= batch.column("step")[0].as_py() <= last)


def _read(path: str | os.PathLike[str], accept: Callable[[pa.RecordBatch], bool]) -> Iterator[Window]:
    for segment in segments(path):  # those that are there now
        with _opened_if_there(segment) as opened:
            if opened is None:
                continue
            # Its size now: while it is being written, the end that a read ran into is not where it ends afterwards.
            size = opened.file.size()
            yield from _windows(opened.file, lambda size=size: size, segment, accept, Bounds(opened.again))  # type: ignore[misc]


def follow_windows(
    path: str | os.PathLike[str],
    ended: Callable[[], bool],
    pause: float = PAUSE,
    accept: Callable[[int], bool] = lambda index: True,
) -> Iterator[Window]:
    """Yield the windows of a file that is still being written; waits for the next window.

    Windows whose index is not accepted are skipped, which costs little. `ended` is called every `pause` seconds while
    no data arrives. After it returns True, the remaining windows are read and the iteration ends. Raises the errors of
    `read_windows`.
    """

    def among(batch: pa.RecordBatch) -> bool:
        return accept(_Batches.index(batch))

    for segment in segments_in_turn(path):
        try:
            growing, ahead = GrowingFile(segment, ended, pause), GrowingFile(segment, ended, pause)
        except OSError as error:
            if is_gone(segment):
                continue
            raise TraceOutOfReach(segment, os.strerror(error.errno) if error.errno else str(error)) from error
        with growing, ahead, pa.PythonFile(growing, mode="r") as file:
            yield from _windows(file, lambda growing=growing: growing.end, segment, among, Bounds(ahead))  # type: ignore[misc]


def count_windows(path: str | os.PathLike[str]) -> int:
    """Return the number of windows in the recording `path`, without decoding them, up to an incomplete or damaged one.

    Raises TraceOutOfReach if the system refuses.
    """
    return sum(map(_count_windows, segments(path)))


def _count_windows(segment: Path) -> int:
    total = 0
    with _opened_if_there(segment) as opened, contextlib.suppress(pa.ArrowException, OSError, StopIteration):
        if opened is None:
            return 0
        messages = pa.ipc.MessageReader.open_stream(opened.file)
        while True:
            total += messages.read_next_message().type == "record batch"
    return total


def last_step(path: str | os.PathLike[str]) -> int:
    """Return the training step of the last window in the recording `path`, as `count_windows` counts them; 0 without
    any.

    Raises TraceOutOfReach if the system refuses.
    """
    return next((step for segment in reversed(segments(path)) for step in list(_steps(segment))[-1:]), 0)


def removed_steps(path: str | os.PathLike[str]) -> tuple[tuple[int, int], ...]:
    """Return the ranges of training steps (first and last) that were removed from the recording `path`.

    The last segment holds them. Raises TraceOutOfReach if the system refuses.
    """
    for segment in reversed(segments(path)):
        with _opened_if_there(segment) as opened, contextlib.suppress(*_GARBLED):
            if opened is not None:
                return removed_before(pa.ipc.open_stream(opened.file).schema)
    return ()


def _steps(segment: Path) -> Iterator[int]:
    """Yield the training step of each window, up to an incomplete or damaged one."""
    with _opened_if_there(segment) as opened, contextlib.suppress(*_GARBLED, StopIteration):
        if opened is None:
            return
        bounds = Bounds(opened.again)
        names = pa.ipc.open_stream(opened.file).schema.names
        opened.file.seek(0)
        only = pa.ipc.IpcReadOptions(use_threads=False, included_fields=[names.index("step")])
        stream = pa.ipc.open_stream(opened.file, options=only)
        while True:
            bounds.next_window()
            yield stream.read_next_batch().column(0)[0].as_py()


class _Opened(NamedTuple):
    """An open file, and a second handle on it for `Bounds`."""

    file: pa.NativeFile
    again: IO[bytes]


@contextlib.contextmanager
def _opened_if_there(segment: Path) -> Iterator[_Opened | None]:
    """Open a segment; yields None if the segment has been removed."""
    with contextlib.ExitStack() as held:
        opened = None
        try:
            here = held.enter_context(local_copy(segment))
            opened = _Opened(held.enter_context(pa.OSFile(str(here), "rb")), held.enter_context(here.open("rb")))
        except OSError as error:
            if not is_gone(segment):
                raise TraceOutOfReach(segment, os.strerror(error.errno) if error.errno else str(error)) from error
        except TraceOutOfReach:
            if not is_gone(segment):
                raise
        yield opened


def _windows(
    file: pa.NativeFile,
    end: Callable[[], int],
    path: str | os.PathLike[str],
    accept: Callable[[pa.RecordBatch], bool],
    bounds: Bounds,
) -> Iterator[Window]:
    """Yield the accepted windows in `file`; `end` returns the size of the file after a read has reached its end."""
    begins = file.read(len(_STREAM_BEGINS))
    if not _STREAM_BEGINS.startswith(begins):
        raise TraceUnreadable(path, "it is not an Arrow stream")
    file.seek(0)
    batches: _Batches | None = None
    while True:
        try:
            bounds.next_window()
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
        except (ValueError, MemoryError) as error:
            raise TraceUnreadable(path, f"garbled behind byte {file.tell()} ({error})") from error
        try:
            if not accept(batch):
                continue
            window = batches.window(batch, stream.stats.num_replaced_dictionaries)
        except _GARBLED as error:
            raise TraceUnreadable(path, f"garbled before byte {file.tell()} ({error})") from error
        yield window


class _Values(list[Any]):
    """The values of one column's dictionary, each decoded once and shared by all rows of the file."""

    def __init__(self, decode: Callable[[str], Any]) -> None:
        self._decode = decode

    def grow(self, dictionary: pa.Array) -> None:
        """Decode the values that were added to the dictionary."""
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
        """Return the decoded values of a dictionary column."""
        column, values = self._columns[name], self._values[name]
        values.grow(column.dictionary)
        return map(values.__getitem__, self._numbers(column.indices, "i"))

    def objects(self, name: str) -> list[Any]:
        """Return the values of a bit-packed column, or of one with nulls."""
        values: list[Any] = self._columns[name][self._start : self._stop].to_pylist()
        return values

    def texts_of_some(self, name: str) -> list[Any]:
        """Return the decoded values of a dictionary column with nulls."""
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
            "stage": text_to_stage,
            "site": text_to_site,
            "levels": text_to_levels,
            "type": text_to_type,
            "value": text_to_value,
        }
        decoders |= dict.fromkeys(("context", "args", "result"), text_to_facts)
        self._values = {name: _Values(decoders.get(name, str)) for name, kind, _ in COLUMNS if kind == TEXT}

    @staticmethod
    def index(batch: pa.RecordBatch) -> int:
        """Return the index of the window of `batch` without decoding the rest."""
        number: int = batch.column("window")[0].as_py()
        return number

    def window(self, batch: pa.RecordBatch, replaced: int) -> Window:
        """Return the window of `batch`; `replaced` is the number of replaced dictionaries in the stream so far."""
        batch.validate()
        if replaced != self._replaced:  # Arrow does not say which one: clear all, which is cheap and rare
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
    seqs, ends, parents = map(rows.int64, ("seq", "end", "parent"))
    if any(map(operator.ge, parents, seqs)):
        raise ValueError("a call is inside one that begins later")
    fields = (
        *(seqs, ends, parents),
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
    """Return the tensors of each of `calls`."""
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
    """Return the value of the one column that is not null, or None."""
    return next((value for value in columns if value is not None), None)
