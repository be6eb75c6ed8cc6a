"""Check how a program uses its models and their layers: in which mode, with which gradients and scores.

Note [The mode of a model]
In evaluation mode dropout does nothing, and batch normalisation uses statistics that it does not update. A model that
was never put into training mode trains without both. The calls in a step show it: the outermost module and everything
in it whose result depends on the mode (`Dropout`, `BatchNorm` ...) are in evaluation mode, and an update changes its
parameters.

A part may be in evaluation mode on purpose: frozen batch normalisation, a model that was loaded. So a model is left out
if it loads a state, or if anything in it depends on the mode and is in training mode. It counts in the second such step
in a row. A layer with a dropout of its own (`LSTM`, `MultiheadAttention`) is not looked at.

A layer that a module makes in its forward is no part of the module, so `eval()` does not reach it: in an evaluation its
dropout is active.

A source sees in autograd whether a sigmoid or a softmax computed the input of a loss with logits (the fact `squashed`,
call_summaries.py).

Note [Layers that do not learn]
* A model is updated or calls a layer that is no part of it (layers in a plain list), and no optimizer holds the
  parameters of a layer, although each backward computes their gradients.
* A module runs with gradients off, and an optimizer holds its parameters.
* A module makes a layer with parameters, no method of its class mentions it (sources/modules/unused_layers.py), and
  nothing calls it.

Parameters that were loaded may be meant to stay, although nobody said so. So models that load a state are left out, and
a layer counts after two updates. Of several ranks, each may update a part of the parameters and send it to the others,
so the first rule needs a single rank. (Some programs train a head alone and do not freeze the rest. The rest was loaded,
for nobody means to keep random weights and to compute their gradients.)

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
    StatelessPart,
    calls_of,
    loaded_models,
    named,
)
from traincheck.vocab.builtin_rules import (
    GRAD,
    IN_MODE_AROUND,
    IN_TRAINING_MODE,
    IS_CALLED,
    IS_PART_OF_ITS_MODEL,
    LAYERS,
    LOADED,
    LOGITS,
    MODE,
    SCORES,
    UNUSED_LAYER,
    WITH_GRADIENTS_ON,
    WITH_LOGITS,
    sentence_of,
)
from traincheck.vocab.demand import ROWS, TENSORS, Demand
from traincheck.vocab.events import FUNCTION, MODULE, TRAIN, Call, Change, Window
from traincheck.vocab.facts import value_of
from traincheck.vocab.occasion import Occasion, Property, Subject

MODULES = ("torch.nn.modules.dropout._DropoutNd.forward", "torch.nn.modules.batchnorm._NormBase.forward")
FUNCTIONS = ("torch.nn.functional.dropout", "torch.nn.functional.batch_norm")

RANKS = "run.ranks"

ENOUGH_UPDATES = 2
"""Updates after which a layer is judged."""

MAX_VARIABLES = 100_000
"""A program with more parameters makes them in a loop; further ones are not followed."""

STEPS = 2
"""Steps in a row in evaluation mode before a model counts."""


class TrainingMode(Part):
    """Counts the steps that each model trains in evaluation mode, see Note [The mode of a model]."""

    def __init__(self) -> None:
        self._loaded: set[str] = set()
        self._steps: dict[str, int] = {}
        self._reported: set[str] = set()

    def forget(self) -> None:
        self._steps.clear()

    def occasions(self, window: Window) -> Iterator[Occasion]:
        """Yield an occasion for each model or layer in the wrong mode, once."""
        yield from self._judge_layers(window)
        self._loaded |= loaded_models(window)
        updates = calls_of(window, UPDATE)
        if window.stage != TRAIN or not updates or "" in self._loaded:
            return
        models = {call.receiver for call in window.calls if _is_model(call)}
        frozen = {model: call for model in models - self._loaded if (call := _evaluating(window, model)) is not None}
        updated = _updated(window) if frozen else set()
        for model in models:
            in_a_row = self._steps.get(model, 0) + 1 if model in frozen and model in updated else 0
            self._steps[model] = in_a_row
            if in_a_row == STEPS and model not in self._reported:
                self._reported.add(model)
                yield Occasion(
                    Subject(FORWARD, MODE),
                    context_of((), window.stage),
                    *outcome_of(IN_TRAINING_MODE, False),
                    updates[-1].seq,
                    site=frozen[model].site,
                    note=f"{model} ran in evaluation mode, and this step updated it",
                )

    def _judge_layers(self, window: Window) -> Iterator[Occasion]:
        """Layers in training mode that evaluating modules make in their forward; one occasion for each line."""
        for call in window.calls:
            if call.kind != MODULE or value_of(call.context, "training") is not True or not _depends_on_mode(call):
                continue
            around = next((each for each in window.ancestors(call) if each.kind == MODULE), None)
            if around is None or value_of(around.context, "training") is not False or call.site in self._reported:
                continue
            if call.receiver.partition(".")[0] == around.receiver.partition(".")[0]:
                continue  # a part of the model, which the program put into training mode
            self._reported.add(call.site)
            yield Occasion(
                Subject(FORWARD, MODE),
                context_of((), window.stage),
                *outcome_of(IN_MODE_AROUND, False),
                call.seq,
                note=f"{call.receiver} was in training mode, and {around.receiver} around it was not",
            )

    @staticmethod
    def speaks_of(subject: Subject) -> bool:
        return subject.grain == MODE

    @staticmethod
    def needs(subject: Subject, prop: Property) -> Demand:
        return Demand.of_calls(FORWARD, LOAD) | Demand.of_readings(LOADED)

    @staticmethod
    def describe(subject: Subject, prop: Property) -> str:
        return sentence_of(subject, prop)


def _is_model(call: Call) -> bool:
    return call.kind == MODULE and value_of(call.context, "outermost") is True and _with_gradients(call)


def _depends_on_mode(call: Call) -> bool:
    return any(level in MODULES for level in call.levels)


def _with_gradients(call: Call) -> bool:
    return value_of(call.context, "grad_mode") == "on"


def _evaluating(window: Window, model: str) -> Call | None:
    """A call inside a model that depends on its mode, if all of them and the model are in evaluation mode."""
    found: Call | None = None
    for call in window.calls:
        if call.kind == MODULE and _with_gradients(call) and _is_in(call.receiver, model):
            depends = _depends_on_mode(call)
            if (depends or call.receiver == model) and value_of(call.context, "training") is not False:
                return None
            found = call if depends else found
        elif call.kind == FUNCTION and call.levels[0] in FUNCTIONS:
            parent = next((around for around in window.ancestors(call) if around.kind == MODULE), None)
            if parent is not None and _is_in(parent.receiver, model):
                if value_of(call.args, "training") is not False:
                    return None
                found = found or call
    return found


def _updated(window: Window) -> set[str]:
    """The models with parameters that an update of this step changed."""
    return {
        change.variable.partition(".")[0]
        for change in window.changes
        if change.kind == "parameter" and change.attribute == "data" and change.changed
    }


def _is_in(name: str, model: str) -> bool:
    return name == model or name.startswith(f"{model}.")


class LayerUse(Part):
    """Follows the layers of a model, see Note [Layers that do not learn]."""

    def __init__(self) -> None:
        self._loaded: set[str] = set()  # models that load a state; their parameters may be meant to stay
        self._of_several = False  # whether other ranks may update a parameter and send it
        self._reported: set[tuple[Property, str]] = set()
        self._begin()

    def _begin(self) -> None:
        self._updates = 0
        self._idle: dict[str, int] = {}  # parameters without optimizer: the cycles in which they got a gradient
        self._last_idle: dict[str, int] = {}
        self._filled: set[str] = set()  # parameters that ever got a gradient
        self._written: set[str] = set()
        self._with_gradients: set[str] = set()  # modules that were called with gradients on
        self._without: set[str] = set()  # and with gradients off
        self._inside_others: set[str] = set()  # models that were called inside others
        self._unused: set[str] = set()  # layers that no method of their class mentions

    def forget(self) -> None:
        self._begin()

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
            new = tuple(name for name in names if (prop, name) not in self._reported and self._is_new(name))
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
                if _with_gradients(call):
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
            if change.kind != "parameter" or not change.changed:
                continue
            if change.attribute == "data":
                self._written.update(window.variables_at(positions))
            elif change.after == "some" and _is_backward(window, change) and len(self._filled) < MAX_VARIABLES:
                names = window.variables_at(positions)
                self._filled.update(names)
                if value_of(change.context, "held") == "none" and value_of(change.context, "owned") is True:
                    self._note_idle(names)

    def _note_idle(self, names: Iterable[str]) -> None:
        for name in names:
            if self._last_idle.get(name) != self._updates:
                self._last_idle[name] = self._updates
                self._idle[name] = self._idle.get(name, 0) + 1

    def _left_out(self) -> Iterator[str]:
        """The parameters that nothing updates, of layers in updated models, or called by a model they are no part of."""
        idle = [] if self._of_several else [name for name, cycles in self._idle.items() if cycles >= ENOUGH_UPDATES]
        trained = {_model_of(name) for name in self._written} | self._inside_others if idle else set()
        for name in idle:
            if _model_of(name) in trained and name not in self._written:
                yield name

    def _without_gradients(self, window: Window) -> Iterator[str]:
        """The parameters that an optimizer holds, of modules that were called with gradients off only."""
        for change, positions in window.change_groups if self._without else ():
            if change.kind != "parameter" or change.attribute != "grad" or change.after != "none":
                continue
            if not _is_backward(window, change) or value_of(change.context, "held") == "none":
                continue
            for name in window.variables_at(positions):
                if name.rpartition(".")[0] in self._without and name not in self._filled:
                    yield name

    def _uncalled(self) -> Iterator[str]:
        """The unused layers that were not called, whose parameters got no gradient, in models that were called."""
        for layer in self._unused:
            if (
                layer.rpartition(".")[0] in self._with_gradients
                and not any(_is_in(name, layer) for name in (*self._with_gradients, *self._without))
                and not any(_is_in(name, layer) for name in self._filled)
            ):
                yield layer

    def _is_new(self, name: str) -> bool:
        """Whether no state was loaded into the model of a parameter or layer."""
        return not self._loaded or not ({"", _model_of(name)} & self._loaded)

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


class SquashedScores(StatelessPart):
    """Scores that were squashed before a loss which squashes them by itself."""

    def occasions(self, window: Window) -> Iterator[Occasion]:
        """Yield an occasion for each loss with squashed scores."""
        for call in calls_of(window, *WITH_LOGITS):
            if any(tensor.role == "input" and value_of(tensor.facts, "squashed") is True for tensor in call.tensors):
                subject, note = Subject(call.levels[-1], LOGITS), "a sigmoid or a softmax computed the input"
                context = context_of((), window.stage)
                yield Occasion(subject, context, *outcome_of(SCORES, False), call.seq, note=note)

    @staticmethod
    def speaks_of(subject: Subject) -> bool:
        return subject.grain == LOGITS

    @staticmethod
    def needs(subject: Subject, prop: Property) -> Demand:
        return Demand.of_calls(subject.api, values=(TENSORS, ROWS))

    @staticmethod
    def describe(subject: Subject, prop: Property) -> str:
        return sentence_of(subject, prop)
