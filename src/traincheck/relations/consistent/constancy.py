"""Check the values that stay the same from one update to the next.

These are whether a parameter is trainable, its dtype and shape; the settings of an optimizer (learning_rates.py covers
the learning rate); the entries of its groups, which must not get lost; and ties between weights.

Note [One optimizer at a time]
A value is compared with its value at the last step *of the same optimizer*. A program that freezes the critic while the
generator learns alternates between two states, and each of them stays the same.

Note [Carried on]
Sources report some values only when they change. A value is carried on until the next reading, so each step is an
occasion for every value that was read before it.

Note [Schedules of settings]
A program may change a setting in each step (the weight decay of DINO grows). So a setting that changed counts as such
in the next step, if it has stayed since. One that changes again follows a schedule, and is not judged any more.

Known limitations: some programs unfreeze layers one by one, so a frozen parameter that becomes trainable is an optional
practice. Freezing a trained parameter is a practice as well, but a rarer one, and nothing separates it from an
accident.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, field

from traincheck.relations.base import context_of, outcome_of
from traincheck.relations.parts import SCHEDULE, TIME, UPDATE, calls_of, is_figure, named, phrase_for
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import LIVE, Call, Reading, Window
from traincheck.vocab.facts import Facts, FactValue, facts, merged, value_of
from traincheck.vocab.occasion import Occasion, Property, Subject
from traincheck.vocab.properties import KEEPS, STAYS

FROZEN = "frozen"
LOAD = "torch.optim.Optimizer.load_state_dict"
REQUIRES_GRAD = "parameter.requires_grad"
KEYS, TIED, PARAMETER_DATA = "hyperparameter.keys", "parameter.tied", "parameter.data"

_PARAMETER_ATTRIBUTES = ("requires_grad", "dtype", "shape")
_SCHEDULED = ("lr", "keys")
"""Entries of a parameter group that have rules of their own."""

ESTABLISHED = 3
"""A scheduler may set more than the learning rate (cycle the momentum), from its first step on. A value that so many of
its steps left alone does not belong to the scheduler."""

MAX_VARIABLES = 100_000
"""Beyond this, a program makes parameters in a loop. The state is dropped, which bounds memory."""


@dataclass(slots=True)
class _Value:
    value: FactValue
    context: Facts


@dataclass(slots=True)
class _Tracked:
    """One attribute of all its variables: the current values, and the old values of those that changed since each
    optimizer's last step. In `since`, None stands for a variable that did not exist then."""

    is_setting: bool = False
    values: dict[str, _Value] = field(default_factory=dict)
    since: dict[str, dict[str, _Value | None]] = field(default_factory=dict)
    groups: dict[Facts, tuple[str, ...]] | None = None
    steps_of_scheduler: int = 0  # that it has outlasted; negative once a scheduler has changed it
    open: dict[str, Facts] = field(default_factory=dict)  # settings that changed in the last step, with their context
    planned: set[str] = field(default_factory=set)  # settings that changed in two steps in a row

    def not_scheduled(self, stayed: bool) -> bool:
        """Record a step of a scheduler, and return whether schedulers are known to leave this attribute alone."""
        left_alone = self.steps_of_scheduler >= ESTABLISHED
        if not left_alone and self.steps_of_scheduler >= 0:
            self.steps_of_scheduler = self.steps_of_scheduler + 1 if stayed else -1
        return left_alone

    def take(self, reading: Reading) -> None:
        old = self.values.get(reading.variable)
        if old is not None and old.value == reading.value:
            return
        for changes in self.since.values():
            changes.setdefault(reading.variable, old)
        # The state before a change explains an honest exception, such as unfreezing a frozen parameter.
        context = reading.context
        if reading.attribute == "requires_grad":
            context = merged(context, requires_grad=reading.value)
        self.values[reading.variable] = _Value(reading.value, context)
        self.groups = None
        if len(self.values) > MAX_VARIABLES:
            self.values.clear()
            self.since.clear()

    def step(self, optimizer: str) -> Iterator[tuple[Facts, tuple[str, ...], bool]]:
        """Yield context, variables, and whether they stayed, since the last step of `optimizer` (nothing at its first
        step)."""
        changed = self.since.get(optimizer)
        self.since[optimizer] = {}
        if changed is None:
            return
        failed: dict[Facts, list[str]] = {}
        for variable, old in changed.items():
            if old is not None and old.value != self.values[variable].value:
                failed.setdefault(old.context, []).append(variable)
        if self.is_setting:
            failed = self._settled(failed)
        for context, variables in failed.items():
            yield context, tuple(variables), False
        if self.groups is None:
            self.groups = _grouped(self.values, ())
        unsure = {name for name, old in changed.items() if old is None or old.value != self.values[name].value}
        unsure |= self.planned
        for context, names in (self.groups if not unsure else _grouped(self.values, unsure)).items():
            yield context, names, True

    def _settled(self, changed: dict[Facts, list[str]]) -> dict[Facts, list[str]]:
        """The settings that changed in the step before this one and have stayed since, see Note [Schedules of
        settings]."""
        now = {variable: context for context, variables in changed.items() for variable in variables}
        self.planned.update(variable for variable in now if variable in self.open)
        failed: dict[Facts, list[str]] = {}
        for variable, context in self.open.items():
            if variable not in self.planned:
                failed.setdefault(context, []).append(variable)
        self.open = {variable: context for variable, context in now.items() if variable not in self.planned}
        return failed


