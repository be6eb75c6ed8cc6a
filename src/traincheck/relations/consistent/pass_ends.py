"""Whether passes over data loaders go to the end of the data: what good runs never did is a violation.

A loop that begins a new pass in each step, to take its first batch, leaves all of them. The end of the run may cut a
pass anywhere, so its last pass says nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from traincheck.relations.parts import named, number
from traincheck.relations.periodic.run_totals import BATCHES, ITER, LENGTH, NEXT
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import ANNOUNCED, END, Window
from traincheck.vocab.facts import value_of
from traincheck.vocab.occasion import Occasion, Property, Subject
from traincheck.vocab.properties import PASS_ENDS

AT_END, BEFORE_END = "the pass goes to the end of the data", "the pass is left before the end of the data"

PASSES = Demand.of_calls(ITER, NEXT) | Demand.of_readings(BATCHES, LENGTH)
"""The demand of these rules: a source reports a pass at the fetch that ends it."""

_GRAIN = "passes over "


class PassEnds:
    """Yields an occasion for each pass that ends. Loaders are known by the order in which the program builds them."""

    def __init__(self) -> None:
        self._lengths: dict[str, float | None] = {}

    def occasions(self, window: Window) -> Iterator[Occasion]:
        for reading in window.readings:
            quantity, loader = named(reading), reading.variable
            if quantity == LENGTH and reading.role == ANNOUNCED:
                self._lengths[loader] = number(reading.value)
            elif quantity == BATCHES and window.stage != END:
                batches, length = number(reading.value), self._lengths.get(loader)
                whole = batches is not None and length is not None and batches >= length
                whole = whole or value_of(reading.context, "last_batch") is True
                held = frozenset((Property(PASS_ENDS, BATCHES, AT_END if whole else BEFORE_END),))
                yield Occasion(Subject(BATCHES, _GRAIN + loader), (), held, frozenset(), reading.call, (loader,))

    def forget(self) -> None:
        """A length that was announced stays as it is."""

    @staticmethod
    def speaks_of(subject: Subject) -> bool:
        return subject.grain.startswith(_GRAIN)

    @staticmethod
    def needs(subject: Subject, prop: Property) -> Demand:
        return PASSES

    @staticmethod
    def is_optional_practice(prop: Property) -> bool:
        return False

    @staticmethod
    def describe(subject: Subject, prop: Property) -> str:
        return f"{subject.grain} go to the end of the data, or not, as in good runs"
