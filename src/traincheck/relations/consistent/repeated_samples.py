"""How many samples of a pass come twice, and how many of an evaluation were trained on: what good runs never did is a
violation.

If each worker of a loader reads all data, a pass has each sample several times, in batches that differ. If a cache or
a split returns the wrong part, the evaluation gets samples of the training. Both may be meant, and data sets hold some
samples twice. So a share is one of two kinds, with a gap between them that is not judged.

Each pass that begins ends the one before it. After a gap nothing is said any more: a sample may have come in the gap.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter

from traincheck.relations.parts import FORWARD, ITER, Part, named
from traincheck.vocab.demand import MODULE_SAMPLES, Demand
from traincheck.vocab.events import END, NO_CALL, Call, Reading, Window
from traincheck.vocab.facts import value_of
from traincheck.vocab.occasion import Occasion, Property, Subject
from traincheck.vocab.properties import SAMPLES_ARE

OF_PASS, OF_EVALUATION = "samples of a pass of", "samples of an evaluation of"
ONCE, TWICE = "nearly all come once", "half of them or more come again"
NEW, TRAINED_ON = "some of them were not trained on", "all of them were trained on"

FEW_AGAIN, MANY_AGAIN = 0.25, 0.45
"""Shares of the samples of a pass that came before in it. With two workers that read all data, it is one half."""
SOME_TRAINED, ALL_TRAINED = 0.7, 0.99
"""Shares of the samples of an evaluation. Short texts and tables have many rows in common."""

MIN_SAMPLES = 32
MAX_SAMPLES = 500_000
"""Samples of a model that are remembered. With more, nothing is said any more."""
DIGITS = 8
"""Hexadecimal digits of a sample in a reading."""


class _Model:
    """The samples of one model: those of the training, those of the pass, and counts of the pass and the evaluation."""

    def __init__(self) -> None:
        self.trained: set[str] = set()
        self.of_pass: set[str] = set()
        self.passed = self.again = 0
        self.evaluated = self.known = 0

    def train(self, samples: list[str]) -> None:
        """Count the samples of a batch that the model learns from."""
        self.passed += len(samples)
        known = len(self.of_pass)
        self.of_pass.update(samples)
        self.again += len(samples) - (len(self.of_pass) - known)
        self.trained.update(samples)

    def evaluate(self, samples: list[str]) -> None:
        """Count the samples of a batch that the model is evaluated on."""
        self.evaluated += len(samples)
        self.known += sum(sample in self.trained for sample in samples)


class RepeatedSamples(Part):
    """Yields an occasion for each pass and for each evaluation of a model that ends."""

    def __init__(self) -> None:
        self._models: dict[str, _Model] = {}
        self._complete = True

    def occasions(self, window: Window) -> Iterator[Occasion]:
        if not self._complete:
            return
        events: list[tuple[int, Call | Reading]] = [
            *((call.seq, call) for call in window.calls if call.levels[-1] == ITER),
            *((reading.call, reading) for reading in window.readings if named(reading) == MODULE_SAMPLES),
        ]
        for _, event in sorted(events, key=itemgetter(0)):
            if isinstance(event, Call):
                yield from self._end_all(event.seq)
            else:
                yield from self._add(event)
        if window.stage == END:
            yield from self._end_all(NO_CALL)

    def _add(self, reading: Reading) -> Iterator[Occasion]:
        name, text = reading.variable.partition("#")[0], str(reading.value)
        model = self._models.setdefault(reading.variable, _Model())
        samples = [text[start : start + DIGITS] for start in range(0, len(text), DIGITS)]
        if value_of(reading.context, "learns"):
            yield from _end_evaluation(name, model, reading.call)
            model.train(samples)
            if len(model.trained) > MAX_SAMPLES:
                self.forget()
        else:
            model.evaluate(samples)

    def _end_all(self, seq: int) -> Iterator[Occasion]:
        for variable, model in self._models.items():
            name = variable.partition("#")[0]
            yield from _end_evaluation(name, model, seq)
            if model.passed >= MIN_SAMPLES:
                share = model.again / model.passed
                kind = ONCE if share <= FEW_AGAIN else TWICE if share >= MANY_AGAIN else ""
                yield from _occasion(f"{OF_PASS} {name}", kind, seq)
            model.of_pass, model.passed, model.again = set(), 0, 0

    def forget(self) -> None:
        """Samples of the steps that were not seen may come again."""
        self._complete = False
        self._models.clear()

    @staticmethod
    def speaks_of(subject: Subject) -> bool:
        return subject.api == MODULE_SAMPLES

    @staticmethod
    def needs(subject: Subject, prop: Property) -> Demand:
        return Demand.of_calls(FORWARD, ITER) | Demand.of_readings(MODULE_SAMPLES)

    @staticmethod
    def describe(subject: Subject, prop: Property) -> str:
        return f"the {subject.grain} are new, or came before, as in good runs"


def _end_evaluation(name: str, model: _Model, seq: int) -> Iterator[Occasion]:
    if model.evaluated >= MIN_SAMPLES and len(model.trained) >= MIN_SAMPLES:
        share = model.known / model.evaluated
        kind = NEW if share <= SOME_TRAINED else TRAINED_ON if share >= ALL_TRAINED else ""
        yield from _occasion(f"{OF_EVALUATION} {name}", kind, seq)
    model.evaluated = model.known = 0


def _occasion(grain: str, kind: str, seq: int) -> Iterator[Occasion]:
    if kind:
        held = frozenset((Property(SAMPLES_ARE, MODULE_SAMPLES, kind),))
        yield Occasion(Subject(MODULE_SAMPLES, grain), (), held, frozenset(), seq)
