"""EventContain(Ea, Eb): a call of one API makes a call of another API, or changes a variable in a given way.

Source: OSDI '25, section 3.2. There are three grains:
* the call with the calls that it makes directly; indirect calls follow from rules about those;
* the call with the changes inside it, at any depth;
* the call *for each variable* around it.

Note [Means and ends]
The calls inside a call are a matter of its implementation. So containment of calls is offered only under the most
specific name: `Linear.forward` calls `linear`, which says nothing about modules in general. The effect on parameters
and gradients is the purpose of the call, so changes are offered at every level: `Adam.step` changes parameters as an
`Optimizer.step`. (Modules in general are not expected to change buffers; batch norms do.) The version of torch settles
which of its functions its own modules and functions call. A rule about these says nothing about a program, and would
need a recording of nearly every function of torch.

Note [Calls that were not fully observed]
Sources do not observe the inside of a compiled region. Around such a region, TrainCheck records the calls that it sees
and never concludes that a call is missing. It concludes that nothing changed only if sources observed the changes
around the region.

Note [Updates that need not show]
Some updates are no occasion, because the parameter may change or not: a gradient of zeros (momentum and weight decay
still apply), a parameter that nothing was computed with, and an update that is lost in rounding. A gradient of zeros
that stays zero is no occasion either: clearing, clipping and unscaling leave zeros as they are, and a program may fill
its gradients with zeros before the first backward. If gradients are absent next to such zeros, a call that clears has
nothing to change.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Set
from itertools import chain
from operator import itemgetter
from typing import ClassVar, NamedTuple

from traincheck.relations.base import (
    argument_demand,
    argument_in,
    context_of,
    ended,
    fixed_arguments,
    possible,
    short,
    transitions,
    without_argument,
)
from traincheck.vocab.bounded_cache import BoundedCache
from traincheck.vocab.demand import SOME_STATE, Demand
from traincheck.vocab.events import FUNCTION, LIFECYCLE, MODULE, REGION, Call, Change, Window
from traincheck.vocab.facts import Facts, merged, value_of
from traincheck.vocab.occasion import Occasion, Property, Subject
from traincheck.vocab.properties import CHANGES, CONTAINS_CALL, CONTAINS_CHANGE, IS_CLEARED, IS_FILLED

WITHIN = "calls"
"""The grain whose properties are the calls inside a call."""

CHANGERS = (
    "torch.optim.Optimizer.step",
    "torch.optim.Optimizer.zero_grad",
    "torch.autograd.backward",
    "torch.nn.Module.forward",
)
"""The calls around which sources observe changes."""

TORCH = "torch."

STATE = "optimizer_state.data"

SOME_DO = (CHANGES, IS_CLEARED, IS_FILLED)
"""Transitions that mean something if at least one variable makes them. ("Some variable does not change" means
nothing.)"""


class _Subjects(NamedTuple):
    """The requested subjects of a call: as one that makes calls, and as one in which variables change."""

    calls: Subject | None = None
    changes: tuple[Subject, ...] = ()


_NO_SUBJECTS = _Subjects()


class EventContain:
    """See the module."""

    name: ClassVar[str] = "EventContain"

    def __init__(self, interest: Set[Subject] | None = None) -> None:
        self._interest = interest
        self._subjects: BoundedCache[tuple[str, tuple[str, ...]], _Subjects] = BoundedCache()
        self._subjects_by_change: BoundedCache[tuple[str, tuple[str, ...], str, str], tuple[Subject, ...]] = (
            BoundedCache()
        )

    def occasions(self, window: Window) -> Iterator[Occasion]:
        if not window.calls:
            return
        requested = [
            (call, subjects)
            for (kind, levels), same_calls in window.calls_like.items()
            if (subjects := self._subjects_of(kind, levels)) is not _NO_SUBJECTS
            for call in same_calls
        ]
        requested.sort(key=itemgetter(0))  # by `seq`
        inner_calls = _calls_inside(window, {call.seq for call, subjects in requested if subjects.calls is not None})
        inner_changes = _changes_inside(window, {call.seq for call, subjects in requested if subjects.changes})
        partly_observed = _partly_seen(window)
        for call, subjects in requested:
            if subjects.calls is not None:
                inside = inner_calls.get(call.seq)
                yield from _call_occasions(subjects.calls, call, window, inside, seen=call.seq not in partly_observed)
            if call.seq in inner_changes:
                yield from _change_occasions(subjects.changes, call, window, inner_changes[call.seq])
        yield from self._of_variables(window)

    def _subjects_of(self, kind: str, levels: tuple[str, ...]) -> _Subjects:
        """The subjects of calls with these levels."""
        subjects = self._subjects.get((kind, levels))
        if subjects is None:
            calls = None if kind == REGION else next(self._requested((levels[0],), WITHIN), None)
            changes = () if kind == FUNCTION else tuple(self._requested(_answerable(kind, levels), "call"))
            subjects = _Subjects(calls, changes) if calls is not None or changes else _NO_SUBJECTS
            self._subjects.put((kind, levels), subjects)
        return subjects

    def _requested(self, levels: Iterable[str], grain: str) -> Iterator[Subject]:
        for level in levels:
            subject = Subject(level, grain)
            if self._interest is None or subject in self._interest:
                yield subject

    def _of_variables(self, window: Window) -> Iterator[Occasion]:
        groups: dict[tuple[object, ...], tuple[Change, Call, tuple[Subject, ...], list[list[int]]]] = {}
        for change, positions in window.change_groups:
            call = window.by_seq.get(change.call)
            # A call without a receiver (a backward) owns no variables, so the variables that it concerns are unknown.
            # When an optimizer changes its own state is left to the optimizer.
            if change.kind == "optimizer_state" or call is None or not call.receiver or not ended(call):
                continue
            subjects = self._subjects_around(call, change)
            if subjects and _shows(change) and not _stays_zero(*_shape_of(change)):
                group_key = (change.call, change.context, _shape_of(change))
                groups.setdefault(group_key, (change, call, subjects, []))[3].append(positions)
        for change, call, subjects, position_lists in groups.values():
            context = _context_of(change, call, window.stage)
            held, failed = _variable_outcome(*_shape_of(change))
            variables = window.variables_at(
                position_lists[0] if len(position_lists) == 1 else sorted(chain.from_iterable(position_lists))
            )
            for subject in subjects:
                yield Occasion(subject, context, held, failed, change.call, variables)

    def _subjects_around(self, call: Call, change: Change) -> tuple[Subject, ...]:
        """The subjects of a change around a call."""
        key = (call.kind, call.levels, change.kind, change.attribute)
        subjects = self._subjects_by_change.get(key)
        if subjects is None:
            levels = _answerable(call.kind, call.levels)
            subjects = self._subjects_by_change.put(
                key, tuple(self._requested(levels, f"{change.kind}.{change.attribute}"))
            )
        return subjects

    @staticmethod
    def needs(subject: Subject, prop: Property) -> Demand:
        if prop.verb == CONTAINS_CALL:
            return Demand.of_calls(subject.api, prop.object) | argument_demand(prop.object, prop.detail)
        # Changes inside a region or a function occur in the calls that it makes.
        around = (subject.api, *CHANGERS) if subject.grain == "call" else (subject.api,)
        state = SOME_STATE if prop.object == STATE else prop.object  # that something of it changes is all that is said
        return Demand.of_calls(subject.api) | Demand.of_changes(*((api, state) for api in around))

    @staticmethod
    def is_optional_practice(prop: Property) -> bool:
        return False

    @staticmethod
    def is_setting(prop: Property) -> bool:
        return False

    @staticmethod
    def argument_of(subject: Subject, prop: Property) -> tuple[str, str] | None:
        return argument_in(prop)

    @staticmethod
    def implied(prop: Property) -> Iterable[Property]:
        return without_argument(prop)

    @staticmethod
    def describe(subject: Subject, prop: Property) -> str:
        if prop.verb == CONTAINS_CALL:
            with_argument = f" with {prop.detail}" if prop.detail else ""
            return f"a call of {short(subject.api)} calls {short(prop.object)}{with_argument}"
        noun = prop.object.replace(".", " ").replace("_", " ")
        if subject.grain == "call":
            return f"in a call of {short(subject.api)}, some {noun} {prop.detail}"
        return f"in a call of {short(subject.api)}, the {noun} {prop.detail}"


def _call_occasions(
    subject: Subject, call: Call, window: Window, properties: set[Property] | None, *, seen: bool
) -> Iterator[Occasion]:
    # A function that contains no call yields no occasion, which keeps tallies small. One that contains calls only
    # sometimes is judged from its first such call on.
    if properties is None and call.kind == FUNCTION:
        return
    if seen or properties:
        failed = None if seen else frozenset[Property]()
        yield Occasion(subject, context_of(call.context, window.stage), properties or frozenset(), failed, call.seq)


def _change_occasions(
    subjects: tuple[Subject, ...], call: Call, window: Window, inside: set[_ChangeShape]
) -> Iterator[Occasion]:
    held, possible_props = _some_variable_outcome(frozenset(inside), of_receiver=bool(call.receiver))
    if call.seq in window.hidden:
        possible_props -= {prop for prop in possible_props if not _all_seen(call, prop, window)}
    context, failed = context_of(call.context, window.stage), possible_props - held
    for subject in subjects:
        yield Occasion(subject, context, held, failed, call.seq)


@functools.lru_cache(1_000)
def _some_variable_outcome(
    inside: frozenset[_ChangeShape], *, of_receiver: bool
) -> tuple[frozenset[Property], frozenset[Property]]:
    """The properties that held of some variable, and those that could have, given the changes inside a call.

    An attribute that was not observed around the call (an optimizer without state) is not judged, nor is a transition
    that no variable could make. Without a receiver (a backward) the variables of the call are unknown; only some of
    them must change.
    """
    relevant = SOME_DO if of_receiver else SOME_DO[:1]
    if of_receiver and any(_stays_zero(*shape) for shape in inside):
        inside = frozenset(shape for shape in inside if shape[4] or shape[1] != "grad" or shape[2] == "some")
    held = (prop for shape in inside for prop in _change_properties(*shape) if prop.detail in relevant)
    # A backward may add zeros to zeros and change nothing; if there was no gradient, it must leave one.
    required = {shape[:3] for shape in inside if of_receiver or shape[2] == "none"}
    return frozenset(held), frozenset(
        prop for before in required for prop in _possible_properties(*before) if prop.detail in relevant
    )


@functools.lru_cache(1_000)
def _variable_outcome(
    kind: str, attribute: str, before: str, after: str, changed: bool
) -> tuple[frozenset[Property], frozenset[Property]]:
    """The properties that held and failed for a variable that changed like this."""
    held = frozenset(_change_properties(kind, attribute, before, after, changed))
    return held, frozenset(_possible_properties(kind, attribute, before)) - held


def _context_of(change: Change, call: Call, stage: str) -> Facts:
    """The context of a change, cached by the `id` of the facts of the variable; see `context_of` in base.py."""
    of_call = tuple([pair for pair in call.context if pair[0] in _CALL_FACTS])
    key = (id(change.context), of_call, change.before, stage)
    cached = _contexts.get(key)
    if cached is None:
        context = context_of(merged(change.context, before=change.before, **dict(of_call)), stage)
        cached = _contexts.put(key, (context, change.context))
    return cached[0]


_contexts: BoundedCache[tuple[int, Facts, str, str], tuple[Facts, Facts]] = BoundedCache()

_CALL_FACTS = ("training", "grad_mode", "set_to_none", "closure")
"""The facts of the call that affect each variable."""


def _call_properties(call: Call, parent: Call) -> frozenset[Property]:
    """The names of a call inside another: its own and its most general one, with each fixed argument.

    The construction of a container decides which layers of torch it holds, so torch's modules have no name of their own
    here. The same holds for the arguments that its layers pass to functions.
    """
    if call.kind == REGION:
        return frozenset()  # a region is no call; its content belongs to the function around it
    name = call.levels[0]
    of_torch = name.startswith(TORCH)
    within_torch = parent.levels[0].startswith(TORCH)
    if call.kind != MODULE and of_torch and within_torch and parent.kind != LIFECYCLE:  # see Note [Means and ends]
        return frozenset()
    of_layer = call.kind == FUNCTION and within_torch
    arguments = tuple(fixed_arguments(call)) if call.args and not of_layer else ()
    return _named("" if of_torch and call.kind == MODULE else name, call.levels[-1], arguments)


@functools.lru_cache(10_000)
def _named(own: str, general: str, arguments: tuple[str, ...]) -> frozenset[Property]:
    names = {own, general} - {""}
    return frozenset(Property(CONTAINS_CALL, name, argument) for name in names for argument in ("", *arguments))


_ChangeShape = tuple[str, str, str, str, bool]


def _shape_of(change: Change) -> _ChangeShape:
    """The kind of a change, without its variable. Hundreds of changes in a step share few kinds."""
    return change.kind, change.attribute, change.before, change.after, change.changed


@functools.lru_cache(10_000)
def _change_properties(kind: str, attribute: str, before: str, after: str, changed: bool) -> tuple[Property, ...]:
    return tuple(
        Property(CONTAINS_CHANGE, f"{kind}.{attribute}", transition)
        for transition in transitions(before, after, changed)
    )


def _answerable(kind: str, levels: tuple[str, ...]) -> tuple[str, ...]:
    """The levels that rules about changes may name: any optimizer changes parameters, but not every module changes its
    buffers."""
    return levels[:-1] if kind == MODULE else levels


def _shows(change: Change) -> bool:
    """Whether an update must be visible in this change, see Note [Updates that need not show]."""
    if change.attribute != "data" or change.kind == "buffer":
        return True
    variable_facts = change.context
    if value_of(variable_facts, "held") != "this":
        return True
    return value_of(variable_facts, "lost") is not True and value_of(variable_facts, "grad") not in ("unused", "zero")


def _stays_zero(kind: str, attribute: str, before: str, after: str, changed: bool) -> bool:
    """Whether a gradient of zeros stays zero, see Note [Updates that need not show]."""
    return attribute == "grad" and before == after == "zero" and not changed


@functools.lru_cache(10_000)
def _possible_properties(kind: str, attribute: str, before: str) -> tuple[Property, ...]:
    return tuple(Property(CONTAINS_CHANGE, f"{kind}.{attribute}", transition) for transition in possible(before))


def _partly_seen(window: Window) -> set[int]:
    """The calls whose direct calls were not all observed, see Note [Calls that were not fully observed]."""
    partly_seen: set[int] = set()
    for region in (regions[0] for seq, regions in window.hidden.items() if regions[0].seq == seq):
        around = next((call for call in window.ancestors(region) if call.kind != REGION), None)
        if around is not None:
            partly_seen.add(around.seq)
    return partly_seen


def _all_seen(call: Call, prop: Property, window: Window) -> bool:
    """Whether sources observed every change of this kind inside a call."""
    for region in window.hidden.get(call.seq, ()):
        calls_around = [
            call_around for call_around in (region, *window.ancestors(region)) if call_around.seq >= call.seq
        ]
        changes = (change for call_around in calls_around for change in window.changes_of.get(call_around.seq, ()))
        if not any(f"{change.kind}.{change.attribute}" == prop.object for change in changes):
            return False
    return True


def _calls_inside(window: Window, requested: set[int]) -> dict[int, set[Property]]:
    """The calls that each of the `requested` calls makes directly."""
    properties_by_call: dict[int, set[Property]] = {}
    for call in window.calls if requested else ():
        parent = window.by_seq.get(call.parent)
        while parent is not None:
            # Functions inside a call that drives training (or inside a loader) are an implementation detail.
            if parent.seq in requested and not (call.kind == FUNCTION and parent.kind == LIFECYCLE):
                properties_by_call.setdefault(parent.seq, set()).update(_call_properties(call, parent))
            if parent.kind != REGION:  # the function around a region makes the calls inside it
                break
            parent = window.by_seq.get(parent.parent)
    return properties_by_call


def _changes_inside(window: Window, requested: set[int]) -> dict[int, set[_ChangeShape]]:
    """The changes inside each of the `requested` calls, at any depth; for modules only those around the call itself."""
    shapes_by_call: dict[int, set[_ChangeShape]] = {}
    for change, _ in window.change_groups if requested else ():
        if not change.changed and not _shows(change):
            continue
        call = window.by_seq.get(change.call)
        while call is not None:
            if call.seq in requested and (call.kind != MODULE or call.seq == change.call):
                shapes_by_call.setdefault(call.seq, set()).add(_shape_of(change))
            call = window.by_seq.get(call.parent)
    return shapes_by_call
