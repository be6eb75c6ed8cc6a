"""Check that a flag which a program sets is one that something reads.

A source reports flags on modules and parameters that nothing reads (sources/modules/unread_settings.py). The rule needs
no good run (builtin_rules.py). So an occasion arises only if it fails, and nothing is learned from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from traincheck.relations.base import context_of, outcome_of
from traincheck.relations.parts import ReadingPart, named
from traincheck.vocab.builtin_rules import FLAGS, UNREAD, UNREAD_IS_READ, sentence_of
from traincheck.vocab.events import Reading, Window
from traincheck.vocab.occasion import Occasion, Property, Subject


class UnreadSettings(ReadingPart):
    """See the module."""

    grain: ClassVar[str] = FLAGS

    def occasions(self, window: Window) -> Iterator[Occasion]:
        """Yield an occasion for each attribute that was set in vain."""
        by_attribute: dict[str, list[Reading]] = {}
        for reading in window.readings:
            if named(reading) == UNREAD:
                by_attribute.setdefault(str(reading.value), []).append(reading)
        for attribute, readings in by_attribute.items():
            names = tuple(reading.variable for reading in readings)
            note = f"the program set {attribute}=False there, and torch reads only requires_grad of parameters"
            subject, context = Subject(UNREAD, FLAGS), context_of((), window.stage)
            yield Occasion(subject, context, *outcome_of(UNREAD_IS_READ, False), readings[0].seq, names, note=note)

    @staticmethod
    def describe(subject: Subject, prop: Property) -> str:
        return sentence_of(subject, prop)
