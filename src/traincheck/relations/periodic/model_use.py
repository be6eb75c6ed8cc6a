"""Check how a program uses its models: in which mode, and with which scores.

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

The rules need no good run (builtin_rules.py). So an occasion arises only if they fail, and nothing is learned from it.
"""

from __future__ import annotations

from collections.abc import Iterator

from traincheck.relations.base import context_of, outcome_of
from traincheck.relations.parts import (
    FORWARD,
    LOAD,
    UPDATE,
    Part,
    StatelessPart,
    calls_of,
    loaded_models,
)
from traincheck.vocab.builtin_rules import (
    IN_MODE_AROUND,
    IN_TRAINING_MODE,
    LOADED,
    LOGITS,
    MODE,
    SCORES,
    WITH_LOGITS,
    sentence_of,
)
from traincheck.vocab.demand import ROWS, TENSORS, Demand
from traincheck.vocab.events import FUNCTION, MODULE, TRAIN, Call, Window
from traincheck.vocab.facts import value_of
from traincheck.vocab.occasion import Occasion, Property, Subject

MODULES = ("torch.nn.modules.dropout._DropoutNd.forward", "torch.nn.modules.batchnorm._NormBase.forward")
FUNCTIONS = ("torch.nn.functional.dropout", "torch.nn.functional.batch_norm")

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


class SquashedScores(StatelessPart):
    """Scores that were squashed before a loss which squashes them by itself."""

    def occasions(self, window: Window) -> Iterator[Occasion]:
        """Yield an occasion for each loss with squashed scores."""
        for call in window.calls_named.get(WITH_LOGITS, ()):
            if any(tensor.role == "input" and value_of(tensor.facts, "squashed") is True for tensor in call.tensors):
                subject, note = Subject(WITH_LOGITS, LOGITS), "a sigmoid or a softmax computed the input"
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
