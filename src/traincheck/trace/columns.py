"""Turn windows into the columns of an event file, fast enough to run during training.

Note [Columns during training]: a background thread converts windows to columns, and shares Python's lock with the
training. Each column is therefore converted by one call into C. The call holds the lock for about a millisecond in a
window of 1,800 events. Compression and writing take as long again and do not hold the lock. Only values of readings
and facts of tensors with values are handled individually: readings are few, and reading a value costs far more.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, chain, repeat
from operator import itemgetter
from typing import Any

import pyarrow as pa

from traincheck.trace.encoding import facts_to_text, levels_to_text, placed, split_norm, type_to_text, valid
from traincheck.trace.schema import CALL, CHANGE, EVENTS, READING, TENSOR, WINDOW
from traincheck.vocab.bounded_cache import ObjectCache
from traincheck.vocab.events import Call, Change, Reading, TensorSummary, Window
from traincheck.vocab.facts import Facts

ENTRIES_KEPT = 1 << 12
MAX_WINDOWS = 8
"""A dictionary is reset if it has more than `ENTRIES_KEPT` entries and this many times those of its first window.

Long jobs with ever new values (a loss that is read in each step) therefore need bounded memory and time: a dictionary
that grows is copied as a whole. The names of a large model occur in each window and are seldom written again.
"""


class Columns:
    """Turns the windows of one file into columns; a code keeps its meaning until its dictionary is reset."""

    def __init__(self) -> None:
        self._events = texts(EVENTS)
        self._stage, self._kind, self._name, self._receiver, self._site = (Texts() for _ in range(5))
        self._attribute, self._before, self._after = (Texts() for _ in range(3))
        self._role, self._storage = Texts(), Texts()
        self._levels, self._type, self._value = Texts(levels_to_text), Texts(type_to_text), TextsOfSome()
        self._context, self._args, self._result = (FactTexts(str) for _ in range(3))

    def of(self, window: Window) -> list[pa.Array]:
        """Return the columns of `window`, in the order of the schema."""
        call = _turned(Call._fields, window.calls)
        change = _turned(Change._fields, window.changes)
        reading = _turned(Reading._fields, window.readings)
        names = tuple(map(itemgetter(0), call["levels"]))
        texts, numbers, integers, prints = _unzipped(4, map(placed, reading["attribute"], reading["value"]))
        counts = tuple(map(len, call["tensors"]))
        tensor = _turned(TensorSummary._fields, tuple(chain.from_iterable(call["tensors"])))
        of_call = tuple(chain.from_iterable(map(repeat, call["seq"], counts)))
        types = tuple(zip(tensor["dtype"], tensor["shape"], tensor["requires_grad"], strict=True))
        facts, norms = tensor["facts"], (None,) * len(types)
        if any(facts):
            facts, norms = _unzipped(2, map(split_norm, facts))

        lengths = (1, len(names), len(window.changes), len(window.readings), len(types))
        starts = tuple(accumulate(lengths, initial=0))
        total = starts[-1]

        def rows(first: str, last: str) -> Rows:
            """The rows of these kinds of events and of those between them."""
            return Rows(starts[EVENTS.index(first)], starts[EVENTS.index(last) + 1], total)

        every, below, events = rows(WINDOW, TENSOR), rows(CALL, TENSOR), rows(CALL, READING)
        calls, changes, readings, tensors = (rows(event, event) for event in EVENTS[1:])
        return [
            every.int32((window.index,) * total),
            every.int64((window.step,) * total),
            self._stage.column(every, (window.stage,) * total),
            pa.DictionaryArray.from_arrays(_event_codes(lengths), self._events, safe=False),
            events.int64(call["seq"] + change["seq"] + reading["seq"]),
            calls.int64(call["end"]),
            below.int64(call["parent"] + change["call"] + reading["call"] + of_call),
            self._kind.column(events, call["kind"] + change["kind"] + reading["kind"]),
            self._name.column(events, names + change["variable"] + reading["variable"]),
            self._levels.column(calls, call["levels"]),
            self._receiver.column(rows(CALL, CHANGE), call["receiver"] + change["owner"]),
            self._site.column(calls, call["site"]),
            self._context.column(below, call["context"] + change["context"] + reading["context"] + facts),
            self._args.column(calls, call["args"]),
            self._result.column(calls, call["result"]),
            calls.int32(call["thread"]),
            self._attribute.column(rows(CHANGE, READING), change["attribute"] + reading["attribute"]),
            self._before.column(changes, change["before"]),
            self._after.column(changes, change["after"]),
            changes.bits(change["changed"]),
            rows(CHANGE, TENSOR).uint64(change["fingerprint"] + prints + tensor["fingerprint"]),
            calls.int32(counts),
            self._role.column(rows(READING, TENSOR), reading["role"] + tensor["role"]),
            self._type.column(tensors, types),
            self._storage.column(tensors, tensor["storage"]),
            rows(READING, TENSOR).float64(numbers + norms),
            readings.uint64(integers),
            self._value.column(readings, texts),
        ]


def _event_codes(lengths: Iterable[int]) -> pa.Array:
    """The codes of as many rows of each kind of event, in the order of `EVENTS`."""
    codes = b"".join(bytes((code,)) * length for code, length in enumerate(lengths))
    return pa.Array.from_buffers(pa.int8(), len(codes), [None, pa.py_buffer(codes)])


def _unzipped(width: int, rows: Iterable[tuple[Any, ...]]) -> tuple[tuple[Any, ...], ...]:
    """Return the values of each of `width` positions over all rows."""
    return tuple(zip(*rows, strict=True)) or ((),) * width


def _turned(fields: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> dict[str, tuple[Any, ...]]:
    """Return the values of each field over all rows."""
    return dict(zip(fields, zip(*rows, strict=True) if rows else [()] * len(fields), strict=True))


class Rows:
    """Rows `start` to `stop` of a window of `total` rows: the rows in which some columns have values."""

    def __init__(self, start: int, stop: int, total: int) -> None:
        self.bounds = (start, stop, total)
        bits = (1 << stop) - (1 << start)
        self._validity = None if stop - start == total else pa.py_buffer(bits.to_bytes((total + 7) // 8, "little"))

    def int64(self, values: Iterable[int]) -> pa.Array:
        """Return a column with `values` in these rows and null elsewhere."""
        return self._numbers(pa.int64(), "q", values, self._validity)

    def int32(self, values: Iterable[int]) -> pa.Array:
        """Like `int64`, in half the space."""
        return self._numbers(pa.int32(), "i", values, self._validity)

    def uint64(self, values: Sequence[int | None]) -> pa.Array:
        """Like `int64`, for numbers of which some are None."""
        return self._numbers(pa.uint64(), "Q", *self._filled(values))

    def float64(self, values: Sequence[float | None]) -> pa.Array:
        """Like `uint64`, for floats."""
        return self._numbers(pa.float64(), "d", *self._filled(values))

    def codes(self, values: Sequence[int | None]) -> pa.Array:
        """Like `uint64`, in half the space."""
        return self._numbers(pa.int32(), "i", *self._filled(values))

    def bits(self, values: Iterable[bool]) -> pa.Array:
        """Return a column with truth values in these rows and null elsewhere."""
        return pa.Array.from_buffers(pa.bool_(), self.bounds[2], [self._validity, self._packed(values)])

    def _filled(self, values: Sequence[Any]) -> tuple[Iterable[Any], pa.Buffer | None]:
        """Replace None by 0; return the values, and the bitmap of rows that have a value."""
        if None not in values:
            return values, self._validity
        return [0 if value is None else value for value in values], self._packed(value is not None for value in values)

    def _packed(self, flags: Iterable[bool]) -> pa.Buffer:
        """Return a bit for each row of the window; 0 outside these rows."""
        start, _, total = self.bounds
        bits = int("".join(["1" if flag else "0" for flag in flags])[::-1] or "0", 2) << start
        return pa.py_buffer(bits.to_bytes((total + 7) // 8, "little"))

    def _numbers(self, kind: pa.DataType, letter: str, values: Iterable[Any], validity: pa.Buffer | None) -> pa.Array:
        start, stop, total = self.bounds
        width = struct.calcsize(letter)
        filled = struct.pack(f"={stop - start}{letter}", *values)  # five times faster than pa.array
        data = bytes(width * start) + filled + bytes(width * (total - stop))
        return pa.Array.from_buffers(kind, total, [validity, pa.py_buffer(data)])


def texts(values: Sequence[str]) -> pa.Array:
    """Return an array of these texts.

    `pa.array` checks its argument for pandas objects and imports pandas if it is installed. That would cost half a
    second of CPU time in programs without pandas.
    """
    encoded = [value.encode() for value in values]
    ends = struct.pack(f"={len(encoded) + 1}i", 0, *accumulate(map(len, encoded)))
    return pa.Array.from_buffers(pa.utf8(), len(encoded), [None, pa.py_buffer(ends), pa.py_buffer(b"".join(encoded))])


class Texts(dict[Any, int]):
    """The dictionary of one column: the code of each value, assigned at its first occurrence, and the texts of the
    codes.

    It is fast in two ways. Looking up a known value runs no Python code. A window with the same values in the same rows
    as the previous one, as most training steps have, reuses the column.
    """

    def __init__(self, to_text: Callable[[Any], str] = valid) -> None:
        self._to_text = to_text
        self._begin()

    def _begin(self) -> None:
        self.clear()
        self._new: list[str] = []
        self._most = 0
        self._dictionary = texts(())
        self._last: tuple[Any, ...] = ()
        self._last_bounds: tuple[int, int, int] | None = None
        self._column: pa.DictionaryArray | None = None

    def __missing__(self, value: Any) -> int:
        text = self._to_text(value)
        code = self[value] = len(self)
        self._new.append(text)
        return code

    def column(self, rows: Rows, values: tuple[Any, ...]) -> pa.DictionaryArray:
        """Return a column with `values` in these rows and null elsewhere."""
        if self._column is None or rows.bounds != self._last_bounds or not self._same(values):
            if len(self) > self._most:
                self._begin()
            codes = self._column_of_codes(rows, values)
            if len(self._dictionary) == 0:
                self._most = max(ENTRIES_KEPT, MAX_WINDOWS * len(self))
            if self._new:  # otherwise the dictionary stays the same object, and Arrow writes nothing for it
                self._dictionary = pa.concat_arrays([self._dictionary, texts(self._new)])
                self._new = []
            self._column = pa.DictionaryArray.from_arrays(codes, self._dictionary, safe=False)
            self._last, self._last_bounds = values, rows.bounds
        return self._column

    def _column_of_codes(self, rows: Rows, values: tuple[Any, ...]) -> pa.Array:
        return rows.int32(self._codes(values))

    def _codes(self, values: tuple[Any, ...]) -> Iterable[int]:
        return map(self.__getitem__, values)

    def _same(self, values: tuple[Any, ...]) -> bool:
        return values == self._last


class FactTexts(Texts):
    """The dictionary of a column of facts.

    A code belongs to the text, not to the tuple: (("n", 1),) and (("n", True),) are equal but have different texts.
    Equal facts are mostly one object, so few tuples of a window need to be converted.
    """

    def _begin(self) -> None:
        super()._begin()
        self._code_cache: ObjectCache[int] = ObjectCache()

    def _codes(self, values: tuple[Facts, ...]) -> Iterable[int]:
        distinct = dict(zip(map(id, values), values, strict=True))
        code_of = {key: self._code_of(facts) for key, facts in distinct.items()}
        return map(code_of.__getitem__, map(id, values))

    def _code_of(self, facts: Facts) -> int:
        code = self._code_cache.get(id(facts))
        return self._code_cache.put_for(facts, self[facts_to_text(facts)]) if code is None else code

    def _same(self, values: tuple[Facts, ...]) -> bool:
        return len(values) == len(self._last) and all(map(operator.is_, values, self._last))


class TextsOfSome(Texts):
    """The dictionary of a column with None values, which become null."""

    def _column_of_codes(self, rows: Rows, values: tuple[str | None, ...]) -> pa.Array:
        return rows.codes([None if value is None else self[value] for value in values])
