"""Progress: what each training step does to each parameter that it concerns.

A parameter that got a gradient is another after the step, whoever changed it: the optimizer itself, or a program that
keeps master copies for the optimizer and writes them back. And a gradient that an update has used is cleared before
the next one uses it, if a backward adds to it.

Known limitations: a parameter that no optimizer holds is expected to change only if one holds a tensor of its
shape that no module owns (its master copy), or nothing but such tensors (flat ones, say). Updates that need not show
are left out, see the note in event_contain.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from traincheck.relations.base import context_of, fate
from traincheck.relations.parts import BACKWARD, UPDATE
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import NO_CALL, TRAIN, Call, Change, Window
from traincheck.vocab.facts import Facts
from traincheck.vocab.occasion import Occasion, Property, Subject

GRAIN = "step"
DATA, GRAD = "parameter.data", "parameter.grad"
MOVES = Property("moves", DATA, "changes")
CLEARED = Property("is cleared before its next use", GRAD, "is cleared")

_TOLD = ("attributes", "held", "owned", "precision", "requires_grad", "scalar", "tied")
"""What of the variable's facts may tell an honest exception."""

MOST_VARIABLES = 100_000
"""Beyond this a program makes parameters in a loop; what is known of them is forgotten, so that memory is bounded."""


@dataclass(slots=True)
class _Gradient:
    """What became of a gradient since an update used it."""

    cleared: bool = False
    filled: bool = False
    piled: bool = False


class Progress:
    """Follows the gradients from use to use, and looks at each step by itself for the rest."""

    def __init__(self) -> None:
        self._contexts: dict[Facts, Facts] = {}
        self.forget()

    def forget(self) -> None:
        self._used: dict[str, _Gradient] = {}

    def occasions(self, window: Window) -> Iterator[Occasion]:
        """The occasions of both kinds; variables that fared alike are one."""
        updates = {call.seq: call for call in window.calls if call.levels[-1] == UPDATE}
        fates: dict[tuple[Property, int, Facts, bool], list[str]] = {}
        self._follow_gradients(window, updates, fates)
        if window.stage == TRAIN and updates:
            self._look_at_data(window, updates, fates)
        for (prop, seq, context, so), names in fates.items():
            subject = Subject(prop.object, GRAIN)
            yield Occasion(subject, context_of(context, window.stage), *fate(prop, so), seq, tuple(names))

    def _look_at_data(
        self, window: Window, updates: dict[int, Call], fates: dict[tuple[Property, int, Facts, bool], list[str]]
    ) -> None:
        expected: dict[str, tuple[int, Facts]] = {}
        moved: set[str] = set()
        for change in window.changes:
            if change.kind != "parameter" or change.attribute != "data":
                continue
            if change.call != NO_CALL and change.call not in updates:
                continue
            if change.changed:
                moved.add(change.variable)
            if _is_due(change):
                seq = change.call if change.call != NO_CALL else max(updates)
                expected.setdefault(change.variable, (seq, self._told(change.context)))
        for variable, (seq, context) in expected.items():
            fates.setdefault((MOVES, seq, context, variable in moved), []).append(variable)

    def _follow_gradients(
        self, window: Window, updates: dict[int, Call], fates: dict[tuple[Property, int, Facts, bool], list[str]]
    ) -> None:
        for change in window.changes:
            if change.kind != "parameter":
                continue
            known = self._used.get(change.variable)
            if change.attribute == "grad":
                if known is not None:
                    call = window.by_seq.get(change.call)
                    _note(known, change, call is not None and call.levels[-1] == BACKWARD)
            elif change.call in updates and _is_used(change):
                if known is not None and known.filled and (known.cleared or known.piled):
                    key = (CLEARED, change.call, self._told(change.context), known.cleared)
                    fates.setdefault(key, []).append(change.variable)
                if len(self._used) > MOST_VARIABLES:
                    self._used.clear()
                self._used[change.variable] = _Gradient()

    def _told(self, context: Facts) -> Facts:
        found = self._contexts.get(context)
        if found is None:
            if len(self._contexts) > MOST_VARIABLES:
                self._contexts.clear()
            found = self._contexts[context] = tuple(pair for pair in context if pair[0] in _TOLD)
        return found

    @staticmethod
    def speaks_of(subject: Subject) -> bool:
        return subject.grain == GRAIN

    @staticmethod
    def needs(subject: Subject, prop: Property) -> Demand:
        return Demand(frozenset((UPDATE, BACKWARD)), frozenset(((UPDATE, DATA), (BACKWARD, GRAD))))

    @staticmethod
    def is_habit(prop: Property) -> bool:
        return False

    @staticmethod
    def describe(subject: Subject, prop: Property) -> str:
        if prop == MOVES:
            return "in a training step, a parameter that gets a gradient (or whose copy in the optimizer does) changes"
        return "a gradient that an update has used is cleared before the next update uses it"


def _note(known: _Gradient, change: Change, in_backward: bool) -> None:
    if change.before != "some" or change.after != "some":
        known.cleared = True
    if in_backward and change.changed and change.after == "some":
        known.filled = True
        known.piled = known.piled or (change.before == "some" and not known.cleared)


def _is_used(change: Change) -> bool:
    """Whether an update used the gradient of this variable (of one that another optimizer holds it did not)."""
    told = dict(change.context)
    return change.attribute == "data" and told.get("grad") == "some" and told.get("held") in ("this", "none")


def _is_due(change: Change) -> bool:
    """Whether the step should have changed this variable."""
    told = dict(change.context)
    if told.get("lost") is True or told.get("lr") != "positive":
        return False
    return change.call == NO_CALL or (told.get("held") == "this" and told.get("grad") == "some")
