"""Readable traces: windows as a few lines of text, to be written and read by people, in tests above all.

A line is a window, a call (it begins with its kind), a tensor of the call, a change or a reading (its value is JSON);
what is indented below a call happened inside it::

    window train step=1
      lifecycle torch.optim.SGD.zero_grad < torch.optim.Optimizer.zero_grad receiver=SGD site=train.py:10:main
        change Net.fc.weight parameter.grad some -> none changed owner=SGD context={"requires_grad":true}
      module torch.nn.Linear.forward receiver=Net.fc context={"training":true} result={"dtype":"float32"}
        tensor input bfloat16[4,8] storage=~1 facts={"finite":true}
        tensor result float32[4,2] requires_grad storage=~2 fingerprint=17
        reading module.training Net.fc true
        reading parameter.data Net.fc.weight 123 role=saved context={"requires_grad":true}
      lifecycle torch.optim.SGD.step < torch.optim.Optimizer.step raised

Positions (`seq`, `end`, `parent`) follow from order and indentation. They are written out (`seq=3`) only where these
cannot tell them, as in a trace of several threads. A text with white space or quotes in it is a JSON string.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from traincheck.trace.encoding import (
    facts_to_text,
    shaped_to_text,
    text_to_facts,
    text_to_shaped,
    text_to_value,
    value_to_text,
)
from traincheck.vocab.events import CALL_KINDS, LIVE, NO_CALL, Call, Change, Reading, TensorSummary, Window

_BARE = re.compile(r'[^\s"={}<]\S*')
_KEY = re.compile(r"(\w+)=")
_json = json.JSONDecoder()


def to_text(windows: Iterable[Window]) -> str:
    """Return the windows as readable lines; `from_text` returns equal windows."""
    windows = list(windows)
    text = "".join(_window_lines(windows, positions=False))
    if from_text(text) != windows:
        text = "".join(_window_lines(windows, positions=True))
    return text


def from_text(text: str) -> list[Window]:
    """Parse windows from readable lines. Raises ValueError that names an invalid line."""
    parser = _Parser()
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            parser.line(line)
        except (ValueError, IndexError, TypeError) as error:
            raise ValueError(f"line {number} of a readable trace, {line.strip()!r}: {error}") from error
    return parser.windows()


# -- writing -------------------------------------------------------------------------------------------------------


def _window_lines(windows: list[Window], *, positions: bool) -> Iterator[str]:
    for number, window in enumerate(windows):
        fields = _fields(window, "step", "rank", "process")
        yield _line(0, "window", window.stage, *fields, *([f"index={window.index}"] if window.index != number else []))
        depth = {NO_CALL: 0}
        events: list[Call | Change | Reading] = [*window.calls, *window.changes, *window.readings]
        for event in sorted(events, key=lambda event: event.seq):
            if isinstance(event, Call):
                depth[event.seq] = depth.get(event.parent, 0) + 1
                yield _line(depth[event.seq], *_call_words(event, positions))
                for tensor in event.tensors:
                    yield _line(depth[event.seq] + 1, *_tensor_words(tensor))
            else:
                words = _change_words(event) if isinstance(event, Change) else _reading_words(event)
                at = [f"seq={event.seq} parent={event.call}"] if positions else []
                yield _line(depth.get(event.call, 0) + 1, *words, *at)


def _line(depth: int, *words: str) -> str:
    return "  " * depth + " ".join(words) + "\n"


def _call_words(call: Call, positions: bool) -> Iterator[str]:
    yield call.kind
    yield " < ".join(map(_word, call.levels))
    yield from _fields(call, "receiver", "site", "context", "args", "result", "thread")
    if positions:
        yield f"seq={call.seq} end={call.end} parent={call.parent}"
    elif call.end < 0:
        yield "raised"


def _tensor_words(tensor: TensorSummary) -> Iterator[str]:
    yield "tensor"
    yield _word(tensor.role)
    yield _word(shaped_to_text(tensor.dtype, tensor.shape))
    if tensor.requires_grad:
        yield "requires_grad"
    yield from _fields(tensor, "storage", "fingerprint", "facts")


def _reading_words(reading: Reading) -> Iterator[str]:
    yield "reading"
    yield _word(reading.kind + "." + reading.attribute)
    yield _word(reading.variable)
    yield value_to_text(reading.value)
    if reading.role != LIVE:
        yield f"role={_word(reading.role)}"
    yield from _fields(reading, "context")


def _change_words(change: Change) -> Iterator[str]:
    yield "change"
    yield _word(change.variable)
    yield f"{_word(change.kind + '.' + change.attribute)} {_word(change.before)} -> {_word(change.after)}"
    if change.changed:
        yield "changed"
    yield from _fields(change, "owner", "context", "fingerprint")


def _fields(event: Any, *names: str) -> Iterator[str]:
    """name=value for what is not empty."""
    for name in names:
        value = getattr(event, name)
        if isinstance(value, tuple) and value:
            yield f"{name}={facts_to_text(value)}"
        elif value not in ("", (), None) and (value != 0 or name == "fingerprint"):
            yield f"{name}={_word(str(value))}"


def _word(text: str) -> str:
    return text if _BARE.fullmatch(text) and not _KEY.match(text) else json.dumps(text)


# -- reading -------------------------------------------------------------------------------------------------------


class _Line(NamedTuple):
    words: list[str]
    as_written: list[str]
    fields: dict[str, Any]


def _parsed(line: str) -> _Line:
    """Words and name=value pairs; facts become `Facts`, other values stay text."""
    parsed = _Line([], [], {})
    at = 0
    while at < len(line):
        if line[at].isspace():
            at += 1
            continue
        key = _KEY.match(line, at)
        at = key.end() if key else at
        if line[at : at + 1] in ('"', "{"):
            value, end = _json.raw_decode(line, at)
            value = text_to_facts(line[at:end]) if isinstance(value, dict) else value
        else:
            end = at + len(line[at:].split(maxsplit=1)[0])
            value = line[at:end]
        if key:
            parsed.fields[key[1]] = value
        else:
            parsed.words.append(value)
            parsed.as_written.append(line[at:end])
        at = end
    return parsed


class _WindowParts(NamedTuple):
    """The fields of a window and of its events."""

    window: dict[str, Any]
    calls: list[dict[str, Any]]
    changes: list[Change]
    readings: list[Reading]


class _Parser:
    """What was read so far: windows, and the calls that are open at the current indentation."""

    def __init__(self) -> None:
        self._windows: list[_WindowParts] = []
        self._open: list[tuple[int, dict[str, Any]]] = []
        self._seq = itertools.count()

    def line(self, line: str) -> None:
        words, as_written, fields = _parsed(line)
        depth = len(line) - len(line.lstrip())
        self._close(depth if words[0] != "window" else 0)
        if unknown := set(fields) - _FIELDS.get(words[0], _FIELDS_OF_CALLS):
            raise ValueError(f"unknown field {min(unknown)}")
        fields = {name: int(value) if name in _NUMBERS else value for name, value in fields.items()}
        if words[0] == "window":
            window = {"index": len(self._windows), "step": 0, "stage": words[1], **fields}
            self._windows.append(_WindowParts(window, [], [], []))
            return
        if not self._windows:
            raise ValueError("the first line must be a window")
        if words[0] == "tensor":
            if not self._open:
                raise ValueError("a tensor stands below its call")
            self._open[-1][1]["tensors"] += (_tensor(words, fields),)
            return
        around = self._open[-1][1]["seq"] if self._open else NO_CALL
        event = {"seq": next(self._seq), "parent": around, **fields}
        if words[0] == "change":
            self._windows[-1].changes.append(_change(words, event))
        elif words[0] == "reading":
            self._windows[-1].readings.append(_reading(words, as_written, event))
        elif words[0] in CALL_KINDS:
            ends = NO_CALL if words[-1] == "raised" else None
            levels = tuple(word for word in words[1 : -1 if ends else None] if word != "<")
            call = {"kind": words[0], "levels": levels, "end": ends, "tensors": (), **event}
            self._windows[-1].calls.append(call)
            self._open.append((depth, call))
        else:
            raise ValueError(f"it begins with none of window, change, reading, tensor, {', '.join(CALL_KINDS)}")

    def _close(self, depth: int) -> None:
        """End the calls that what follows at this indentation is not inside."""
        while self._open and self._open[-1][0] >= depth:
            call = self._open.pop()[1]
            if call["end"] is None:
                call["end"] = next(self._seq)

    def windows(self) -> list[Window]:
        self._close(0)
        return [
            Window(
                **parts.window,
                calls=tuple(Call(**call) for call in parts.calls),
                changes=tuple(parts.changes),
                readings=tuple(parts.readings),
            )
            for parts in self._windows
        ]


_FIELDS = {
    "window": {"index", "step", "rank", "process"},
    "change": {"parent", *Change._fields},
    "reading": {"seq", "parent", "role", "context"},
    "tensor": {"storage", "fingerprint", "facts"},
}
_FIELDS_OF_CALLS = {*Call._fields} - {"tensors"}
_NUMBERS = ("index", "step", "rank", "process", "seq", "end", "parent", "thread", "fingerprint")


def _change(words: list[str], event: dict[str, Any]) -> Change:
    _, variable, dotted, before, _, after, *rest = words
    kind, attribute = dotted.rsplit(".", 1)
    event["call"] = event.pop("parent")
    values = {"variable": variable, "kind": kind, "attribute": attribute, "before": before, "after": after}
    return Change(**{**values, "changed": rest == ["changed"], **event})


def _reading(words: list[str], as_written: list[str], event: dict[str, Any]) -> Reading:
    _, dotted, variable, _ = words
    kind, attribute = dotted.split(".", 1)  # attributes may have dots: worker.random.python
    event["call"] = event.pop("parent")
    value = text_to_value(as_written[3])  # as it was written: 0.1 is a number, "0.1" a text
    return Reading(variable=variable, kind=kind, attribute=attribute, value=value, **event)


def _tensor(words: list[str], fields: dict[str, Any]) -> TensorSummary:
    _, role, shaped, *rest = words
    if rest not in ([], ["requires_grad"]):
        raise ValueError(f"{' '.join(rest)!r} is not 'requires_grad'")
    return TensorSummary(role, *text_to_shaped(shaped), bool(rest), **fields)
