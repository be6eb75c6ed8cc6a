"""Check that an optimizer which continues an earlier one has the settings of that one.

Note [Going on]
A program may save its state, build everything again and go on: after a crash, or between two phases. The step count
reveals such an optimizer: it is above one after the first step. The optimizer continues the last one of the same class
that updated parameters of the same names and had counted as far. Settings that were constant as long as that one
stepped (`initial_lr`, but not the learning rate) have to be the same again. A setting that a restart loses falls back
to its default: the peak rate becomes the current rate.

Known limitations: a run that continues in another process cannot be compared; an optimizer that counts no steps (SGD)
is not recognised as a continuation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from traincheck.relations.base import context_of, outcome_of
from traincheck.relations.parts import UPDATE, Part, calls_of, is_figure, named, number, phrase_for
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import LIVE, Call, Reading, Window
from traincheck.vocab.facts import FactValue
from traincheck.vocab.occasion import Occasion, Property, Subject
from traincheck.vocab.properties import TAKES_OVER

GRAIN = "restart"
STEP, PARAMETER_DATA = "optimizer_state.step", "parameter.data"
_HYPERPARAMETER = "hyperparameter"
_OTHER = ("lr", "keys")
"""Entries of a parameter group that have rules of their own."""

MAX_OPTIMIZERS = 256
"""Programs that build an optimizer in each of many rounds have many. Others continue only the latest."""


@dataclass(slots=True)
class _Optimizer:
    """One optimizer: its settings by (group, attribute), those that varied, and the optimizer that it continues."""

    settings: dict[tuple[str, str], FactValue] = field(default_factory=dict)
    varied: set[tuple[str, str]] = field(default_factory=set)
    parameters: frozenset[str] = frozenset()
    steps: int = 0
    count: float = 0
    before: _Optimizer | None = None
    name_before: str = ""

    def take(self, reading: Reading) -> None:
        key = reading.variable.rpartition(".")[2], reading.attribute
        if key in self.settings and self.settings[key] != reading.value:
            self.varied.add(key)
        self.settings[key] = reading.value


class Restarts(Part):
    """Follows the settings of all optimizers."""

    def __init__(self) -> None:
        self._from_start = True
        self._optimizers: dict[str, _Optimizer] = {}

    def forget(self) -> None:
        """From now on, the first observed step of an optimizer need not be its first."""
        self._from_start = False
        self._optimizers.clear()

    def occasions(self, window: Window) -> Iterator[Occasion]:
        """Yield one occasion for each setting at each step of an optimizer that continues another."""
        if not self._from_start:
            return
        for call in calls_of(window, UPDATE):
            optimizer = self._optimizers.get(call.receiver)
            if optimizer is None:
                if len(self._optimizers) >= MAX_OPTIMIZERS:
                    del self._optimizers[next(iter(self._optimizers))]
                optimizer = self._optimizers[call.receiver] = _Optimizer()
            for reading in window.readings_of.get(call.seq, ()):
                if reading.role == LIVE and reading.kind == _HYPERPARAMETER and reading.attribute not in _OTHER:
                    optimizer.take(reading)
                elif named(reading) == STEP:
                    optimizer.count = number(reading.value) or 0
            optimizer.steps += 1
            if optimizer.steps == 1:
                self._begins(call, window, optimizer)
            if optimizer.before is not None:
                yield from _judge(optimizer, optimizer.before, call, window)

    def _begins(self, call: Call, window: Window, optimizer: _Optimizer) -> None:
        optimizer.parameters = frozenset(
            _unnumbered(change.variable)
            for change in window.changes_of.get(call.seq, ())
            if change.kind == "parameter" and change.owner == call.receiver
        )
        if optimizer.count <= 1 or not optimizer.parameters:
            return
        for name, earlier in reversed(self._optimizers.items()):
            same_model = _unnumbered(name) == _unnumbered(call.receiver) and earlier.parameters == optimizer.parameters
            if earlier is not optimizer and same_model and earlier.count >= optimizer.count - 1:
                optimizer.before, optimizer.name_before = earlier, name
                earlier.before = None
                return

    @staticmethod
    def speaks_of(subject: Subject) -> bool:
        return subject.grain == GRAIN

    @staticmethod
    def needs(subject: Subject, prop: Property) -> Demand:
        return Demand.of_calls(UPDATE, changes=(PARAMETER_DATA,)) | Demand.of_readings(subject.api, STEP)

    @staticmethod
    def describe(subject: Subject, prop: Property) -> str:
        return f"an optimizer that goes on where another one stopped has the same {phrase_for(subject.api)} as that one"


def _judge(optimizer: _Optimizer, before: _Optimizer, call: Call, window: Window) -> Iterator[Occasion]:
    by_attribute: dict[str, list[tuple[str, bool]]] = {}
    for key, old in before.settings.items():
        if is_figure(old) and key not in before.varied and key in optimizer.settings:
            by_attribute.setdefault(key[1], []).append((key[0], optimizer.settings[key] == old))
    for attribute, results in by_attribute.items():
        quantity = f"{_HYPERPARAMETER}.{attribute}"
        lost = [group for group, same in results if not same]
        note = ""
        if lost:
            key = lost[0], attribute
            note = (
                f"{attribute} of {call.receiver}.{lost[0]} is {optimizer.settings[key]} after the restart, and was "
                f"{before.settings[key]} in {optimizer.name_before} before it"
            )
        yield Occasion(
            Subject(quantity, GRAIN),
            context_of((), window.stage),
            *outcome_of(Property(TAKES_OVER, quantity), not lost),
            call.seq,
            tuple(f"{call.receiver}.{group}" for group in (lost or [group for group, _ in results])),
            note=note,
        )


def _unnumbered(name: str) -> str:
    """A name without the number that separates the second of its class from the first."""
    root, dot, rest = name.partition(".")
    return root.partition("#")[0] + dot + rest
