"""What a program trains with (its parameters, modules, batches and checkpoints), and what its evaluations change. What
good runs never showed is a violation.

Sources describe as lines which parameters of a model are trainable, in an optimizer, decayed, shared (see Note [What
people tune] in sources/optimizers/parameter_treatment.py), the classes, buffers and attributes of its modules, what it
is called with, what checkpoints hold, and what an evaluation changes. A program may change all of that while it trains,
by unfreezing layers for example. So a rule knows the lines that some descriptions had, and those that all of them had.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from traincheck.relations.parts import FORWARD, LOAD, UPDATE, ReadingPart, named
from traincheck.vocab.demand import (
    BATCH,
    CHANGED,
    CHECKPOINT,
    ENTRIES,
    EVALUATION,
    FORM,
    MODEL,
    MODULES,
    PARAMETERS,
    WEIGHTS,
    Demand,
)
from traincheck.vocab.events import Reading, Window
from traincheck.vocab.occasion import Occasion, Property, Subject
from traincheck.vocab.properties import (
    BATCH_HAS_FORM,
    CHECKPOINT_HOLDS,
    COPY_IS,
    EVALUATION_CHANGES,
    MODULE_IS,
    TREATS_SO,
)

SAVE = "torch.save"


class _Description(NamedTuple):
    """A kind of description: the verb of its lines, the call around it, and the rule as a sentence about the grain.

    `is_whole` says whether a line can be missing: an evaluation that changes less than others is no error.
    """

    verb: str
    call: str
    sentence: str
    is_whole: bool = True


_DESCRIPTIONS = {
    f"{MODEL}.{PARAMETERS}": _Description(TREATS_SO, UPDATE, "the parameters of {} are treated as in good runs"),
    f"{MODEL}.{MODULES}": _Description(
        MODULE_IS, UPDATE, "the modules of {} have the classes, buffers and attributes of good runs"
    ),
    f"{BATCH}.{FORM}": _Description(BATCH_HAS_FORM, FORWARD, "{} is called with inputs as in good runs"),
    f"{MODEL}.{WEIGHTS}": _Description(
        COPY_IS, LOAD, "the weights of {}, a copy, are to those of the trained model as in good runs", is_whole=False
    ),
    f"{CHECKPOINT}.{ENTRIES}": _Description(CHECKPOINT_HOLDS, SAVE, "{} holds the entries of good runs"),
    f"{EVALUATION}.{CHANGED}": _Description(
        EVALUATION_CHANGES, FORWARD, "nothing changes in {} but what changes in good runs", is_whole=False
    ),
}

DESCRIBED = Demand.of_calls(UPDATE, FORWARD, SAVE, LOAD) | Demand.of_readings(*_DESCRIPTIONS)
"""The demand for all descriptions, see own_runs.py."""


class Descriptions(ReadingPart):
    """Yields up to two occasions for each description: its lines are among those of good runs, and none is missing that
    all of them had."""

    def occasions(self, window: Window) -> Iterator[Occasion]:
        for reading in window.readings:
            quantity = named(reading)
            if quantity in _DESCRIPTIONS:
                grain, lines = _split(reading)
                verb, _, _, is_whole = _DESCRIPTIONS[quantity]
                held = frozenset(Property(verb, quantity, line) for line in lines)
                for failed in (frozenset[Property](), None) if is_whole else (frozenset[Property](),):
                    yield Occasion(Subject(quantity, grain), (), held, failed, reading.call, (reading.variable,))

    @classmethod
    def speaks_of(cls, subject: Subject) -> bool:
        return subject.api in _DESCRIPTIONS

    @staticmethod
    def needs(subject: Subject, prop: Property) -> Demand:
        return Demand.of_calls(_DESCRIPTIONS[subject.api].call) | Demand.of_readings(subject.api)

    @staticmethod
    def describe(subject: Subject, prop: Property) -> str:
        return _DESCRIPTIONS[subject.api].sentence.format(subject.grain)


def _split(reading: Reading) -> tuple[str, list[str]]:
    """What a description is of, in words, and its lines."""
    lines = str(reading.value).split("\n")
    if reading.kind == BATCH:
        model = reading.variable.partition("#")[0]
        return f"model {model} {lines[0]}", lines[1:]
    if reading.kind == EVALUATION:
        return f"{lines[0]} of an evaluation of {reading.variable}", lines[1:]
    return f"{reading.kind} {reading.variable}", lines
