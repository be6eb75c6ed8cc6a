"""Columns: how windows become the columns of an event file, quickly, for it happens while training goes on.

Note [Beside the training]: windows are turned into columns by a background thread that shares Python's lock with the
training. So whole columns are handled by one call into C each, which holds the lock for about a millisecond in a window
of 1,800 events; compressing and writing takes as long again and does not hold it.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Any

import pyarrow as pa

from traincheck.trace.encoding import facts_to_text, levels_to_text, valid
from traincheck.trace.schema import EVENTS
from traincheck.vocab.events import Call, Change, Window
from traincheck.vocab.facts import Facts

ENTRIES_KEPT = 1 << 16
"""A dictionary that has outgrown this starts anew, so that a job that runs for weeks with ever new values (a norm among
the facts of a result) needs bounded memory; the names in a large model are about a tenth of it."""


class Columns:
    """Turns the windows of one file into columns; a code keeps its meaning until its dictionary starts anew."""

    def __init__(self) -> None:
        self._events = pa.array(EVENTS, pa.utf8())
        self._stage, self._kind, self._name, self._receiver, self._site = (Texts() for _ in range(5))
        self._attribute, self._before, self._after = (Texts() for _ in range(3))
        self._levels = Texts(levels_to_text)
        self._context, self._args, self._result = (FactTexts(str) for _ in range(3))

    def of(self, window: Window) -> list[pa.Array]:
        """The columns of `window`, in the order of the schema."""
        n, m = len(window.calls), len(window.changes)
        total = 1 + n + m
        every, events, calls, changes = (
            Rows(*at, total) for at in ((0, total), (1, total), (1, 1 + n), (1 + n, total))
        )
        call = _turned(Call._fields, window.calls)
        change = _turned(Change._fields, window.changes)
        event = pa.Array.from_buffers(pa.int8(), total, [None, pa.py_buffer(b"\0" + b"\1" * n + b"\2" * m)])
        names = tuple(map(itemgetter(0), call["levels"]))
        return [
            every.int32((window.index,) * total),
            every.int64((window.step,) * total),
            self._stage.column(every, (window.stage,) * total),
            pa.DictionaryArray.from_arrays(event, self._events, safe=False),
            events.int64(call["seq"] + change["seq"]),
            calls.int64(call["end"]),
            events.int64(call["parent"] + change["call"]),
            self._kind.column(events, call["kind"] + change["kind"]),
            self._name.column(events, names + change["variable"]),
            self._levels.column(calls, call["levels"]),
            self._receiver.column(events, call["receiver"] + change["owner"]),
            self._site.column(calls, call["site"]),
            self._context.column(events, call["context"] + change["context"]),
            self._args.column(calls, call["args"]),
            self._result.column(calls, call["result"]),
            calls.int32(call["thread"]),
            self._attribute.column(changes, change["attribute"]),
            self._before.column(changes, change["before"]),
            self._after.column(changes, change["after"]),
            changes.objects(pa.bool_(), change["changed"]),
            changes.objects(pa.uint64(), change["fingerprint"]),
        ]


def _turned(fields: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> dict[str, tuple[Any, ...]]:
    """The values of each field over all rows."""
    return dict(zip(fields, zip(*rows, strict=True) if rows else [()] * len(fields), strict=True))


class Rows:
    """Rows `start` to `stop` of a window of `total` rows: all that some columns have a value in."""

    def __init__(self, start: int, stop: int, total: int) -> None:
        self.place = (start, stop, total)
        bits = (1 << stop) - (1 << start)
        self._validity = None if stop - start == total else pa.py_buffer(bits.to_bytes((total + 7) // 8, "little"))

    def int64(self, values: Iterable[int]) -> pa.Array:
        """A column with `values` in these rows and null elsewhere."""
        return self._numbers(pa.int64(), "q", values)

    def int32(self, values: Iterable[int]) -> pa.Array:
        """As `int64`, in half the space."""
        return self._numbers(pa.int32(), "i", values)

    def objects(self, kind: pa.DataType, values: Iterable[Any]) -> pa.Array:
        """As `int64`, for kinds that are packed in bits or have nulls of their own."""
        start, stop, total = self.place
        return pa.concat_arrays([pa.nulls(start, kind), pa.array(values, kind), pa.nulls(total - stop, kind)])

    def _numbers(self, kind: pa.DataType, letter: str, values: Iterable[int]) -> pa.Array:
        start, stop, total = self.place
        width = struct.calcsize(letter)
        filled = struct.pack(f"={stop - start}{letter}", *values)  # five times faster than pa.array
        data = bytes(width * start) + filled + bytes(width * (total - stop))
        return pa.Array.from_buffers(kind, total, [self._validity, pa.py_buffer(data)])


class Texts(dict[Any, int]):
    """The dictionary of one column: the code of each value, given at first sight, and the texts that codes stand for.

    Two ways of being fast: looking up a value that is known runs no Python code, and a window that has the same values
    in the same rows as the one before, as training steps mostly do, gets the same column.
    """

    def __init__(self, tell: Callable[[Any], str] = valid) -> None:
        self._tell = tell
        self._begin()

    def _begin(self) -> None:
        self.clear()
        self._new: list[str] = []
        self._dictionary = pa.array([], pa.utf8())
        self._last: tuple[Any, ...] = ()
        self._last_place: tuple[int, int, int] | None = None
        self._column: pa.DictionaryArray | None = None

    def __missing__(self, value: Any) -> int:
        text = self._tell(value)
        code = self[value] = len(self)
        self._new.append(text)
        return code

    def column(self, rows: Rows, values: tuple[Any, ...]) -> pa.DictionaryArray:
        """A column with `values` in these rows and null elsewhere."""
        if self._column is None or rows.place != self._last_place or not self._same(values):
            if len(self) > ENTRIES_KEPT:
                self._begin()
            codes = rows.int32(self._codes(values))
            if self._new:  # otherwise the dictionary stays the same object, and Arrow writes nothing for it
                self._dictionary = pa.concat_arrays([self._dictionary, pa.array(self._new, pa.utf8())])
                self._new = []
            self._column = pa.DictionaryArray.from_arrays(codes, self._dictionary, safe=False)
            self._last, self._last_place = values, rows.place
        return self._column

    def _codes(self, values: tuple[Any, ...]) -> Iterable[int]:
        return map(self.__getitem__, values)

    def _same(self, values: tuple[Any, ...]) -> bool:
        return values == self._last


class FactTexts(Texts):
    """The dictionary of a column of facts.

    The code belongs to the text, not to the tuple: (("n", 1),) and (("n", True),) are equal and yet two things. Equal
    circumstances are mostly one object, so that few tuples of a window have to be told.
    """

    def _codes(self, values: tuple[Facts, ...]) -> Iterable[int]:
        distinct = dict(zip(map(id, values), values, strict=True))
        code_of = {key: self[facts_to_text(facts)] for key, facts in distinct.items()}
        return map(code_of.__getitem__, map(id, values))

    def _same(self, values: tuple[Facts, ...]) -> bool:
        return len(values) == len(self._last) and all(map(operator.is_, values, self._last))
