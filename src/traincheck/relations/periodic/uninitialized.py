"""Check that memory which `Module.to_empty` allocated is written before the model computes with it.

A source reports parameters that still hold the old contents of their memory when the model is first called
(sources/modules/construction.py). The rule needs no good run (builtin_rules.py). So an occasion arises only if the rule
fails, and nothing is learned from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from traincheck.relations.base import context_of, outcome_of
from traincheck.relations.parts import ReadingPart, named, site_of
from traincheck.vocab.builtin_rules import FIRST_USE, MEMORY, WRITTEN, sentence_of
from traincheck.vocab.events import Reading, Window
from traincheck.vocab.occasion import Occasion, Property, Subject


class Uninitialized(ReadingPart):
    """See the module."""

    grain: ClassVar[str] = FIRST_USE

    def occasions(self, window: Window) -> Iterator[Occasion]:
        """Yield an occasion for each call of `to_empty` after which parameters were not written."""
        by_site: dict[str, list[Reading]] = {}
        for reading in window.readings:
            if named(reading) == MEMORY:
                by_site.setdefault(site_of(reading), []).append(reading)
        for site, unwritten in by_site.items():
            names = tuple(reading.variable for reading in unwritten)
            note = f"{len(names)} parameters have the contents that to_empty() left in their memory"
            subject, context = Subject(MEMORY, FIRST_USE), context_of((), window.stage)
            yield Occasion(subject, context, *outcome_of(WRITTEN, False), unwritten[0].seq, names, site=site, note=note)

    @staticmethod
    def describe(subject: Subject, prop: Property) -> str:
        return sentence_of(subject, prop)
