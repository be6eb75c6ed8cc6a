"""Check the backwards before an optimizer steps: that there are some, and that they are as many as divide their losses.

If a model was called in training mode, with gradients on, and an update followed, then a backward ran in between, or
gradients came about in another way. If neither is true, the backward is missing, or the loss was detached from the
model.

Note [Micro-batches]
A loss that is divided by a number k has the weight of one of k micro-batches. The number alone may mean something else
(a temperature, a mean of two losses), so other updates have to show it: k backwards of one line came before them. Then
two errors are certain: two operations divide each loss by k, or the first update has fewer backwards. The first update
is that of the process, in the first step of training. (The last update of an epoch may have fewer as well, because the
batches end.) An accelerator that divides by k was asked to accumulate, and its context counts the micro-batches. An
update before the kth of them is an error by itself, if it happens twice (sources/gradients/requested_accumulation.py).

Such rules need no good run (builtin_rules.py), so an occasion arises only if they fail.

Known limitations: steps of an optimizer before the first call of the model are not judged, nor is its first update
after a gap. Micro-batches are not judged if several optimizers step by themselves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from traincheck.relations.base import context_of, outcome_of
from traincheck.relations.parts import BACKWARD, FORWARD, NEXT, UPDATE, Part, calls_of, number
from traincheck.vocab.builtin_rules import FROM_ALL_MICRO_BATCHES, GRAD, MICRO_BATCHES, WEIGHED_ONCE, sentence_of
from traincheck.vocab.demand import NOTHING, Demand
from traincheck.vocab.events import MODULE, Call, Window
from traincheck.vocab.facts import FactValue, facts, value_of
from traincheck.vocab.occasion import Occasion, Property, Subject
from traincheck.vocab.properties import LEARNS_FROM

GRAIN = "lesson"
LEARNS = Property(LEARNS_FROM, BACKWARD)

LOAD = "torch.optim.Optimizer.load_state_dict"

MAX_OPTIMIZERS = 10_000
"""Beyond this, a program makes optimizers in a loop. The state is dropped, which bounds memory."""

MAX_BACKWARDS = 100_000
"""Beyond this, backwards since the last update are not counted."""

_FIRST_UPDATES = 2
"""Updates with a single micro-batch that show a missing context: the first one may be made by a counter from 0."""


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


class _MicroBatch(NamedTuple):
    """A backward since the last update: its line, and the number that divides its loss once or twice, or 0."""

    site: str
    divided_by: int
    divided_twice: int


class MicroBatchWeights(Part):
    """Compare the backwards before an update with the number that divides their losses. See Note [Micro-batches]."""

    def __init__(self) -> None:
        self._micro_batches: list[_MicroBatch] = []
        self._reported: set[str] = set()
        self._follows_first = True  # the first updates are still to be judged
        self._first: tuple[_MicroBatch, int, str] | None = None  # a micro-batch of the first update, its step, its user
        self._fetched: Counter[str] = Counter()  # batches up to the first update, by loader
        # After the latest backward, an accelerator updates `early`, or the update is `due`.
        self._accumulation: FactValue = None
        self._single: int | None = 0  # updates after one micro-batch of several, None after any other update

    def forget(self) -> None:
        self._micro_batches = []
        self._follows_first = False
        self._single = None

    def occasions(self, window: Window) -> Iterator[Occasion]:
        """Yield an occasion for an update whose losses were divided by the wrong number, once for each line."""
        others = (LOAD, NEXT) if self._follows_first else ()
        for call in sorted(calls_of(window, BACKWARD, UPDATE, *others), key=_when):
            general = call.levels[-1]
            if general == LOAD:
                self._follows_first = False  # the first update goes on with an earlier run
            elif general == NEXT:
                self._fetched[call.receiver] += 1
            elif general == BACKWARD:
                self._note(call, window)
            elif self._micro_batches:
                micro_batches, self._micro_batches = self._micro_batches, []
                if self._lacks_requested(micro_batches):
                    count = micro_batches[0].divided_by
                    note = f"the accelerator is to accumulate {count} micro-batches and divides each loss by {count}, "
                    note += "and each update follows one backward"
                    yield _weights(window, FROM_ALL_MICRO_BATCHES, call, note)
                if self._is_divided_twice(micro_batches) and call.site not in self._reported:
                    self._reported.add(call.site)
                    note = "each loss since the last update was divided twice by the number of backwards"
                    yield _weights(window, WEIGHED_ONCE, call, note)
                if self._follows_first and self._was_incomplete(micro_batches, call, window):
                    count = len(micro_batches)
                    note = (
                        f"{count} backwards came before this update, and fewer before the first one of the run; each "
                    )
                    yield _weights(window, FROM_ALL_MICRO_BATCHES, call, f"{note}loss is divided by {count}")

    def _note(self, call: Call, window: Window) -> None:
        if any(around.levels[-1] == BACKWARD for around in window.ancestors(call)):
            return  # checkpointing computes a part again
        if self._follows_first and self._first is None and not self._micro_batches:
            around = window.changes_of.get(call.seq, ())
            # Gradients from before the observation: the program had begun to accumulate.
            self._follows_first = all(change.before != "some" for change in around if change.attribute == "grad")
        self._accumulation = value_of(call.result, "accumulation")
        if len(self._micro_batches) < MAX_BACKWARDS:
            numbers = (value_of(call.result, name) for name in ("divided_by", "divided_twice"))
            divisors = (int(number(value) or 0) for value in numbers)
            self._micro_batches.append(_MicroBatch(call.site, *divisors))

    def _lacks_requested(self, micro_batches: list[_MicroBatch]) -> bool:
        """Follow the first two updates; whether each had one of several requested micro-batches."""
        if self._single is None:
            return False
        state = self._accumulation if len(micro_batches) == 1 else None
        is_early = state == "early" or (state is not None and self._single > 0)  # a wrong count comes to k in the end
        self._single = self._single + 1 if is_early else None
        if self._single != _FIRST_UPDATES:
            return False
        self._single = None
        return True

    @staticmethod
    def _is_divided_twice(micro_batches: list[_MicroBatch]) -> bool:
        count = len(micro_batches)
        return count > 1 and all(micro_batch.divided_twice == count for micro_batch in micro_batches)

    def _was_incomplete(self, micro_batches: list[_MicroBatch], update: Call, window: Window) -> bool:
        """Follow the first two updates; whether the first one lacked micro-batches that the second one had."""
        alike, count, divisor = set(micro_batches), len(micro_batches), micro_batches[0].divided_by
        if self._first is None:
            skipped = max(self._fetched.values(), default=0) > count  # a batch without a backward is no micro-batch
            self._follows_first = len(alike) == 1 and count < divisor and window.step == 1 and not skipped
            self._first = micro_batches[0], window.step, update.receiver
            return False
        first, step, user = self._first
        self._follows_first = False
        return alike == {first} and count == divisor and (window.step, update.receiver) == (step + 1, user)

    @staticmethod
    def speaks_of(subject: Subject) -> bool:
        return subject.grain == MICRO_BATCHES

    @staticmethod
    def needs(subject: Subject, prop: Property) -> Demand:
        return NOTHING  # they are judged if other rules need backwards and updates

    @staticmethod
    def describe(subject: Subject, prop: Property) -> str:
        return sentence_of(subject, prop)


def _weights(window: Window, prop: Property, update: Call, note: str) -> Occasion:
    subject, context = Subject(GRAD, MICRO_BATCHES), context_of((), window.stage)
    return Occasion(subject, context, *outcome_of(prop, False), update.seq, site=update.site, note=note)


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
