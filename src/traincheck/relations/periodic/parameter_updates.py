"""Progress: what each training step does to each parameter that it concerns.

A parameter that got a gradient is another after the step, whoever changed it: the optimizer itself, or a program that
keeps master copies for the optimizer and writes them back. And a gradient that an update has used is cleared before
the next one uses it, if a backward adds to it. An update uses the gradients of parameters that no optimizer holds only
where the program writes the parameters: a head that is trained by itself leaves the gradients of its backbone alone.

Known limitations: a parameter that no optimizer holds is expected to change only if one holds a tensor of its
shape that no module owns (its master copy), or nothing but such tensors (flat ones, say). Updates that need not show
are left out, see the note in relation.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from traincheck.relations.base import context_of, fate
from traincheck.relations.parts import BACKWARD, UPDATE, in_order
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import NO_CALL, TRAIN, Change, Window
from traincheck.vocab.facts import Facts, value_of
from traincheck.vocab.occasion import Occasion, Property, Subject

GRAIN = "step"
DATA, GRAD = "parameter.data", "parameter.grad"
MOVES = Property("moves", DATA, "changes")
CLEARED = Property("is cleared before its next use", GRAD, "is cleared")

_TOLD = ("attributes", "held", "owned", "precision", "requires_grad", "scalar", "tied")
"""What of the variable's facts may tell an honest exception."""

MOST_VARIABLES = 100_000
"""Beyond this a program makes parameters in a loop; what is known of them is forgotten, so that memory is bounded."""


_CLEARED, _FILLED, _PILED = 1, 2, 4
"""What became of a gradient since an update used it: in one number, as there is one for each parameter."""

_MAY_HOLD = ("this", "none")
_Fates = dict[tuple[Property, int, Facts, bool], list[str]]


class _Event(NamedTuple):
    """What becomes of a gradient in a change: what is noted of it, whether a backward adds to what is there, and, where
    an update uses it, the call and the facts of the variable."""

    notes: int = 0
    piles: bool = False
    uses: tuple[int, Facts] | None = None


class Progress:
    """Follows the gradients from use to use, and looks at each step by itself for the rest."""

    def __init__(self) -> None:
        self._contexts: dict[Facts, Facts] = {}
        self.forget()

    def forget(self) -> None:
        self._used: dict[str, int] = {}
        self._written: set[str] = set()  # parameters that no optimizer holds and that have changed

    def occasions(self, window: Window) -> Iterator[Occasion]:
        """The occasions of both kinds; variables that fared alike are one."""
        updates = {call.seq for call in window.calls if call.levels[-1] == UPDATE}
        fates: _Fates = {}
        self._follow_gradients(window, updates, fates)
        if window.stage == TRAIN and updates:
            self._look_at_data(window, updates, fates)
        for (prop, seq, context, so), names in fates.items():
            subject = Subject(prop.object, GRAIN)
            yield Occasion(subject, context_of(context, window.stage), *fate(prop, so), seq, tuple(names))

    def _look_at_data(self, window: Window, updates: set[int], fates: _Fates) -> None:
        due: list[tuple[list[int], tuple[int, Facts]]] = []
        moved: set[str] = set()
        for change, places in window.together:
            if change.kind != "parameter" or change.attribute != "data":
                continue
            if change.call != NO_CALL and change.call not in updates:
                continue
            if change.changed:
                moved.update(window.variables_at(places))
            if _is_due(change):
                seq = change.call if change.call != NO_CALL else max(updates)
                due.append((places, (seq, self._told(change.context))))
        expected: dict[str, tuple[int, Facts]] = {}
        for places, found in in_order(due):
            for variable in window.variables_at(places):
                expected.setdefault(variable, found)
        alike: dict[tuple[int, bool], list[str]] = {}  # by the identity of what was found, which is in `due`
        for variable, found in expected.items():
            so = variable in moved
            names = alike.get((id(found), so))
            if names is None:
                names = alike[id(found), so] = fates.setdefault((MOVES, *found, so), [])
            names.append(variable)

    def _follow_gradients(self, window: Window, updates: set[int], fates: _Fates) -> None:
        used = self._used
        for places, (notes, piles, uses) in in_order(self._of_gradients(window, updates)):
            for variable in window.variables_at(places):
                known = used.get(variable)
                if uses is None:
                    if known is not None:
                        used[variable] = known | notes | (_PILED if piles and not known & _CLEARED else 0)
                    continue
                used_by_update = variable in self._written or value_of(uses[1], "held") != "none"
                if used_by_update and known is not None and known & _FILLED and known & (_CLEARED | _PILED):
                    fates.setdefault((CLEARED, *uses, bool(known & _CLEARED)), []).append(variable)
                if len(used) > MOST_VARIABLES:
                    used.clear()
                    self._written.clear()
                used[variable] = 0

    def _of_gradients(self, window: Window, updates: set[int]) -> list[tuple[list[int], _Event]]:
        """What becomes of gradients in the window, with the places of the changes."""
        found: list[tuple[list[int], _Event]] = []
        for change, places in window.together:
            event = None
            if change.kind != "parameter":
                continue
            if change.attribute == "data" and change.changed and value_of(change.context, "held") == "none":
                self._written.update(window.variables_at(places))
            if change.attribute == "grad":
                call = window.by_seq.get(change.call)
                event = _noted(change, call is not None and call.levels[-1] == BACKWARD)
            elif change.call in updates and _is_used(change):
                event = _Event(uses=(change.call, self._told(change.context)))
            if event is not None:
                found.append((places, event))
        return found

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


def _noted(change: Change, in_backward: bool) -> _Event | None:
    """What is noted of a gradient that changed like this, None where it is nothing."""
    kept = change.before == "some" and change.after == "some"
    fills = in_backward and change.changed and change.after == "some"
    return _Event((0 if kept else _CLEARED) | (_FILLED if fills else 0), fills and kept) if fills or not kept else None


def _is_used(change: Change) -> bool:
    """Whether an update used the gradient of this variable (of one that another optimizer holds it did not)."""
    told = change.context
    return change.attribute == "data" and value_of(told, "grad") == "some" and value_of(told, "held") in _MAY_HOLD


def _is_due(change: Change) -> bool:
    """Whether the step should have changed this variable."""
    told = dict(change.context)
    if told.get("lost") is True or told.get("lr") != "positive":
        return False
    return change.call == NO_CALL or (told.get("held") == "this" and told.get("grad") == "some")
