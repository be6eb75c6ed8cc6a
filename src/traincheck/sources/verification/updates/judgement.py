"""Judges the updates of one optimizer: does an algorithm explain them, and is a difference an error?

Note [Whose algorithm]
An optimizer of torch states its algorithm, and so do AdamW and Lion of bitsandbytes: an update that differs from it is
wrong. An optimizer of another library, or a subclass with its own `step`, may do anything in any step. TrainCheck looks
for an algorithm that explains its first verified updates completely. Afterwards it reports only what no such optimizer
intends: some elements of a parameter keep their old values, and others are updated. Elements at zero or at an extreme
do not count, because pruning and clipping keep them there. Any other difference may be intended (averaging every few
steps, for example) and ends the comparison.

Note [Other explanations]
A difference proves nothing where something else may have written to the parameter or to the gradient during the step: a
hook of the program, or the function that the optimizer calls to compute the loss.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import NamedTuple

from torch.optim import LBFGS, Optimizer

from traincheck.sources.verification.updates.algorithms import CANDIDATES, Algorithm, documented
from traincheck.sources.verification.updates.comparison import Comparison
from traincheck.sources.verification.updates.inputs import PARAMETER
from traincheck.sources.verification.updates.selection import START, ParametersBefore
from traincheck.vocab.verification import AGREES, DISAGREES, UNDECIDED

MATCHES = 2
"""Updates that an algorithm must explain before an optimizer that does not state it is judged by it."""

TELLING = 0.5
"""The share of elements that must change by more than rounding, so that an update tells algorithms apart."""


class Judgement(NamedTuple):
    """A verdict about an update, with the reason, and the first parameter that is wrong."""

    verdict: str
    found: str = ""
    first: str = ""


class UpdateHistory:
    """The updates of one optimizer so far: its algorithm, and the parameter with which the next comparison begins."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = weakref.ref(optimizer)
        self.next = START
        self.last_step = 0
        self.ended = "LBFGS computes each step from earlier ones" if isinstance(optimizer, LBFGS) else ""
        stated = documented(optimizer)
        self._is_stated = stated is not None
        self.needs_whole_tensors = stated is not None and stated.whole_tensors
        self._candidates: Sequence[Algorithm] = CANDIDATES if stated is None else (stated,)
        self._matches = 0

    def judge(self, before: ParametersBefore, other_explanation: str) -> Judgement | None:
        """Judge an update that has just been made; None if it touched no parameter."""
        if not before.parameters:
            return Judgement(UNDECIDED, before.reasons[0]) if before.reasons else None
        if any(parameter.gradient_was_written for parameter in before.parameters):
            other_explanation = other_explanation or "its gradients were written to during the step"
        compared = [(algorithm, _compare(before, algorithm)) for algorithm in self._candidates]
        for algorithm, comparisons in compared:
            if self._explains(comparisons):
                self._candidates, self._matches = (algorithm,), self._matches + 1
                return Judgement(AGREES)
        if other_explanation:
            return Judgement(UNDECIDED, other_explanation)
        algorithm, comparisons = compared[0]
        wrong = [comparison for comparison in comparisons if comparison.off]
        if self._is_stated and not wrong:
            return Judgement(UNDECIDED, "rounding may explain any result, or its parameters are sharded")
        if not self._is_stated:
            wrong = [
                comparison for comparison in wrong if comparison.stuck > 0 and comparison.off < comparison.compared
            ]
            if self._matches < MATCHES or not wrong:
                self.ended = "no algorithm that TrainCheck knows explains its updates"
                return Judgement(UNDECIDED, self.ended)
        return Judgement(DISAGREES, _describe(algorithm, wrong, len(comparisons)), wrong[0].name)

    def _explains(self, comparisons: Sequence[Comparison]) -> bool:
        """Whether these comparisons show that an algorithm explains the update."""
        if not comparisons or any(comparison.off for comparison in comparisons):
            return False
        compared = sum(comparison.compared for comparison in comparisons)
        clear = sum(comparison.clear for comparison in comparisons)
        if not self._is_stated and not self._matches:
            return clear >= TELLING * compared > 0
        return compared > 0


def _compare(before: ParametersBefore, algorithm: Algorithm) -> list[Comparison]:
    """Compare all parameters; an empty list if the optimizer has not the settings or the state of the algorithm."""
    try:
        comparisons = [parameter.compare(algorithm) for parameter in before.parameters]
    except (KeyError, TypeError, ValueError):
        return []
    return [comparison for comparison in comparisons if comparison is not None]


def _describe(algorithm: Algorithm, wrong: Sequence[Comparison], compared: int) -> str:
    """What is wrong, with the element that is off most."""
    first = wrong[0]
    written, expected = _told_apart(first.value, first.expected)
    if first.what == "step":
        text = f"the step counter of {first.name} is {written}, expected {expected}"
    elif first.what != PARAMETER:
        text = f"{first.off:,} elements of {first.what} of {first.name} are not those of {algorithm.name}: value "
        text += f"{written}, expected {expected}"
    else:
        text = f"{first.off:,} of {first.elements:,} compared elements of {first.name} did not get the update of "
        text += f"{algorithm.name}: value {written}, expected {expected}"
        if first.unchanged:
            text += f"; {first.unchanged:,} of them kept their old value"
    if len(wrong) > 1:
        text += f"; {len(wrong)} of {compared} compared parameters are wrong"
    groups = sorted({comparison.group for comparison in wrong})
    return text + (f"; parameter groups {', '.join(map(str, groups))}" if any(groups) else "")


def _told_apart(written: float, expected: float) -> tuple[str, str]:
    """Both numbers with as many digits as it takes to see a difference."""
    for digits in (4, 6, 9, 17):
        texts = f"{written:.{digits}g}", f"{expected:.{digits}g}"
        if texts[0] != texts[1]:
            break
    return texts
