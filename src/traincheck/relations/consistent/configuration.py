"""Record the settings of a program: learning rate, batch size, optimizer, model, clipping, precision, number of ranks.

No setting is right or wrong. TrainCheck keeps them for each program, so that a check of a changed run reports the
changes: as notices where people tune them, as errors where three good runs never varied them. Groups of an optimizer,
models and loaders are numbered in their order of appearance: their names contain the class, which is one of the things
that may change.
"""

from __future__ import annotations

from collections.abc import Iterator

from traincheck.relations.parts import FORWARD, ITER, UPDATE, calls_of, named, phrase_for
from traincheck.vocab.demand import NOTHING, Demand
from traincheck.vocab.events import LIVE, TRAIN, Reading, Window
from traincheck.vocab.facts import FactValue, value_of
from traincheck.vocab.occasion import Occasion, Property, Subject
from traincheck.vocab.properties import IS

GRAIN = "setting"
_OF = " of "

MAX_OBJECTS = 16
"""Recorded groups, models or loaders of a program. A loop makes more of them, and these are no settings."""

_SETTINGS_BY_KIND: dict[str, frozenset[str]] = {
    "optimizer": frozenset(("class",)),
    "loader": frozenset(("batch_size", "dataset_size", "sampler", "drop_last")),
    "module": frozenset(("class", "input", "parameters")),
    "run": frozenset(("ranks",)),
}
PRECISION = "module.autocast"
TUNED = frozenset(
    (
        "hyperparameter.lr",
        "hyperparameter.initial_lr",
        "optimizer.class",
        "loader.batch_size",
        "loader.dataset_size",
        "module.class",
        "module.input",
        "module.parameters",
        "run.ranks",
    )
)
"""What people change on purpose: rate, sizes, the optimizer, the model. Others (weight decay, momentum, precision) are
mostly lost by accident."""

CLIPPING = {
    "torch.nn.utils.clip_grad_norm_": ("max_norm", "norm_type"),
    "torch.nn.utils.clip_grad_value_": ("clip_value",),
}
"""The arguments of clipping that are settings."""

_API_BY_KIND = {
    "hyperparameter": UPDATE,
    "optimizer": UPDATE,
    "module": FORWARD,
    "loader": ITER,
}

SETTINGS = Demand.of_calls(*_API_BY_KIND.values(), *CLIPPING) | Demand.of_readings(
    "hyperparameter.*", *(f"{kind}.{name}" for kind, names in _SETTINGS_BY_KIND.items() for name in sorted(names))
)
"""The demand for the settings of a run if no rule requests them: other runs may be compared with it."""


class Configuration:
    """Records each setting once, at its first reading."""

    def __init__(self) -> None:
        self._seen: dict[str, dict[str, int]] = {}
        self._from_start = True
        self._trained = False

    def occasions(self, window: Window) -> Iterator[Occasion]:
        """Yield one occasion for the first reading of each object, and one for the precision of the first training."""
        if not self._from_start:
            return
        if window.stage == TRAIN and not self._trained:
            self._trained = True
            yield from _precision(window)
        yield from self._of_clipping(window)
        for reading in window.readings:
            if not _is_setting(reading, window):
                continue
            quantity = named(reading)
            order = self._seen.setdefault(quantity, {})
            if reading.variable in order or len(order) >= MAX_OBJECTS:
                continue
            position = order[reading.variable] = len(order) + 1
            held = frozenset((Property(IS, quantity, _written(reading.value)),))
            of = f"{_OF}{_optimizer(reading)}" if reading.kind == "hyperparameter" else ""
            subject = Subject(quantity, f"{GRAIN} {position}{of}")
            # `failed` is None: any other value is a violation.
            yield Occasion(subject, (), held, None, reading.call, (reading.variable,))

    def _of_clipping(self, window: Window) -> Iterator[Occasion]:
        for call in calls_of(window, *CLIPPING):
            for name in CLIPPING[call.levels[-1]]:
                quantity, limit = f"clipping.{name}", value_of(call.args, name)
                if limit is not None and quantity not in self._seen:
                    self._seen[quantity] = {call.name: 1}
                    held = frozenset((Property(IS, quantity, _written(limit)),))
                    yield Occasion(Subject(quantity, f"{GRAIN} 1"), (), held, None, call.seq)

    def forget(self) -> None:
        """Stop recording: after a gap, a reading may not be the first."""
        self._from_start = False

    @staticmethod
    def speaks_of(subject: Subject) -> bool:
        return subject.grain.startswith(GRAIN)

    @staticmethod
    def needs(subject: Subject, prop: Property) -> Demand:
        kind, _, attribute = subject.api.partition(".")
        if kind == "clipping":
            return Demand.of_calls(*(api for api, names in CLIPPING.items() if attribute in names))
        api = _API_BY_KIND.get(kind)
        demand = Demand.of_calls(api) if api else NOTHING
        return demand if subject.api == PRECISION else demand | Demand.of_readings(subject.api)

    @staticmethod
    def is_optional_practice(prop: Property) -> bool:
        return prop.verb == IS and prop.object in TUNED

    @staticmethod
    def describe(subject: Subject, prop: Property) -> str:
        position = subject.grain.removeprefix(f"{GRAIN} ").partition(_OF)[0]
        which = "" if position == "1" else f" (number {position})"
        return f"the {phrase_for(subject.api)}{which} is {prop.detail}"


def _precision(window: Window) -> Iterator[Occasion]:
    """The autocast setting of the first model call in this window."""
    call = next((call for call in window.calls if call.levels[-1] == FORWARD), None)
    cast = None if call is None else value_of(call.context, "autocast")
    if call is not None and cast is not None:
        held = frozenset((Property(IS, PRECISION, str(cast)),))
        yield Occasion(Subject(PRECISION, f"{GRAIN} 1"), (), held, None, call.seq, (call.receiver,))


def _optimizer(group: Reading) -> str:
    """The class of the optimizer that has the group. Another class has settings of its own."""
    return group.variable.rpartition(".")[0].partition("#")[0]


def _is_setting(reading: Reading, window: Window) -> bool:
    if reading.role != LIVE:
        return False
    if reading.kind == "hyperparameter":  # readings of a loaded state belong to another run
        call = window.by_seq.get(reading.call)
        return reading.attribute != "keys" and call is not None and call.levels[-1] == UPDATE
    return reading.attribute in _SETTINGS_BY_KIND.get(reading.kind, ())


def _written(value: FactValue) -> str:
    if isinstance(value, float) and value.is_integer():
        return str(int(value))  # 1 and 1.0 are one learning rate
    return value if isinstance(value, str) else repr(value)
