"""Whether passes over data loaders go to the end of the data: what good runs never did is a violation.

A loop that begins a new pass in each step, to take its first batch, leaves all of them. The end of a run may cut a pass
anywhere: a limit on steps, an error, Ctrl-C. So a pass that was left counts when the next one over its loader begins.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter

from traincheck.relations.parts import ITER, NEXT, Part, calls_of, named, number
from traincheck.relations.periodic.run_totals import BATCHES, LENGTH, is_whole_pass
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import ANNOUNCED, Call, Reading, Window
from traincheck.vocab.occasion import Occasion, Property, Subject
from traincheck.vocab.properties import PASS_ENDS

AT_END, BEFORE_END = "the pass goes to the end of the data", "the pass is left before the end of the data"

PASSES = Demand.of_calls(ITER, NEXT) | Demand.of_readings(BATCHES, LENGTH)
"""The demand of these rules: a source reports a pass at the fetch that ends it."""

_GRAIN = "passes over "


class PassEnds(Part):
    """Yields an occasion for each pass that ends. Loaders are known by the order in which the program builds them."""

    def __init__(self) -> None:
        self._lengths: dict[str, float | None] = {}
        self._left: set[str] = set()  # loaders whose last pass was left before its end

    def occasions(self, window: Window) -> Iterator[Occasion]:
        events: list[tuple[int, Call | Reading]] = [(call.end, call) for call in calls_of(window, ITER)]
        events += [(reading.seq, reading) for reading in window.readings if named(reading) in (BATCHES, LENGTH)]
        for _, event in sorted(events, key=itemgetter(0)):
            if isinstance(event, Call):
                if event.receiver in self._left:
                    self._left.remove(event.receiver)
                    yield _occasion(event.receiver, BEFORE_END, event.seq)
            elif event.role == ANNOUNCED:
                self._lengths[event.variable] = number(event.value)
            elif is_whole_pass(event, self._lengths.get(event.variable)):
                yield _occasion(event.variable, AT_END, event.call)
            else:
                self._left.add(event.variable)

    def forget(self) -> None:
        """Windows were dropped. A length that was announced stays as it is."""
        self._left.clear()

    @staticmethod
    def speaks_of(subject: Subject) -> bool:
        return subject.grain.startswith(_GRAIN)

    @staticmethod
    def needs(subject: Subject, prop: Property) -> Demand:
        return PASSES

    @staticmethod
    def describe(subject: Subject, prop: Property) -> str:
        return f"{subject.grain} go to the end of the data, or not, as in good runs"


def _occasion(loader: str, end: str, seq: int) -> Occasion:
    held = frozenset((Property(PASS_ENDS, BATCHES, end),))
    return Occasion(Subject(BATCHES, _GRAIN + loader), (), held, frozenset(), seq, (loader,))
