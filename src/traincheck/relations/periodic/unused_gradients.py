"""Check that an update uses the gradients that a training loop computes.

At the end of the run, a source reports gradients of a model in training mode that were computed repeatedly and that no
update used (sources/optimizers/manual_updates.py). Either an optimizer holds the parameters and never stepped, or there
is no optimizer. A program that only looks at gradients (attribution, adversarial samples, a test of gradients) usually
has no optimizer, and its model is in evaluation mode. A benchmark of the backward may have it in training mode, so the
finding is a notice without an optimizer.

The rules need no good run (builtin_rules.py). So an occasion arises only if they fail, and nothing is learned from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from traincheck.relations.base import context_of, outcome_of
from traincheck.relations.parts import ReadingPart, named, number, site_of
from traincheck.vocab.builtin_rules import IDLE, UNUSED, USE, USED, sentence_of
from traincheck.vocab.events import Window
from traincheck.vocab.occasion import Occasion, Property, Subject


class UnusedGradients(ReadingPart):
    """See the module."""

    grain: ClassVar[str] = USE

    def occasions(self, window: Window) -> Iterator[Occasion]:
        """Yield an occasion for gradients that were not used."""
        for reading in window.readings:
            quantity = named(reading)
            count = number(reading.value) if quantity in (UNUSED, IDLE) else None
            if count is None:
                continue
            note = f"{count:,.0f} backwards ran in this run and no parameter was updated"
            if quantity == IDLE:
                note += f"; {reading.variable} holds parameters that got gradients, and it has never stepped"
            site = site_of(reading)
            subject, context = Subject(quantity, USE), context_of((), window.stage)
            yield Occasion(subject, context, *outcome_of(USED, False), reading.seq, site=site, note=note)

    @staticmethod
    def describe(subject: Subject, prop: Property) -> str:
        return sentence_of(subject, prop)
