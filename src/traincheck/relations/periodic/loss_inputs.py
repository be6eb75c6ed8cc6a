"""Check what goes into losses.

A source sees in autograd what computed the input of a loss (the fact `origin`, call_summaries.py). A loss of scores
squashes them by itself, so it expects no result of a sigmoid or a softmax. A loss of logarithms of probabilities
expects neither those nor the scores of a layer.

Note [Dimension of a log-softmax]
`nll_loss` takes the classes from one dimension of its input (the second, if there are several). A log-softmax of the
scores of a layer over another dimension gives no probabilities of classes. Scores of pairs (a product of two
activations) may be normalized in both directions, so only those of a layer count. `kl_div` compares distributions: if
those of the target lie along its last dimension, those of the input have to. A dimension of the same size does not
count, because a target may sum to one along both.

The classes of a loss are the outputs of the layer that computed the scores. A reshape in place of a transpose keeps the
sizes, and mixes the outputs of different positions.

A loss of elements broadcasts its input and its target. If both grow (9 x 1 and 9 become 9 x 9), then it compares each
prediction with each target. A target of one number, or of fewer dimensions of another kind, is meant so: only tensors
of different numbers of dimensions count.

The rules need no good run (builtin_rules.py). So an occasion arises only if they fail, and nothing is learned from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from traincheck.relations.base import context_of, outcome_of
from traincheck.relations.parts import StatelessPart, calls_of
from traincheck.vocab.builtin_rules import (
    ELEMENTWISE,
    KEEPS_CLASSES,
    KL_DIV,
    LOG_PROBABILITIES,
    LOG_SOFTMAX,
    LOGITS,
    NLL_LOSS,
    OF_CLASSES,
    OF_LOGARITHMS,
    OF_SCORES,
    OVER_CLASSES,
    PRODUCT,
    SAME_SHAPE,
    SCORES,
    SHAPES,
    SQUASHING,
    sentence_of,
)
from traincheck.vocab.demand import ROWS, TENSORS, Demand
from traincheck.vocab.events import Call, Window
from traincheck.vocab.facts import value_of
from traincheck.vocab.occasion import Occasion, Property, Subject


class LossInputs(StatelessPart):
    """Inputs of losses that another function computed than the loss expects."""

    def occasions(self, window: Window) -> Iterator[Occasion]:
        """Yield an occasion for each loss with such an input."""
        for call in calls_of(window, *OF_SCORES, *OF_LOGARITHMS):
            api = call.levels[-1]
            origins = [value_of(tensor.facts, "origin") for tensor in call.tensors if tensor.role == "input"]
            is_of_scores = api in OF_SCORES
            if api in OF_CLASSES and any(value_of(tensor.facts, "mixed_classes") is True for tensor in call.tensors):
                yield _other_input(call, window, KEEPS_CLASSES, _MIXED)
            if LOG_SOFTMAX in origins and _is_over_other_dimension(call):
                yield _other_input(call, window, OVER_CLASSES, LOG_SOFTMAX)
            if SQUASHING in origins or (PRODUCT in origins and not is_of_scores):
                origin = SQUASHING if SQUASHING in origins else PRODUCT
                yield _other_input(call, window, SCORES if is_of_scores else LOG_PROBABILITIES, origin)

    @staticmethod
    def speaks_of(subject: Subject) -> bool:
        return subject.grain == LOGITS

    @staticmethod
    def needs(subject: Subject, prop: Property) -> Demand:
        return Demand.of_calls(subject.api, values=(TENSORS, ROWS))

    @staticmethod
    def describe(subject: Subject, prop: Property) -> str:
        return sentence_of(subject, prop)


def _other_input(call: Call, window: Window, prop: Property, origin: str) -> Occasion:
    subject, context = Subject(call.levels[-1], LOGITS), context_of((), window.stage)
    return Occasion(subject, context, *outcome_of(prop, False), call.seq, note=_NOTES[origin])


def _is_over_other_dimension(call: Call) -> bool:
    """Whether a log-softmax ran over another dimension than the classes. See Note [Dimension of a log-softmax]."""
    tensors = {tensor.role: tensor for tensor in call.tensors}
    scores, target = tensors["input"], tensors.get("target")
    over, sizes = value_of(scores.facts, "normalized_over"), scores.shape
    if type(over) is not int:
        return False
    if call.levels[-1] == NLL_LOSS:
        return over != min(1, len(sizes) - 1) and value_of(scores.facts, "of_layer") is True
    if call.levels[-1] != KL_DIV or target is None or target.shape != sizes or over == len(sizes) - 1:
        return False
    return value_of(target.facts, "rows_sum_to_one") is True and sizes[over] != sizes[-1]


_MIXED = "mixed"
_NOTES = {
    _MIXED: "a reshape between the layer and the loss mixed the outputs of the layer; a transpose or permute does not",
    LOG_SOFTMAX: "the log-softmax of the input ran over a dimension that does not hold the classes",
    SQUASHING: "a sigmoid or a softmax computed the input",
    PRODUCT: "a layer computed the input, and no log-softmax was applied to its scores",
}


class BroadcastTargets(StatelessPart):
    """Losses of elements whose input and target both grow by broadcasting."""

    def occasions(self, window: Window) -> Iterator[Occasion]:
        """Yield an occasion for each loss of one line with such shapes."""
        sites = set()
        for call in calls_of(window, *ELEMENTWISE):
            shapes = {tensor.role: tensor.shape for tensor in call.tensors if tensor.role in ("input", "target")}
            if len(shapes) < 2 or call.site in sites or not _both_grow(shapes["input"], shapes["target"]):
                continue
            sites.add(call.site)
            note = f"the input has the shape {list(shapes['input'])} and the target {list(shapes['target'])}"
            subject, context = Subject(call.levels[-1], SHAPES), context_of((), window.stage)
            yield Occasion(subject, context, *outcome_of(SAME_SHAPE, False), call.seq, site=call.site, note=note)

    @staticmethod
    def speaks_of(subject: Subject) -> bool:
        return subject.grain == SHAPES

    @staticmethod
    def needs(subject: Subject, prop: Property) -> Demand:
        return Demand.of_calls(subject.api, values=(TENSORS,))

    @staticmethod
    def describe(subject: Subject, prop: Property) -> str:
        return sentence_of(subject, prop)


def _both_grow(first: Sequence[int], second: Sequence[int]) -> bool:
    """Whether broadcasting makes both shapes larger, and they have different numbers of dimensions."""
    if len(first) == len(second):
        return False
    size = max(len(first), len(second))
    pairs = list(zip((*(1,) * (size - len(first)), *first), (*(1,) * (size - len(second)), *second), strict=True))
    return any(a == 1 and b > 1 for a, b in pairs) and any(b == 1 and a > 1 for a, b in pairs)
