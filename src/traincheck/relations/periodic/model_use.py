"""Check how a program uses the layers of its models.

Note [Layers that do not learn]
* A model is updated or calls a layer that is no part of it (layers in a plain list), and no optimizer holds the
  parameters of a layer, although each backward computes their gradients. If they took the place of parameters that an
  optimizer still holds, then only their own updates count. (If it goes on to update those, the program learns them by
  others that are set for a time, as in meta-learning.)
* A module runs with gradients off, and an optimizer holds its parameters.
* A module makes a layer with parameters, no method of its class mentions it (sources/modules/unused_layers.py), and
  nothing calls it.

Parameters that were loaded may be meant to stay, although nobody said so. So models that load a state are left out,
except for parameters in the place of others that an optimizer holds. A layer counts after two updates. Of several
ranks, each may update a part of the parameters and send it to the others, so the first rule needs a single rank. (Some
programs train a head alone and do not freeze the rest. Then the rest was loaded, for nobody means to keep random
weights and to compute their gradients.)

The rules need no good run (builtin_rules.py). So an occasion arises only if they fail, and nothing is learned from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from traincheck.relations.base import context_of, outcome_of
from traincheck.relations.parts import (
    BACKWARD,
    FORWARD,
    LOAD,
    UPDATE,
    Part,
    calls_of,
    is_in,
    loaded_models,
    named,
    with_gradients,
)
from traincheck.vocab.builtin_rules import (
    GRAD,
    IS_CALLED,
    IS_PART_OF_ITS_MODEL,
    LAYERS,
    LOADED,
    UNUSED_LAYER,
    WITH_GRADIENTS_ON,
    sentence_of,
)
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import MODULE, REPLACED, TRAIN, Call, Change, Window
from traincheck.vocab.facts import value_of
from traincheck.vocab.occasion import Occasion, Property, Subject

RANKS = "run.ranks"

ENOUGH_UPDATES = 2
"""Updates after which a layer is judged."""

MAX_VARIABLES = 100_000
"""A program with more parameters makes them in a loop; further ones are not followed."""


class LayerUse(Part):
    """Follows the layers of a model, see Note [Layers that do not learn]."""

    def __init__(self) -> None:
        self._loaded: set[str] = set()  # models that load a state; their parameters may be meant to stay
        self._of_several = False  # whether other ranks may update a parameter and send it
        self._reported: set[tuple[Property, str]] = set()
        self._filled: set[str] = set()  # parameters that ever got a gradient
        self._written: set[str] = set()
        self._replaced: set[str] = set()  # parameters whose place others took, and that an optimizer holds
        self._with_gradients: set[str] = set()  # modules that were called with gradients on
        self._without: set[str] = set()  # and with gradients off
        self._inside_others: set[str] = set()  # models that were called inside others
        self._unused: set[str] = set()  # layers that no method of their class mentions
        self.forget()

    def forget(self) -> None:
        """Count from zero again. What a layer has ever done excuses it after a gap as well."""
        self._updates = 0
        self._idle: dict[str, int] = {}  # parameters without optimizer: the cycles in which they got a gradient
        self._last_idle: dict[str, int] = {}

    def occasions(self, window: Window) -> Iterator[Occasion]:
        """Yield an occasion for the layers that fail a rule after an update, once for each."""
        self._loaded |= loaded_models(window)
        for reading in window.readings:
            if named(reading) == RANKS and reading.value != 1:
                self._of_several = True
            elif named(reading) == UNUSED_LAYER:
                self._unused.add(reading.variable)
        self._note_modules(window)
        self._note_gradients(window)
        updates = calls_of(window, UPDATE)
        self._updates += len(updates)
        if window.stage != TRAIN or not updates or self._updates < ENOUGH_UPDATES:
            return
        for prop, names in (
            (IS_PART_OF_ITS_MODEL, self._left_out()),
            (WITH_GRADIENTS_ON, self._without_gradients(window)),
            (IS_CALLED, self._uncalled()),
        ):
            new = tuple(name for name in names if (prop, name) not in self._reported and self._should_learn(name))
            if new and len(self._reported) < MAX_VARIABLES:
                self._reported.update((prop, name) for name in new)
                subject, context = Subject(GRAD, LAYERS), context_of((), window.stage)
                yield Occasion(subject, context, *outcome_of(prop, False), updates[-1].seq, new, note=_NOTES[prop])

    def _note_modules(self, window: Window) -> None:
        if window.stage != TRAIN:
            return
        for call in window.calls:
            if call.kind == MODULE and call.receiver not in self._with_gradients:
                self._note_owner(call, window)
                if with_gradients(call):
                    self._with_gradients.add(call.receiver)
                    self._without.discard(call.receiver)
                elif len(self._without) < MAX_VARIABLES:
                    self._without.add(call.receiver)

    def _note_owner(self, call: Call, window: Window) -> None:
        """Note a model that another one calls: it is no part of it, as layers in a plain list."""
        around = next((each for each in window.ancestors(call) if each.kind == MODULE), None)
        if around is not None and _model_of(around.receiver) != _model_of(call.receiver):
            self._inside_others.add(_model_of(call.receiver))

    def _note_gradients(self, window: Window) -> None:
        """Note which parameters get gradients and which are written."""
        for change, positions in window.change_groups:
            if change.kind != "parameter":
                continue
            if value_of(change.context, "owned") is False and value_of(change.context, "held") != "none":
                self._note_replaced(window.variables_at(positions))
            if not change.changed:
                continue
            if change.attribute == "data":
                self._written.update(window.variables_at(positions))
            elif change.after == "some" and _is_backward(window, change) and len(self._filled) < MAX_VARIABLES:
                names = window.variables_at(positions)
                self._filled.update(names)
                if value_of(change.context, "held") == "none" and value_of(change.context, "owned") is True:
                    self._note_idle(names)

    def _note_replaced(self, names: Iterable[str]) -> None:
        """Forget the updates of parameters that are no longer in their place."""
        for name in {name for name in names if name.endswith(REPLACED)} - self._replaced:
            if len(self._replaced) < MAX_VARIABLES:
                self._replaced.add(name)
                self._written.discard(name.removesuffix(REPLACED))

    def _note_idle(self, names: Iterable[str]) -> None:
        for name in names:
            if self._last_idle.get(name) != self._updates:
                self._last_idle[name] = self._updates
                self._idle[name] = self._idle.get(name, 0) + 1

    def _left_out(self) -> Iterator[str]:
        """The parameters that nothing updates, in updated models and in layers that a model calls."""
        idle = [] if self._of_several else [name for name, cycles in self._idle.items() if cycles >= ENOUGH_UPDATES]
        trained = {_model_of(name) for name in self._written} | self._inside_others if idle else set()
        for name in idle:
            if _model_of(name) in trained and not self._written & {name, f"{name}{REPLACED}"}:
                yield name

    def _without_gradients(self, window: Window) -> Iterator[str]:
        """The parameters that an optimizer holds, of modules that were called with gradients off only."""
        for change, positions in window.change_groups if self._without else ():
            if change.kind != "parameter" or change.attribute != "grad" or change.after != "none":
                continue
            frozen = value_of(change.context, "requires_grad") is False  # a teacher, given to the optimizer as well
            if frozen or not _is_backward(window, change) or value_of(change.context, "held") == "none":
                continue
            for name in window.variables_at(positions):
                if name.rpartition(".")[0] in self._without and name not in self._filled:
                    yield name

    def _uncalled(self) -> Iterator[str]:
        """The unused layers that were not called, whose parameters got no gradient, in models that were called."""
        for layer in self._unused:
            if (
                layer.rpartition(".")[0] in self._with_gradients
                and not any(is_in(name, layer) for name in (*self._with_gradients, *self._without))
                and not any(is_in(name, layer) for name in self._filled)
            ):
                yield layer

    def _should_learn(self, name: str) -> bool:
        """Whether a parameter or layer has no state that was loaded, or an optimizer held what was in its place."""
        return not self._loaded or not ({"", _model_of(name)} & self._loaded) or f"{name}{REPLACED}" in self._replaced

    @staticmethod
    def speaks_of(subject: Subject) -> bool:
        return subject.grain == LAYERS

    @staticmethod
    def needs(subject: Subject, prop: Property) -> Demand:
        return Demand.of_calls(LOAD, FORWARD) | Demand.of_readings(RANKS, LOADED, UNUSED_LAYER)

    @staticmethod
    def describe(subject: Subject, prop: Property) -> str:
        return sentence_of(subject, prop)


def _model_of(name: str) -> str:
    """The outermost module of a module or a parameter."""
    return name.partition(".")[0]


def _is_backward(window: Window, change: Change) -> bool:
    """Whether a backward of a loss made a change, and none of an attack on the inputs."""
    call = window.by_seq.get(change.call)
    return call is not None and call.levels[-1] == BACKWARD and value_of(call.result, "leaf_input") is not True


_NOTES = {
    IS_PART_OF_ITS_MODEL: "each backward computes their gradients, no optimizer holds them, and nothing updates them",
    WITH_GRADIENTS_ON: "an optimizer holds these parameters, and their modules were called with gradients off",
    IS_CALLED: "the model makes these layers, and no method of it uses them",
}
