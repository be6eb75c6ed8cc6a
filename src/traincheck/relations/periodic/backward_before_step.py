"""Lessons: an update has something to learn from.

Where a model was called in training mode, with gradients on, and an update was made after that, a backward ran in
between, or gradients came to be in some other way. If neither is so, what should have made them was left out, or the
loss was cut off from the model.

Known limitations: what an optimizer does before the model was first called is not judged, nor its first update behind
steps that were not watched.
"""

from __future__ import annotations

from collections.abc import Iterator

from traincheck.relations.base import context_of, fate
from traincheck.relations.parts import BACKWARD, FORWARD, UPDATE, calls_of
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import MODULE, Call, Window
from traincheck.vocab.facts import facts, value_of
from traincheck.vocab.occasion import Occasion, Property, Subject

GRAIN = "lesson"
LEARNS = Property("learns from", BACKWARD)

MOST_OPTIMIZERS = 10_000
"""Beyond this a program makes optimizers in a loop; what is known of them is forgotten, so that memory is bounded."""


class Lessons:
    """Follows backwards and calls of models from update to update."""

    def __init__(self) -> None:
        self._from_start = True
        self._clear()

    def _clear(self) -> None:
        self._backwards = self._forwards = 0
        self._known: dict[str, tuple[int, int]] = {}  # of an optimizer: both, up to its last update

    def forget(self) -> None:
        self._from_start = False
        self._clear()

    def occasions(self, window: Window) -> Iterator[Occasion]:
        """One occasion for each update that follows a call of a model in training."""
        told = [
            call for call in calls_of(window, FORWARD) if value_of(call.context, "outermost") is True and _trains(call)
        ]
        for call in sorted([*told, *calls_of(window, BACKWARD, UPDATE)], key=_when):
            general = call.levels[-1]
            if general == BACKWARD:
                self._backwards += 1
            elif general == FORWARD:
                self._forwards += 1
            else:
                yield from self._judge(call, window)

    def _judge(self, call: Call, window: Window) -> Iterator[Occasion]:
        known = self._known.get(call.receiver, (0, 0) if self._from_start else None)
        if len(self._known) >= MOST_OPTIMIZERS:
            self._known.clear()
            self._from_start = False
        self._known[call.receiver] = self._backwards, self._forwards
        if known is None or self._forwards == known[1]:
            return
        found = value_of(call.context, "grads")
        if found is None and self._backwards == known[0]:
            return  # it was not looked at
        learns = self._backwards > known[0] or found not in ("none", "unused")
        yield Occasion(Subject(UPDATE, GRAIN), context_of(facts(), window.stage), *fate(LEARNS, learns), call.seq)

    @staticmethod
    def speaks_of(subject: Subject) -> bool:
        return subject.grain == GRAIN

    @staticmethod
    def needs(subject: Subject, prop: Property) -> Demand:
        return Demand(frozenset((UPDATE, BACKWARD, FORWARD)))

    @staticmethod
    def is_habit(prop: Property) -> bool:
        return False

    @staticmethod
    def describe(subject: Subject, prop: Property) -> str:
        return "between a call of the model in training and an update, a backward runs or gradients are set otherwise"


def _when(call: Call) -> int:
    """An update is made at its end: a closure may run all the rest inside it."""
    return call.end if call.levels[-1] == UPDATE else call.seq


def _trains(call: Call) -> bool:
    """Whether a model, called from outside any other, is called in a way that gradients may come of."""
    told = call.context
    return (
        call.kind == MODULE
        and value_of(told, "parametric") is True
        and value_of(told, "training") is True
        and value_of(told, "grad_mode") == "on"
    )
