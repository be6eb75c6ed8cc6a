"""Check that backwards do not always leave gradients of zeros.

Note [Zeros that are honest]
One step may leave zeros everywhere: a policy gradient without a reward, a loss with a margin that all samples keep. And
some parameters may have zero gradients for long. Rows of an embedding without tokens are a part of a tensor only, but
an expert without tokens, a layer of dead units or a term that is multiplied by zero are whole ones. So it is an error
only if all gradients are zero in each of the first `FIRST` steps. It is a notice if those of some parameters are zero
in each of `LONG` steps in which others are not. A parameter without a gradient (`none`) is not judged.

The rules need no good run (builtin_rules.py). So an occasion arises only if they fail, and nothing is learned from it.
They are judged if other rules need gradients, and demand nothing themselves.
"""

from __future__ import annotations

from collections.abc import Iterator

from traincheck.relations.base import context_of, outcome_of
from traincheck.relations.parts import BACKWARD, UPDATE, Part, calls_of
from traincheck.vocab.builtin_rules import FIRST, GRAD, LONG, NOT_ALL_ZERO, NOT_ZERO_FOR_LONG, STRETCH, sentence_of
from traincheck.vocab.demand import NOTHING, Demand
from traincheck.vocab.events import TRAIN, Window
from traincheck.vocab.occasion import Occasion, Property, Subject

MAX_VARIABLES = 100_000
"""A program with more makes parameters in a loop; further ones are not followed."""


class ZeroGradients(Part):
    """Follows the parameters that never had a gradient other than zero."""

    def __init__(self) -> None:
        self._alive: set[str] = set()
        self._reported = False
        self._zero: dict[str, int] = {}
        self._steps = 0

    def forget(self) -> None:
        self._zero.clear()
        self._steps = FIRST  # the first steps are over

    def occasions(self, window: Window) -> Iterator[Occasion]:
        """Yield an occasion if a rule fails, once each."""
        if self._reported or window.stage != TRAIN:
            return
        left = self._note(window)
        updates = calls_of(window, UPDATE) if left else ()
        if not updates:
            return
        self._steps += 1
        for name in left:
            self._zero[name] = self._zero.get(name, 0) + 1
        seq, context = updates[-1].seq, context_of((), window.stage)
        if not self._alive and self._steps == FIRST:
            names = tuple(name for name, count in self._zero.items() if count == FIRST)
            if names:
                note = f"every gradient was zero in each of {FIRST} steps"
                yield Occasion(Subject(GRAD, STRETCH), context, *outcome_of(NOT_ALL_ZERO, False), seq, names, note=note)
        elif self._alive:
            names = tuple(name for name in left if self._zero[name] >= LONG)
            if names:
                self._reported = True
                note = f"these gradients were zero in each of {LONG} steps, and others were not"
                yield Occasion(
                    Subject(GRAD, STRETCH), context, *outcome_of(NOT_ZERO_FOR_LONG, False), seq, names, note=note
                )

    def _note(self, window: Window) -> list[str]:
        """Record which gradients are not zero, and return the parameters whose gradients were always zero so far."""
        zero: dict[str, None] = {}
        for change, positions in window.change_groups:
            if change.kind != "parameter" or change.attribute != "grad" or change.after not in ("zero", "some"):
                continue
            call = window.by_seq.get(change.call)
            if call is None or call.levels[-1] != BACKWARD:
                continue
            names = window.variables_at(positions)
            if change.after == "zero":
                zero.update(dict.fromkeys(names))
            elif len(self._alive) < MAX_VARIABLES:
                self._alive.update(names)
        return [name for name in zero if name not in self._alive]

    @staticmethod
    def speaks_of(subject: Subject) -> bool:
        return subject.grain == STRETCH

    @staticmethod
    def needs(subject: Subject, prop: Property) -> Demand:
        return NOTHING

    @staticmethod
    def describe(subject: Subject, prop: Property) -> str:
        return sentence_of(subject, prop)
