"""Removes secrets from windows before any other component sees them.

Note [Redacted once]
The pipeline redacts windows in the background, before it writes, checks or sends them to other ranks. So all of these
see the same data. Calls and steps share their facts and names, so the redactor inspects each object once. For a step
like the previous step, it only checks that its objects are cached, with a few calls into C.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any

from traincheck import redaction
from traincheck.runtime.recording.pipeline import Stage
from traincheck.vocab.events import Call, Change, Reading, Window
from traincheck.vocab.facts import Facts

MAX_KEPT = 100_000
"""Size limit of the cache of clean objects. Values that are new in each step would otherwise fill the memory."""

_ARGS, _RESULT, _LEVELS = (Call._fields.index(name) for name in ("args", "result", "levels"))
_CHANGED, _READ = Change._fields.index("variable"), Reading._fields.index("variable")


class _Seen:
    """Caches inspected objects by id, with replacements for objects that hold a secret.

    The cache keeps the objects alive, because Python may reuse the id of a deleted object.
    """

    def __init__(self, clean: Callable[[Any], Any]) -> None:
        self._clean = clean
        self._clean_objects: dict[int, Any] = {}
        self._replacements: dict[int, Any] = {}

    def forget(self) -> None:
        """Clear the cache."""
        self._clean_objects.clear()
        self._replacements.clear()

    def of(self, objects: Iterable[Any]) -> dict[int, Any]:
        """Replacements for objects that hold a secret, by id; empty if there are none."""
        here = list(objects)
        ids = set(map(id, here))
        if len(self._clean_objects) > MAX_KEPT:
            self.forget()
        new = ids.difference(self._clean_objects)
        if new:
            for item in here:
                if id(item) in new and id(item) not in self._clean_objects:
                    self._clean_objects[id(item)] = item
                    clean = self._clean(item)
                    if clean != item:
                        self._replacements[id(item)] = clean
        return {key: self._replacements[key] for key in self._replacements.keys() & ids}


class WindowRedactor:
    """Removes secrets from arguments, results, readings and variable names."""

    def __init__(self) -> None:
        self._facts = _Seen(_clean_facts)
        self._names = _Seen(redaction.text)
        self._levels = _Seen(_clean_levels)
        self._generation = 0
        self._last: tuple[Window, Window] | None = None

    def __call__(self, window: Window) -> Window:
        """The redacted window; the same object if it has no secrets."""
        if self._last is not None and self._last[0] is window:
            return self._last[1]
        generation = redaction.renewed()
        if generation != self._generation:
            self._generation = generation
            self._facts.forget()
            self._names.forget()
        calls = self._calls(window.calls)
        changes = self._named(window.changes, _CHANGED)
        readings = tuple(map(_clean_reading, self._named(window.readings, _READ)))
        same = calls is window.calls and changes is window.changes and readings == window.readings
        objects = window if same else replace(window, calls=calls, changes=changes, readings=readings)
        self._last = window, objects
        return objects

    def _calls(self, calls: tuple[Call, ...]) -> tuple[Call, ...]:
        replacements = {
            **self._facts.of(map(itemgetter(_ARGS), calls)),
            **self._facts.of(map(itemgetter(_RESULT), calls)),
        }
        secret = self._levels.of(map(itemgetter(_LEVELS), calls))
        if not (replacements or secret):
            return calls

        def clean(call: Call) -> Call:
            result = replacements.get(id(call.result), call.result)
            if id(call.levels) in secret:
                result = _all_secret(result)
            return call._replace(args=replacements.get(id(call.args), call.args), result=result)

        return tuple(map(clean, calls))

    def _named(self, events: tuple[Any, ...], index: int) -> tuple[Any, ...]:
        replacements = self._names.of(map(itemgetter(index), events))
        if not replacements:
            return events
        return tuple(event._replace(variable=replacements.get(id(event[index]), event[index])) for event in events)


def without_secrets(stages: Sequence[Stage]) -> list[Stage]:
    """The stages of a pipeline, wrapped so that they get redacted windows. Each window is redacted once."""
    redacted = WindowRedactor()

    def over(work: Callable[[Window], None]) -> Callable[[Window], None]:
        return lambda window: work(redacted(window))

    return [(name, over(work)) for name, work in stages]


def _clean_facts(facts: Facts) -> Facts:
    clean = tuple((name, redaction.value(name, value)) for name, value in facts)
    return facts if clean == facts else clean


def _clean_levels(levels: tuple[str, ...]) -> tuple[str, ...] | None:
    """None if the name says that the call returns a secret (`read_password`), otherwise `levels`."""
    return None if redaction.is_secret(levels[0].rpartition(".")[2]) else levels


def _all_secret(result: Facts) -> Facts:
    return tuple(
        (name, redaction.MARK if name == "value" and isinstance(objects, str) else objects) for name, objects in result
    )


def _clean_reading(reading: Reading) -> Reading:
    if type(reading.value) is not str:
        return reading
    value = redaction.value(reading.attribute, reading.value)
    return reading if value == reading.value else reading._replace(value=value)