def _grouped(values: dict[str, _Value], without: set[str] | tuple[str, ...]) -> dict[Facts, tuple[str, ...]]:
    groups: dict[Facts, list[str]] = {}
    for name, state in values.items():
        if name not in without:
            groups.setdefault(state.context, []).append(name)
    return {context: tuple(names) for context, names in groups.items()}


class Constancy:
    """Compares the values around an update with those around the previous one."""

    def __init__(self) -> None:
        self._scheduled: dict[str, bool] = {}
        self.forget()

    def forget(self) -> None:
        self._tracked: dict[tuple[str, str], _Tracked] = {}
        self._entries: dict[str, dict[str, frozenset[str]]] = {}
        self._tied: set[str] = set()
        self._scheduled.clear()

    def occasions(self, window: Window) -> Iterator[Occasion]:
        """Yield the occasions at each update, and at each load of an optimizer's state."""
        for call in calls_of(window, UPDATE, SCHEDULE, LOAD):
            general = call.levels[-1]
            if general == SCHEDULE:
                self._scheduled = dict.fromkeys(self._scheduled, True)
                continue
            live_readings = [reading for reading in window.readings_of.get(call.seq, ()) if reading.role == LIVE]
            yield from self._of_entries(call, window, live_readings)
            if general == LOAD:  # a load changes settings on purpose
                for key in [key for key in self._tracked if key[1] == call.receiver]:
                    del self._tracked[key]
                continue
            yield from self._of_values(call, window, live_readings)
            yield from self._of_ties(call, window)

    def _of_values(self, call: Call, window: Window, live_readings: list[Reading]) -> Iterator[Occasion]:
        for reading in live_readings:
            if _is_tracked(reading):
                owner = call.receiver if reading.kind == "hyperparameter" else ""
                self._tracked.setdefault((named(reading), owner), _Tracked(bool(owner))).take(reading)
        scheduled = self._scheduled.get(call.receiver, False)
        self._scheduled[call.receiver] = False
        for (quantity, owner), tracked in self._tracked.items():
            if owner not in ("", call.receiver):
                continue
            outcomes = list(tracked.step(call.receiver))
            stayed = not tracked.open and all(holds for _, _, holds in outcomes)
            if owner and scheduled and not tracked.not_scheduled(stayed):
                tracked.open.clear()
                continue
            for context, variables, holds in outcomes:
                subject, prop = _subject_and_property(quantity, frozen=_is_frozen(quantity, context))
                yield _occasion(subject, context, window, prop, holds, call, variables)

    def _of_entries(self, call: Call, window: Window, live_readings: list[Reading]) -> Iterator[Occasion]:
        entries_by_group = self._entries.setdefault(call.receiver, {})
        outcomes = dict.fromkeys(entries_by_group, True) if call.levels[-1] == UPDATE else {}
        for reading in live_readings:
            if named(reading) == KEYS:
                new_entries = frozenset(str(reading.value).split("+"))
                if reading.variable in entries_by_group:
                    holds = entries_by_group[reading.variable] <= new_entries
                    outcomes[reading.variable] = holds and outcomes.get(reading.variable, True)
                entries_by_group[reading.variable] = new_entries
        for holds in (True, False):
            names = tuple(name for name, kept in outcomes.items() if kept is holds)
            if names:
                prop = Property(KEEPS, KEYS)
                yield _occasion(Subject(KEYS, TIME), (), window, prop, holds, call, names)

    def _of_ties(self, call: Call, window: Window) -> Iterator[Occasion]:
        parameter_changes = [
            change for change, _ in window.change_groups if change.call == call.seq and change.kind == "parameter"
        ]
        if not self._tied and not any(value_of(change.context, "tied") is True for change in parameter_changes):
            return
        outcomes: dict[tuple[Facts, bool], list[str]] = {}
        tied_by_context: dict[int, bool] = {}  # contexts are few and shared, variables are many
        for change in window.changes_of.get(call.seq, ()):
            if change.kind != "parameter" or change.attribute != "data":
                continue
            tied = tied_by_context.get(id(change.context))
            if tied is None:
                tied = tied_by_context[id(change.context)] = value_of(change.context, "tied") is True
            if change.variable in self._tied:
                context = facts(requires_grad=value_of(change.context, "requires_grad"))
                outcomes.setdefault((context, tied), []).append(change.variable)
                if not tied:
                    self._tied.discard(change.variable)
            elif tied:
                self._tied.add(change.variable)
        if len(self._tied) > MAX_VARIABLES:
            self._tied.clear()
        prop = Property(STAYS, TIED)
        for (context, tied), names in outcomes.items():
            yield _occasion(Subject(TIED, TIME), context, window, prop, tied, call, tuple(names))

    @staticmethod
    def speaks_of(subject: Subject) -> bool:
        return subject.grain == TIME

    @staticmethod
    def needs(subject: Subject, prop: Property) -> Demand:
        if subject.api == TIED:
            return Demand.of_calls(UPDATE, changes=(PARAMETER_DATA,))
        apis = {UPDATE}
        if subject.api.startswith("hyperparameter."):
            apis |= {SCHEDULE, LOAD}
        return Demand.of_calls(*apis) | Demand.of_readings(subject.api)

    @staticmethod
    def is_optional_practice(prop: Property) -> bool:
        # To let frozen layers go one by one is a way to train.
        return prop.verb == STAYS and prop.detail == FROZEN

    @staticmethod
    def describe(subject: Subject, prop: Property) -> str:
        if subject.api == KEYS:
            return "a parameter group of an optimizer keeps the entries that it has"
        if subject.api == TIED:
            return "weights that are tied stay tied from one update to the next"
        if subject.api == REQUIRES_GRAD:
            return f"a parameter that is {prop.detail or 'trainable'} stays so from one update to the next"
        return f"the {phrase_for(subject.api)} stays as it is from one update to the next"


def _is_frozen(quantity: str, context: Facts) -> bool:
    return quantity == REQUIRES_GRAD and value_of(context, "requires_grad") is False


@functools.lru_cache(1_000)
def _subject_and_property(quantity: str, *, frozen: bool) -> tuple[Subject, Property]:
    """The subject and the property: freezing a trainable parameter and unfreezing a frozen one are two properties."""
    return Subject(quantity, TIME), Property(STAYS, quantity, FROZEN if frozen else "")


def _is_tracked(reading: Reading) -> bool:
    if reading.kind == "parameter":
        return reading.attribute in _PARAMETER_ATTRIBUTES
    return reading.kind == "hyperparameter" and reading.attribute not in _SCHEDULED and is_figure(reading.value)


def _occasion(
    subject: Subject,
    context: Facts,
    window: Window,
    prop: Property,
    holds: bool,
    call: Call,
    variables: tuple[str, ...],
) -> Occasion:
    return Occasion(subject, context_of(context, window.stage), *outcome_of(prop, holds), call.seq, variables)
