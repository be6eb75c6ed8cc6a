"""Check that an evaluation gives every module its training flag back.

Sources report the flag of a module at the outermost forward where it is first seen or has changed. A forward that
computes gradients in a training step belongs to training, any other to evaluation. Only modules whose flag an
evaluation changed are judged: programs that train with frozen batch norms keep these in evaluation mode all along.
A model that training no longer updates, while it updates something else, may stay in evaluation mode.
"""

from __future__ import annotations

from collections.abc import Iterator

from traincheck.relations.base import context_of
from traincheck.relations.parts import FORWARD, Part, calls_of, is_in, named
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import LIVE, TRAIN, Call, Window
from traincheck.vocab.facts import FactValue, value_of
from traincheck.vocab.occasion import Occasion, Property, Subject
from traincheck.vocab.properties import RESTORES

TRAINING, WEIGHTS = "module.training", "parameter.data"
GRAIN = "evaluation"

MAX_MODULES = 100_000
"""Beyond this, a program makes modules in a loop. The state is dropped, which bounds memory."""


class TrainModeRestored(Part):
    """Follows the training flags of all modules."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self._flags: dict[str, FactValue] = {}
        self._before: dict[str, FactValue] = {}  # of those that an evaluation changed, before it
        self._trained: set[str] = set()  # outermost modules that were called in training
        self._updated: set[str] = set()  # those of them whose parameters were seen to change

    def occasions(self, window: Window) -> Iterator[Occasion]:
        """Yield one occasion at the first training forward of a model after an evaluation in another mode."""
        for call in calls_of(window, FORWARD):
            if value_of(call.context, "outermost") is not True:
                continue
            trains = window.stage == TRAIN and value_of(call.context, "grad_mode") == "on"
            for reading in window.readings_of.get(call.seq, ()):
                if named(reading) == TRAINING and reading.role == LIVE:
                    old = self._flags.get(reading.variable)
                    self._flags[reading.variable] = reading.value
                    is_changed = old is not None and old != reading.value  # else a call of a larger module showed it
                    if not trains and is_changed and call.receiver in self._trained:
                        self._before.setdefault(reading.variable, old)
            if trains:
                self._trained.add(call.receiver)
                is_known = call.receiver in self._updated
                if self._before or not is_known:
                    is_updated = _is_updated(call.receiver, window)
                    if is_updated:
                        self._updated.add(call.receiver)
                    if self._before and (is_updated or not is_known):
                        yield from self._judge(call, window)
        if len(self._flags) > MAX_MODULES:
            self.forget()

    def _judge(self, call: Call, window: Window) -> Iterator[Occasion]:
        own = [name for name in self._before if name == call.receiver or name.startswith(f"{call.receiver}.")]
        outcomes: dict[bool, list[str]] = {}
        for name in own:
            outcomes.setdefault(self._before.pop(name) == self._flags[name], []).append(name)
        prop = frozenset((Property(RESTORES, TRAINING),))
        for restored, names in outcomes.items():
            held, failed = (prop, frozenset[Property]()) if restored else (frozenset[Property](), prop)
            context = context_of((), window.stage)
            yield Occasion(Subject(TRAINING, GRAIN), context, held, failed, call.seq, tuple(names))

    @staticmethod
    def speaks_of(subject: Subject) -> bool:
        return subject.grain == GRAIN

    @staticmethod
    def needs(subject: Subject, prop: Property) -> Demand:
        return Demand.of_calls(FORWARD, changes=(WEIGHTS,)) | Demand.of_readings(TRAINING)

    @staticmethod
    def describe(subject: Subject, prop: Property) -> str:
        return "after an evaluation, every module has the training flag that it had before it"


def _is_updated(model: str, window: Window) -> bool:
    """Whether parameters of the model change in the window."""
    return any(
        change.changed
        and f"{change.kind}.{change.attribute}" == WEIGHTS
        and any(is_in(variable, model) for variable in window.variables_at(positions))
        for change, positions in window.change_groups
    )
