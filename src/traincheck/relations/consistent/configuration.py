"""Configuration: with which learning rate, batch size, optimizer, model, precision a program is run,
and on how many ranks.

Nothing of it is right or wrong. It is kept for each program, so that a check of a changed run says what was changed.
The groups of an optimizer, the models and the loaders are told apart by the order in which they appear, since their
names say what class they are, which is one of the things that may be changed.
"""

from __future__ import annotations

from collections.abc import Iterator

from traincheck.relations.parts import FORWARD, UPDATE, named, phrase_for
from traincheck.vocab.demand import NOTHING, Demand
from traincheck.vocab.events import LIVE, TRAIN, Reading, Window
from traincheck.vocab.facts import FactValue, value_of
from traincheck.vocab.occasion import Occasion, Property, Subject
from traincheck.vocab.properties import IS

GRAIN = "setting"

MAX_OBJECTS = 16
"""So many groups, models or loaders of a program are told of; more are made by a loop, and no setting of anybody's."""

_SETTINGS_BY_KIND: dict[str, frozenset[str]] = {
    "optimizer": frozenset(("class",)),
    "loader": frozenset(("batch_size", "dataset_size")),
    "module": frozenset(("class", "input", "parameters")),
    "run": frozenset(("ranks",)),
}
PRECISION = "module.autocast"
_API_BY_KIND = {
    "hyperparameter": UPDATE,
    "optimizer": UPDATE,
    "module": FORWARD,
    "loader": "torch.utils.data.DataLoader.__iter__",
}

SETTINGS = Demand.of_calls(*_API_BY_KIND.values()) | Demand.of_readings(
    "hyperparameter.*", *(f"{kind}.{name}" for kind, names in _SETTINGS_BY_KIND.items() for name in sorted(names))
)
"""What must be observed for a run to tell its settings where no rule asks for them: others may be compared with it."""


class Configuration:
    """Tells each setting once, when it is first read."""

    def __init__(self) -> None:
        self._seen: dict[str, dict[str, int]] = {}
        self._from_start = True
        self._trained = False

    def occasions(self, window: Window) -> Iterator[Occasion]:
        """One occasion for each thing that is read for the first time, and for the precision of the first training."""
        if not self._from_start:
            return
        if window.stage == TRAIN and not self._trained:
            self._trained = True
            yield from _precision(window)
        for reading in window.readings:
            if not _is_setting(reading, window):
                continue
            quantity = named(reading)
            order = self._seen.setdefault(quantity, {})
            if reading.variable in order or len(order) >= MAX_OBJECTS:
                continue
            position = order[reading.variable] = len(order) + 1
            held = frozenset((Property(IS, quantity, _written(reading.value)),))
            # `failed` is None: it has no other value.
            yield Occasion(Subject(quantity, f"{GRAIN} {position}"), (), held, None, reading.call, (reading.variable,))

    def forget(self) -> None:
        """Of what comes later it is not known whether it is the first."""
        self._from_start = False

    @staticmethod
    def speaks_of(subject: Subject) -> bool:
        return subject.grain.startswith(GRAIN)

    @staticmethod
    def needs(subject: Subject, prop: Property) -> Demand:
        api = _API_BY_KIND.get(subject.api.partition(".")[0])
        demand = Demand.of_calls(api) if api else NOTHING
        return demand if subject.api == PRECISION else demand | Demand.of_readings(subject.api)

    @staticmethod
    def is_optional_practice(prop: Property) -> bool:
        return False

    @staticmethod
    def describe(subject: Subject, prop: Property) -> str:
        position = subject.grain.removeprefix(f"{GRAIN} ")
        which = "" if position == "1" else f" (number {position})"
        return f"the {phrase_for(subject.api)}{which} is {prop.detail}"


def _precision(window: Window) -> Iterator[Occasion]:
    """What the first model that is called in this window is called under."""
    call = next((call for call in window.calls if call.levels[-1] == FORWARD), None)
    cast = None if call is None else value_of(call.context, "autocast")
    if call is not None and cast is not None:
        held = frozenset((Property(IS, PRECISION, str(cast)),))
        yield Occasion(Subject(PRECISION, f"{GRAIN} 1"), (), held, None, call.seq, (call.receiver,))


def _is_setting(reading: Reading, window: Window) -> bool:
    if reading.role != LIVE:
        return False
    if reading.kind == "hyperparameter":  # what is read when a state is loaded is what another run had
        call = window.by_seq.get(reading.call)
        return reading.attribute != "keys" and call is not None and call.levels[-1] == UPDATE
    return reading.attribute in _SETTINGS_BY_KIND.get(reading.kind, ())


def _written(value: FactValue) -> str:
    if isinstance(value, float) and value.is_integer():
        return str(int(value))  # 1 and 1.0 are one learning rate
    return value if isinstance(value, str) else repr(value)
