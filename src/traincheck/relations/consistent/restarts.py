"""Restarts: an optimizer that goes on where another one stopped has the settings of that one.

Note [Going on]
A program may save its state, build everything anew and go on: after a crash, or between two phases. The new optimizer
then is told by its step count, which is above one after its first step. It goes on for the last optimizer of the same
class that updated parameters of the same names and had counted as far. What was constant as long as that one stepped
(its learning rate is not, `initial_lr` is) has to be so again. A setting that a restart loses comes back as what its
default is made of: a peak rate becomes the rate of the moment.

Known limitations: a run that goes on in another process has nothing to be compared with; an optimizer that counts no
steps (SGD) is not known to go on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from traincheck.relations.base import context_of, fate
from traincheck.relations.parts import UPDATE, calls_of, is_figure, named, number, readings, said
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import LIVE, Call, Reading, Window
from traincheck.vocab.facts import FactValue
from traincheck.vocab.occasion import Occasion, Property, Subject

TAKES_OVER = "takes over"
GRAIN = "restart"
STEP, PARAMETER_DATA = "optimizer_state.step", "parameter.data"
_HYPERPARAMETER = "hyperparameter"
_OTHER = ("lr", "keys")
"""Entries of a parameter group that have rules of their own."""

MOST_OPTIMIZERS = 256
"""Programs that build an optimizer in each of many rounds have many; the latest are those that others go on for."""


@dataclass(slots=True)
class _Optimizer:
    """One optimizer: its settings by (group, attribute), those that varied, and for which one it goes on."""

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


class Restarts:
    """Follows the settings of all optimizers."""

    def __init__(self) -> None:
        self._from_start = True
        self._known: dict[str, _Optimizer] = {}

    def forget(self) -> None:
        """From now on the first step that is seen of an optimizer need not be its first."""
        self._from_start = False
        self._known.clear()

    def occasions(self, window: Window) -> Iterator[Occasion]:
        """One occasion for each setting at each step of an optimizer that goes on for another."""
        if not self._from_start:
            return
        for call in calls_of(window, UPDATE):
            known = self._known.get(call.receiver)
            if known is None:
                if len(self._known) >= MOST_OPTIMIZERS:
                    del self._known[next(iter(self._known))]
                known = self._known[call.receiver] = _Optimizer()
            for reading in window.readings_of.get(call.seq, ()):
                if reading.role == LIVE and reading.kind == _HYPERPARAMETER and reading.attribute not in _OTHER:
                    known.take(reading)
                elif named(reading) == STEP:
                    known.count = number(reading.value) or 0
            known.steps += 1
            if known.steps == 1:
                self._begins(call, window, known)
            if known.before is not None:
                yield from _judge(known, known.before, call, window)

    def _begins(self, call: Call, window: Window, known: _Optimizer) -> None:
        known.parameters = frozenset(
            _unnumbered(change.variable)
            for change in window.changes_of.get(call.seq, ())
            if change.kind == "parameter" and change.owner == call.receiver
        )
        if known.count <= 1 or not known.parameters:
            return
        for name, other in reversed(self._known.items()):
            alike = _unnumbered(name) == _unnumbered(call.receiver) and other.parameters == known.parameters
            if other is not known and alike and other.count >= known.count - 1:
                known.before, known.name_before = other, name
                other.before = None
                return

    @staticmethod
    def speaks_of(subject: Subject) -> bool:
        return subject.grain == GRAIN

    @staticmethod
    def needs(subject: Subject, prop: Property) -> Demand:
        return Demand(frozenset((UPDATE,)), readings(subject.api, STEP) | {(UPDATE, PARAMETER_DATA)})

    @staticmethod
    def is_habit(prop: Property) -> bool:
        return False

    @staticmethod
    def describe(subject: Subject, prop: Property) -> str:
        return f"an optimizer that goes on where another one stopped has the same {said(subject.api)} as that one"


def _judge(known: _Optimizer, before: _Optimizer, call: Call, window: Window) -> Iterator[Occasion]:
    by_attribute: dict[str, list[tuple[str, bool]]] = {}
    for key, old in before.settings.items():
        if is_figure(old) and key not in before.varied and key in known.settings:
            by_attribute.setdefault(key[1], []).append((key[0], known.settings[key] == old))
    for attribute, fates in by_attribute.items():
        thing = f"{_HYPERPARAMETER}.{attribute}"
        lost = [group for group, so in fates if not so]
        note = ""
        if lost:
            key = lost[0], attribute
            note = (
                f"{attribute} of {call.receiver}.{lost[0]} is {known.settings[key]} after the restart, and was "
                f"{before.settings[key]} in {known.name_before} before it"
            )
        yield Occasion(
            Subject(thing, GRAIN),
            context_of((), window.stage),
            *fate(Property(TAKES_OVER, thing), not lost),
            call.seq,
            tuple(f"{call.receiver}.{group}" for group in (lost or [group for group, _ in fates])),
            note=note,
        )


def _unnumbered(name: str) -> str:
    """A name without the number that tells the second of its class from the first."""
    root, dot, rest = name.partition(".")
    return root.partition("#")[0] + dot + rest
