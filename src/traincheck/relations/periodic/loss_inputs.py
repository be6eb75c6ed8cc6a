"""Check what goes into losses.

A source sees in autograd whether a sigmoid or a softmax computed the input of a loss (the fact `squashed`,
call_summaries.py). A loss that squashes it once more, or that takes it for logarithms, learns slowly or nothing.

A loss of elements broadcasts its input and its target. If both grow (9 x 1 and 9 become 9 x 9), then it compares each
prediction with each target. A target of one number, or of fewer dimensions of another kind, is meant so: only tensors
of different numbers of dimensions count.

The rules need no good run (builtin_rules.py). So an occasion arises only if they fail, and nothing is learned from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from traincheck.relations.base import context_of, outcome_of
from traincheck.relations.parts import StatelessPart, calls_of
from traincheck.vocab.builtin_rules import ELEMENTWISE, LOGITS, OF_SCORES, SAME_SHAPE, SCORES, SHAPES, sentence_of
from traincheck.vocab.demand import ROWS, TENSORS, Demand
from traincheck.vocab.events import Window
from traincheck.vocab.facts import value_of
from traincheck.vocab.occasion import Occasion, Property, Subject


class SquashedScores(StatelessPart):
    """Scores that were squashed before a loss which squashes them by itself."""

    def occasions(self, window: Window) -> Iterator[Occasion]:
        """Yield an occasion for each loss with squashed scores."""
        for call in calls_of(window, *OF_SCORES):
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
