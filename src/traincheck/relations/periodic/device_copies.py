"""Check that the devices of one process hold the same copies of an array that is replicated on them.

A source reports arrays whose copies differ (sources/jax/updates.py). The rule needs no good run (builtin_rules.py). So
an occasion arises only if the rule fails, and nothing is learned from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from traincheck.relations.base import context_of, outcome_of
from traincheck.relations.parts import ReadingPart, named
from traincheck.vocab.builtin_rules import COPIES, DEVICES, SAME_COPIES, sentence_of
from traincheck.vocab.events import Window
from traincheck.vocab.occasion import Occasion, Property, Subject


class DeviceCopies(ReadingPart):
    """See the module."""

    grain: ClassVar[str] = DEVICES

    def occasions(self, window: Window) -> Iterator[Occasion]:
        """Yield an occasion for each update before which copies of its arrays differed."""
        names_by_call: dict[int, list[str]] = {}
        for reading in window.readings:
            if named(reading) == COPIES:
                names_by_call.setdefault(reading.call, []).append(reading.variable)
        for call, names in names_by_call.items():
            subject, context = Subject(COPIES, DEVICES), context_of((), window.stage)
            yield Occasion(subject, context, *outcome_of(SAME_COPIES, False), call, tuple(names))

    @staticmethod
    def describe(subject: Subject, prop: Property) -> str:
        return sentence_of(subject, prop)
