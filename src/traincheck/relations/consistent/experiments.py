"""Check that a part of a step, computed in a second way, gives what mathematics says.

TrainCheck makes such experiments on request only (`--verify-every`, see sources/verification/). The rules follow from
mathematics, so they need no good run (see builtin_rules.py). An experiment that could not decide is no occasion.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from traincheck.relations.base import context_of, outcome_of
from traincheck.relations.parts import ReadingPart, named, site_of
from traincheck.vocab.events import Window
from traincheck.vocab.facts import value_of
from traincheck.vocab.occasion import Occasion, Property, Subject
from traincheck.vocab.properties import IS_VERIFIED
from traincheck.vocab.verification import AGREES, DISAGREES, EXPERIMENTS, KIND

GRAIN = "experiment"
VERIFIED = Property(IS_VERIFIED, "by a second computation")


class Experiments(ReadingPart):
    """See the module."""

    grain: ClassVar[str] = GRAIN

    def occasions(self, window: Window) -> Iterator[Occasion]:
        """Yield one occasion for each experiment that decided."""
        for reading in window.readings:
            if reading.kind != KIND or reading.attribute not in EXPERIMENTS:
                continue
            if reading.value not in (AGREES, DISAGREES):
                continue
            first, found = (str(value_of(reading.context, fact) or "") for fact in ("first", "found"))
            yield Occasion(
                Subject(named(reading), GRAIN),
                context_of((), window.stage),
                *outcome_of(VERIFIED, reading.value == AGREES),
                reading.seq,
                (first or reading.variable,),
                site_of(reading),
                found if reading.value == DISAGREES else "",
            )

    @staticmethod
    def describe(subject: Subject, prop: Property) -> str:
        return EXPERIMENTS[subject.api.rpartition(".")[2]].sentence
