"""Check that a backward runs before an optimizer steps.

If a model was called in training mode, with gradients on, and an update followed, then a backward ran in between, or
gradients came about in another way. If neither is true, the backward is missing, or the loss was detached from the
model.

Known limitations: steps of an optimizer before the first call of the model are not judged, nor is its first update
after a gap.
"""

from __future__ import annotations

from collections.abc import Iterator

from traincheck.relations.base import context_of, outcome_of
from traincheck.relations.parts import BACKWARD, FORWARD, UPDATE, Part, calls_of
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import MODULE, Call, Window
from traincheck.vocab.facts import facts, value_of
from traincheck.vocab.occasion import Occasion, Property, Subject
from traincheck.vocab.properties import LEARNS_FROM

GRAIN = "lesson"
LEARNS = Property(LEARNS_FROM, BACKWARD)

MAX_OPTIMIZERS = 10_000
"""Beyond this, a program makes optimizers in a loop. The state is dropped, which bounds memory."""


class BackwardBeforeStep(Part):
    """Counts backwards and model calls from update to update."""

    def __init__(self) -> None:
        self._from_start = True
        self._clear()

    def _clear(self) -> None:
        self._backwards = self._forwards = 0
        self._at_last_update: dict[str, tuple[int, int]] = {}  # of an optimizer: both, up to its last update

    def forget(self) -> None:
        self._from_start = False
        self._clear()

    def occasions(self, window: Window) -> Iterator[Occasion]:
        """Yield one occasion for each update that follows a call of a model in training."""
        model_calls = [
            call for call in calls_of(window, FORWARD) if value_of(call.context, "outermost") is True and _trains(call)
        ]
        for call in sorted([*model_calls, *calls_of(window, BACKWARD, UPDATE)], key=_when):
            general = call.levels[-1]
            if general == BACKWARD:
                self._backwards += 1
            elif general == FORWARD:
                self._forwards += 1
            else:
                yield from self._judge(call, window)

    def _judge(self, call: Call, window: Window) -> Iterator[Occasion]:
        counts = self._at_last_update.get(call.receiver, (0, 0) if self._from_start else None)
        if len(self._at_last_update) >= MAX_OPTIMIZERS:
            self._at_last_update.clear()
            self._from_start = False
        self._at_last_update[call.receiver] = self._backwards, self._forwards
        if counts is None or self._forwards == counts[1]:
            return
        grads = value_of(call.context, "grads")
        if grads is None and self._backwards == counts[0]:
            return  # the gradients were not observed
        learns = self._backwards > counts[0] or grads not in ("none", "unused")
        yield Occasion(Subject(UPDATE, GRAIN), context_of(facts(), window.stage), *outcome_of(LEARNS, learns), call.seq)

    @staticmethod
    def speaks_of(subject: Subject) -> bool:
        return subject.grain == GRAIN

    @staticmethod
    def needs(subject: Subject, prop: Property) -> Demand:
        return Demand.of_calls(UPDATE, BACKWARD, FORWARD)

    @staticmethod
    def describe(subject: Subject, prop: Property) -> str:
        return "between a call of the model in training and an update, a backward runs or gradients are set otherwise"


def _when(call: Call) -> int:
    """The position of a call. An update counts at its end: a closure may run everything else inside it."""
    return call.end if call.levels[-1] == UPDATE else call.seq


def _trains(call: Call) -> bool:
    """Whether gradients may come from this call of an outermost model."""
    context = call.context
    return (
        call.kind == MODULE
        and value_of(context, "parametric") is True
        and value_of(context, "training") is True
        and value_of(context, "grad_mode") == "on"
    )
