"""Check what each training step does to the parameters and gradients that it concerns.

A step changes each parameter that has a gradient, whoever changes it: the optimizer itself, or a program that keeps
master copies for the optimizer and writes them back. A gradient that an update used is cleared before the next update
uses it, if a backward adds to it. An update uses the gradients of parameters without an optimizer only if the program
writes the parameters: training a head leaves the gradients of its backbone alone.

Known limitations: a parameter without an optimizer is expected to change only if an optimizer holds a tensor of its
shape that no module owns (its master copy), or nothing but such tensors (flat ones, say). Updates that need not show
are left out, see the note in event_contain/relation.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from traincheck.relations.base import context_of, outcome_of
from traincheck.relations.parts import BACKWARD, UPDATE, Part, in_order
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import NO_CALL, TRAIN, Change, Window
from traincheck.vocab.facts import Facts, value_of
from traincheck.vocab.occasion import Occasion, Property, Subject
from traincheck.vocab.properties import CHANGES, IS_CLEARED, IS_CLEARED_BEFORE_USE, MOVES

GRAIN = "step"
DATA, GRAD = "parameter.data", "parameter.grad"
CHANGES_IN_STEP = Property(MOVES, DATA, CHANGES)
CLEARED = Property(IS_CLEARED_BEFORE_USE, GRAD, IS_CLEARED)

_VARIABLE_FACTS = ("attributes", "held", "owned", "precision", "requires_grad", "scalar", "tied")
"""Facts of the variable that may explain an exception."""

MAX_VARIABLES = 100_000
"""Beyond this, a program makes parameters in a loop. The state is dropped, which bounds memory."""


_CLEARED, _FILLED, _ADDED_TO = 1, 2, 4
"""The history of a gradient since an update used it, as flags in one number, because there is one for each
parameter."""

_MAY_HOLD = ("this", "none")
_Outcomes = dict[tuple[Property, int, Facts, bool], list[str]]


class _Event(NamedTuple):
    """The effect of a change on a gradient: the flags to set, whether a backward adds to existing values, and, if an
    update uses the gradient, the call and the facts of the variable."""

    notes: int = 0
    piles: bool = False
    uses: tuple[int, Facts] | None = None


class ParameterUpdates(Part):
    """Follows the gradients from use to use, and judges each step by itself for the rest."""

    def __init__(self) -> None:
        self._contexts: dict[Facts, Facts] = {}
        self.forget()

    def forget(self) -> None:
        self._used: dict[str, int] = {}
        self._written: set[str] = set()  # parameters that no optimizer holds and that have changed

    def occasions(self, window: Window) -> Iterator[Occasion]:
        """Yield the occasions of both kinds. Variables with the same outcome share one."""
        updates = {call.seq for call in window.calls if call.levels[-1] == UPDATE}
        outcomes: _Outcomes = {}
        self._follow_gradients(window, updates, outcomes)
        if window.stage == TRAIN and updates:
            self._look_at_data(window, updates, outcomes)
        for (prop, seq, context, holds), names in outcomes.items():
            subject = Subject(prop.object, GRAIN)
            yield Occasion(subject, context_of(context, window.stage), *outcome_of(prop, holds), seq, tuple(names))

    def _look_at_data(self, window: Window, updates: set[int], outcomes: _Outcomes) -> None:
        to_change: list[tuple[list[int], tuple[int, Facts]]] = []
        moved: set[str] = set()
        for change, positions in window.change_groups:
            if change.kind != "parameter" or change.attribute != "data":
                continue
            if change.call != NO_CALL and change.call not in updates:
                continue
            if change.changed:
                moved.update(window.variables_at(positions))
            if _should_change(change):
                seq = change.call if change.call != NO_CALL else max(updates)
                to_change.append((positions, (seq, self._variable_facts(change.context))))
        expected: dict[str, tuple[int, Facts]] = {}
        for positions, group in in_order(to_change):
            for variable in window.variables_at(positions):
                expected.setdefault(variable, group)
        names_by_group: dict[tuple[int, bool], list[str]] = {}  # by the identity of what was found, which is in `due`
        for variable, group in expected.items():
            holds = variable in moved
            names = names_by_group.get((id(group), holds))
            if names is None:
                names = names_by_group[id(group), holds] = outcomes.setdefault((CHANGES_IN_STEP, *group, holds), [])
            names.append(variable)

    def _follow_gradients(self, window: Window, updates: set[int], outcomes: _Outcomes) -> None:
        used = self._used
        for positions, (notes, accumulates, uses) in in_order(self._of_gradients(window, updates)):
            for variable in window.variables_at(positions):
                state = used.get(variable)
                if uses is None:
                    if state is not None:
                        used[variable] = state | notes | (_ADDED_TO if accumulates and not state & _CLEARED else 0)
                    continue
                used_by_update = variable in self._written or value_of(uses[1], "held") != "none"
                if used_by_update and state is not None and state & _FILLED and state & (_CLEARED | _ADDED_TO):
                    outcomes.setdefault((CLEARED, *uses, bool(state & _CLEARED)), []).append(variable)
                if len(used) > MAX_VARIABLES:
                    used.clear()
                    self._written.clear()
                used[variable] = 0

    def _of_gradients(self, window: Window, updates: set[int]) -> list[tuple[list[int], _Event]]:
        """The events of gradients in the window, with the positions of the changes."""
        events: list[tuple[list[int], _Event]] = []
        for change, positions in window.change_groups:
            event = None
            if change.kind != "parameter":
                continue
            if change.attribute == "data" and change.changed and value_of(change.context, "held") == "none":
                self._written.update(window.variables_at(positions))
            if change.attribute == "grad":
                call = window.by_seq.get(change.call)
                event = _gradient_event(change, call is not None and call.levels[-1] == BACKWARD)
            elif change.call in updates and _is_used(change):
                event = _Event(uses=(change.call, self._variable_facts(change.context)))
            if event is not None:
                events.append((positions, event))
        return events

    def _variable_facts(self, context: Facts) -> Facts:
        cached = self._contexts.get(context)
        if cached is None:
            if len(self._contexts) > MAX_VARIABLES:
                self._contexts.clear()
            cached = self._contexts[context] = tuple(pair for pair in context if pair[0] in _VARIABLE_FACTS)
        return cached

    @staticmethod
    def speaks_of(subject: Subject) -> bool:
        return subject.grain == GRAIN

    @staticmethod
    def needs(subject: Subject, prop: Property) -> Demand:
        return Demand.of_calls(UPDATE, changes=(DATA,)) | Demand.of_calls(BACKWARD, changes=(GRAD,))

    @staticmethod
    def describe(subject: Subject, prop: Property) -> str:
        if prop == CHANGES_IN_STEP:
            return "in a training step, a parameter that gets a gradient (or whose copy in the optimizer does) changes"
        return "a gradient that an update has used is cleared before the next update uses it"


def _gradient_event(change: Change, in_backward: bool) -> _Event | None:
    """The event of a gradient that changed like this, None if nothing is to be recorded."""
    kept = change.before == "some" and change.after == "some"
    fills = in_backward and change.changed and change.after == "some"
    return _Event((0 if kept else _CLEARED) | (_FILLED if fills else 0), fills and kept) if fills or not kept else None


def _is_used(change: Change) -> bool:
    """Whether an update used the gradient of this variable. (It does not use gradients of another optimizer's
    parameters.)"""
    variable_facts = change.context
    return (
        change.attribute == "data"
        and value_of(variable_facts, "grad") == "some"
        and value_of(variable_facts, "held") in _MAY_HOLD
    )


def _should_change(change: Change) -> bool:
    """Whether the step should have changed this variable."""
    variable_facts = dict(change.context)
    if variable_facts.get("lost") is True or variable_facts.get("lr") != "positive":
        return False
    return change.call == NO_CALL or (variable_facts.get("held") == "this" and variable_facts.get("grad") == "some")
