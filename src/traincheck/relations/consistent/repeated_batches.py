"""Whether the batches of a model repeat, and in which way: what good runs never did is a violation.

A shuffled pass has no batch twice, and no batch of the last pass. Data in a fixed order, without random changes, has
the batches of the first pass in each later one. A loop that fetches the same batch again and again has one for all
steps. Each may be meant; a program that never did it in good runs does not mean it.

A pass begins where a data loader begins one. Batches of later passes are judged apart: good runs of one pass say
nothing about a second one. After a gap nothing is said any more, because a batch may have come in the gap.
"""

from __future__ import annotations

from collections.abc import Iterator

from traincheck.relations.parts import FORWARD, ITER, Part, named
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import TRAIN, Window
from traincheck.vocab.occasion import Occasion, Property, Subject
from traincheck.vocab.properties import BATCH_IS

CONTENT = "module.content"

FIRST, LATER = "batches of the first pass", "batches of later passes"
NEW, AS_LAST, AS_EARLIER, AS_BEFORE = (
    "the batch is new",
    "the batch is the last one again",
    "the batch is an earlier one again",
    "the batch is one of the last pass",
)

MAX_REMEMBERED = 20_000


class RepeatedBatches(Part):
    """Follows the batches of each model through the passes of a run."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}
        self._of_pass: dict[str, set[int]] = {}
        self._of_last_pass: dict[str, set[int]] = {}
        self._complete = True

    def occasions(self, window: Window) -> Iterator[Occasion]:
        if not self._complete:
            return
        passes = [call.seq for call in window.calls if call.levels[-1] == ITER]
        for reading in window.readings:
            if named(reading) != CONTENT:
                continue
            while passes and passes[0] < reading.call:
                passes.pop(0)
                self._begin_pass()
            if window.stage == TRAIN:
                model = reading.variable.partition("#")[0]
                grain = f"{LATER if self._of_last_pass else FIRST} of {model}"
                held = frozenset((Property(BATCH_IS, CONTENT, self._judge(model, int(str(reading.value)))),))
                yield Occasion(Subject(CONTENT, grain), (), held, frozenset(), reading.call)
        if passes:
            self._begin_pass()

    def _judge(self, model: str, content: int) -> str:
        of_pass = self._of_pass.setdefault(model, set())
        if self._last.get(model) == content:
            kind = AS_LAST
        elif content in of_pass:
            kind = AS_EARLIER
        else:
            kind = AS_BEFORE if content in self._of_last_pass.get(model, ()) else NEW
        self._last[model] = content
        if len(of_pass) < MAX_REMEMBERED:
            of_pass.add(content)
        return kind

    def _begin_pass(self) -> None:
        """A pass in which no model trained (an evaluation) is none."""
        self._of_last_pass |= self._of_pass
        self._of_pass = {}

    def forget(self) -> None:
        """A batch of the steps that were not seen may come again."""
        self._complete = False

    @staticmethod
    def speaks_of(subject: Subject) -> bool:
        return subject.api == CONTENT

    @staticmethod
    def needs(subject: Subject, prop: Property) -> Demand:
        return Demand.of_calls(FORWARD, ITER) | Demand.of_readings(CONTENT)

    @staticmethod
    def describe(subject: Subject, prop: Property) -> str:
        return f"the {subject.grain} repeat, or do not, as in good runs"
