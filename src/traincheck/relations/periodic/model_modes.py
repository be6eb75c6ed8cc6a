"""Check in which mode a program trains and evaluates its models.

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

In training mode an evaluation is random, and it moves the statistics of batch normalisation. Calls of a trained model
are an evaluation if several follow each other with gradients off, and their batches come from a loader that no training
step uses: a loop over the training data may set the statistics on purpose (SWA). Without a loader, only dropout counts.
A source looks for layers that are active then (sources/modules/module_state.py).

The rules need no good run (builtin_rules.py). So an occasion arises only if they fail, and nothing is learned from it.
"""

from __future__ import annotations

from collections.abc import Iterator

from traincheck.relations.base import context_of, outcome_of
from traincheck.relations.parts import (
    FORWARD,
    KEPT_LOADERS,
    LOAD,
    NEXT,
    UPDATE,
    Part,
    calls_of,
    is_in,
    loaded_models,
    named,
    with_gradients,
)
from traincheck.vocab.builtin_rules import (
    ACTIVE_DROPOUT,
    ACTIVE_LAYERS,
    EVALUATION,
    IN_EVALUATION_MODE,
    IN_MODE_AROUND,
    IN_TRAINING_MODE,
    LOADED,
    MODE,
    sentence_of,
)
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import FUNCTION, MODULE, TRAIN, Call, Window
from traincheck.vocab.facts import value_of
from traincheck.vocab.occasion import Occasion, Property, Subject

MODULES = ("torch.nn.modules.dropout._DropoutNd.forward", "torch.nn.modules.batchnorm._NormBase.forward")
FUNCTIONS = ("torch.nn.functional.dropout", "torch.nn.functional.batch_norm")

STEPS = 2
"""Steps in a row in evaluation mode before a model counts."""

ENOUGH_CALLS = 2
"""Calls of a model in a row, with gradients off, that count as an evaluation."""


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
    return call.kind == MODULE and value_of(call.context, "outermost") is True and with_gradients(call)


def _depends_on_mode(call: Call) -> bool:
    return any(level in MODULES for level in call.levels)


def _evaluating(window: Window, model: str) -> Call | None:
    """A call inside a model that depends on its mode, if all of them and the model are in evaluation mode."""
    found: Call | None = None
    for call in window.calls:
        if call.kind == MODULE and with_gradients(call) and is_in(call.receiver, model):
            depends = _depends_on_mode(call)
            if (depends or call.receiver == model) and value_of(call.context, "training") is not False:
                return None
            found = call if depends else found
        elif call.kind == FUNCTION and call.levels[0] in FUNCTIONS:
            parent = next((around for around in window.ancestors(call) if around.kind == MODULE), None)
            if parent is not None and is_in(parent.receiver, model):
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


class EvaluationMode(Part):
    """Finds evaluations in training mode, see Note [The mode of a model]."""

    def __init__(self) -> None:
        self._reported: set[str] = set()
        self._training_loaders: dict[str, None] = {}
        self.forget()

    def forget(self) -> None:
        """Forget all but the latest loaders of training steps: the program has trained with them, gap or not."""
        self._training_loaders = dict.fromkeys(list(self._training_loaders)[-KEPT_LOADERS:])
        self._loader = ""  # the loader of the batches since the last call
        self._in_a_row: dict[str, int] = {}

    def occasions(self, window: Window) -> Iterator[Occasion]:
        """Yield an occasion for each model that is evaluated in training mode, once."""
        active = {reading.call: reading.value for reading in window.readings if named(reading) == ACTIVE_LAYERS}
        fetches = window.calls_named.get(NEXT, ())
        if not active:
            if window.stage == TRAIN:
                self._training_loaders.update(dict.fromkeys(call.receiver for call in fetches))
                self._in_a_row.clear()
            self._loader = ""
            return
        for call in calls_of(window, NEXT, FORWARD):
            if call.levels[-1] == NEXT:
                self._loader = call.receiver
                continue
            if call.seq in active:
                yield from self._judge(call, window, active[call.seq] == ACTIVE_DROPOUT)
            elif value_of(call.context, "outermost") is True and with_gradients(call):
                self._training_loaders[self._loader] = None
                self._in_a_row.clear()
            self._loader = ""

    def _judge(self, call: Call, window: Window, is_random: bool) -> Iterator[Occasion]:
        others = self._training_loaders
        is_apart = bool(others) and self._loader not in others if self._loader else is_random
        model = call.receiver
        self._in_a_row[model] = in_a_row = self._in_a_row.get(model, 0) + 1 if is_apart else 0
        if in_a_row >= ENOUGH_CALLS and model not in self._reported:
            self._reported.add(model)
            subject, note = Subject(FORWARD, EVALUATION), f"{model} was called in training mode, with gradients off"
            context, outcome = context_of((), window.stage), outcome_of(IN_EVALUATION_MODE, False)
            yield Occasion(subject, context, *outcome, call.seq, site=call.site, note=note)

    @staticmethod
    def speaks_of(subject: Subject) -> bool:
        return subject.grain == EVALUATION

    @staticmethod
    def needs(subject: Subject, prop: Property) -> Demand:
        return Demand.of_calls(FORWARD, NEXT) | Demand.of_readings(ACTIVE_LAYERS)

    @staticmethod
    def describe(subject: Subject, prop: Property) -> str:
        return sentence_of(subject, prop)
