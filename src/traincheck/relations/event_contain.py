"""EventContain(Ea, Eb): inside a call of an API another API is called, or a variable changes in a given way.

Source: OSDI '25, section 3.2. Three grains: the call and the calls that it makes itself (what those call in turn
follows from rules about them); the call and the changes inside it, at any depth; the call *for each variable* around
it.

Note [Means and ends]
Which calls a call makes is a matter of its implementation, so containment of calls is offered only under the call's own
most specific name: `Linear.forward` calls `linear`, which says nothing of modules in general. What becomes of
parameters and gradients is what the call is for, so changes are offered at every level: `Adam.step` changes parameters
as an `Optimizer.step`. (Of modules in general it is not said that they change their buffers: batch norms are for that.)
Which of its functions torch's own modules and functions call is settled by its version and tells nothing of a program;
to watch for it would mean to record nearly every function of torch in each step.

Note [Insides that were not seen]
What a compiled region computes is not observed. So of the call that it is made in, it can be told what that call
calls, but not what it does not; and that nothing changes in it only where the changes around the region were seen.

Note [Updates that need not show]
What an optimizer makes of a gradient of zeros (it may have momentum, or decay weights), of a parameter that nothing was
computed with, or of an update that is lost in rounding is no occasion: such a parameter may change or not.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Set
from operator import attrgetter
from typing import Any, ClassVar

from traincheck.relations.base import (
    argument_in,
    asks_for_argument,
    context_of,
    ended,
    fixed_arguments,
    possible,
    short,
    transitions,
    without_argument,
)
from traincheck.vocab.demand import SOME_STATE, Demand
from traincheck.vocab.events import FUNCTION, LIFECYCLE, MODULE, REGION, Call, Change, Window
from traincheck.vocab.facts import FactValue, merged
from traincheck.vocab.occasion import Occasion, Property, Subject

CALL, CHANGE = "contains call", "contains change"
WITHIN = "calls"
"""The grain at which the calls inside a call are its properties."""

CHANGERS = (
    "torch.optim.Optimizer.step",
    "torch.optim.Optimizer.zero_grad",
    "torch.autograd.backward",
    "torch.nn.Module.forward",
)
"""The calls around which sources observe changes."""

TORCH = "torch."

STATE = "optimizer_state.data"

SOME_DO = ("changes", "is cleared", "is filled")
"""Transitions that say something when some variable makes them (that some variable does not change says nothing)."""


class EventContain:
    """See the module's docstring."""

    name: ClassVar[str] = "EventContain"

    def __init__(self, interest: Set[Subject] | None = None) -> None:
        self._interest = interest

    def occasions(self, window: Window) -> Iterator[Occasion]:
        inner_calls, inner_changes = _calls_inside(window), _changes_inside(window)
        partly = _partly_seen(window)
        for call in window.calls:
            if not ended(call):
                continue
            yield from self._of_calls(call, window, inner_calls.get(call.seq), seen=call.seq not in partly)
            if call.kind != FUNCTION:
                yield from self._of_changes(call, window, inner_changes.get(call.seq))
        yield from self._of_variables(window)

    def _wanted(self, subject: Subject) -> bool:
        return self._interest is None or subject in self._interest

    def _of_calls(self, call: Call, window: Window, inside: set[Property] | None, *, seen: bool) -> Iterator[Occasion]:
        subject = Subject(call.name, WITHIN)
        # A call that never contains another is nobody's container; saying nothing of it keeps the tallies small, and
        # one that sometimes does is told from its first containing call on.
        if call.kind == REGION or (inside is None and call.kind == FUNCTION):
            return
        if self._wanted(subject) and (seen or inside):
            failed = None if seen else frozenset[Property]()
            yield Occasion(subject, context_of(call.context, window.stage), inside or frozenset(), failed, call.seq)

    def _of_changes(self, call: Call, window: Window, inside: list[Change] | None) -> Iterator[Occasion]:
        if inside is None:
            return
        # Of an attribute that was not observed around the call (an optimizer without state) nothing can be said, nor
        # of a transition that no variable could make.
        # Without a receiver (a backward) it is not known which variables the call is about, only that some must change.
        told = SOME_DO if call.receiver else SOME_DO[:1]
        held = {prop for alike in set(map(_ALIKE, inside)) for prop in _as_change(*alike) if prop.detail in told}
        # A backward that adds zeros to zeros changes nothing and is right; where there was none, it leaves something.
        sure = inside if call.receiver else [change for change in inside if change.before == "none"]
        could = {prop for before in set(map(_BEFORE, sure)) for prop in _could(*before) if prop.detail in told}
        could -= {prop for prop in could if not _all_seen(call, prop, window)}
        context = context_of(call.context, window.stage)
        for level in _answerable(call):
            subject = Subject(level)
            if self._wanted(subject):
                yield Occasion(subject, context, held, could - held, call.seq)

    def _of_variables(self, window: Window) -> Iterator[Occasion]:
        groups: dict[tuple[Any, ...], tuple[Change, list[str]]] = {}
        for change in window.changes:
            call = window.by_seq.get(change.call)
            # A call without a receiver (a backward) holds and owns nothing: which variables it concerns is not known.
            # What an optimizer keeps for each parameter, and which of it changes when, is its own affair.
            if change.kind == "optimizer_state" or not _shows(change):
                continue
            if call is not None and call.receiver and ended(call):
                alike = (change.call, change.context, *_ALIKE(change))
                groups.setdefault(alike, (change, []))[1].append(change.variable)
        for change, variables in groups.values():
            call = window.by_seq[change.call]
            context = context_of(merged(change.context, before=change.before, **_told_of_call(call)), window.stage)
            held = frozenset(_as_change(*_ALIKE(change)))
            failed = frozenset(_could(*_BEFORE(change))) - held
            for level in _answerable(call):
                subject = Subject(level, f"{change.kind}.{change.attribute}")
                if self._wanted(subject):
                    yield Occasion(subject, context, held, failed, change.call, tuple(variables))

    @staticmethod
    def needs(subject: Subject, prop: Property) -> Demand:
        if prop.verb == CALL:
            return Demand(frozenset((subject.api, prop.object)), asks_for_argument(prop.object, prop.detail))
        # What changes inside a block or a function changes in the calls that it makes.
        around = (subject.api, *CHANGERS) if subject.grain == "call" else (subject.api,)
        what = SOME_STATE if prop.object == STATE else prop.object  # that something of it changes is all that is said
        return Demand(apis=frozenset((subject.api,)), states=frozenset((api, what) for api in around))

    @staticmethod
    def is_habit(prop: Property) -> bool:
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
        if prop.verb == CALL:
            with_argument = f" with {prop.detail}" if prop.detail else ""
            return f"a call of {short(subject.api)} calls {short(prop.object)}{with_argument}"
        what = prop.object.replace(".", " ").replace("_", " ")
        if subject.grain == "call":
            return f"in a call of {short(subject.api)}, some {what} {prop.detail}"
        return f"in a call of {short(subject.api)}, the {what} {prop.detail}"


def _as_content(call: Call, parent: Call) -> frozenset[Property]:
    """The ways to name a call inside another: by its own and its most general name, with each fixed argument.

    Which layers a container of torch holds is a matter of its construction, so torch's modules have no name of their
    own here; and so are the arguments that its layers hand to functions.
    """
    if call.kind == REGION:
        return frozenset()  # a block is no call; what is in it belongs to the function around it
    of_torch = call.name.startswith(TORCH)
    within_torch = parent.name.startswith(TORCH)
    if call.kind != MODULE and of_torch and within_torch and parent.kind != LIFECYCLE:  # see Note [Means and ends]
        return frozenset()
    arguments = () if call.kind == FUNCTION and within_torch else tuple(fixed_arguments(call))
    return _named("" if of_torch and call.kind == MODULE else call.name, call.levels[-1], arguments)


@functools.lru_cache(10_000)
def _named(own: str, general: str, arguments: tuple[str, ...]) -> frozenset[Property]:
    names = {own, general} - {""}
    return frozenset(Property(CALL, name, argument) for name in names for argument in ("", *arguments))


_BEFORE = attrgetter("kind", "attribute", "before")
_ALIKE = attrgetter("kind", "attribute", "before", "after", "changed")
"""What a change is, whatever it is of. Of some hundred in a step few differ."""


@functools.lru_cache(10_000)
def _as_change(kind: str, attribute: str, before: str, after: str, changed: bool) -> tuple[Property, ...]:
    return tuple(Property(CHANGE, f"{kind}.{attribute}", one) for one in transitions(before, after, changed))


def _answerable(call: Call) -> tuple[str, ...]:
    """The levels that answer for changes: any optimizer changes parameters, but not any module its buffers."""
    return call.levels[:-1] if call.kind == MODULE else call.levels


def _shows(change: Change) -> bool:
    """Whether an update ought to show in this change, see Note [Updates that need not show]."""
    if change.attribute != "data" or change.kind == "buffer":
        return True
    told = dict(change.context)
    if told.get("held") != "this":
        return True
    return told.get("lost") is not True and told.get("grad") not in ("unused", "zero")


@functools.lru_cache(10_000)
def _could(kind: str, attribute: str, before: str) -> tuple[Property, ...]:
    return tuple(Property(CHANGE, f"{kind}.{attribute}", one) for one in possible(before))


def _told_of_call(call: Call) -> dict[str, FactValue]:
    """What of the call's context bears on each variable."""
    return {name: value for name, value in call.context if name in ("training", "grad_mode", "set_to_none", "closure")}


def _partly_seen(window: Window) -> set[int]:
    """The calls of which not all that they call themselves was seen, see Note [Insides that were not seen]."""
    found: set[int] = set()
    for region in (regions[0] for seq, regions in window.hidden.items() if regions[0].seq == seq):
        around = next((call for call in window.ancestors(region) if call.kind != REGION), None)
        if around is not None:
            found.add(around.seq)
    return found


def _all_seen(call: Call, prop: Property, window: Window) -> bool:
    """Whether all changes of this kind inside a call were seen, if there were any."""
    for region in window.hidden.get(call.seq, ()):
        around = [one for one in (region, *window.ancestors(region)) if one.seq >= call.seq]
        told = (change for one in around for change in window.changes_of.get(one.seq, ()))
        if not any(f"{change.kind}.{change.attribute}" == prop.object for change in told):
            return False
    return True


def _calls_inside(window: Window) -> dict[int, set[Property]]:
    """What each call of the window calls itself."""
    found: dict[int, set[Property]] = defaultdict(set)
    for call in window.calls:
        parent = window.by_seq.get(call.parent)
        while parent is not None:
            # What a call that drives training computes on the way (and what users hand to a loader) is its own affair.
            if not (call.kind == FUNCTION and parent.kind == LIFECYCLE):
                found[parent.seq].update(_as_content(call, parent))
            if parent.kind != REGION:  # what is called in a block is called by the function around it
                break
            parent = window.by_seq.get(parent.parent)
    return found


def _changes_inside(window: Window) -> dict[int, list[Change]]:
    """The changes inside each call of the window, at any depth; of modules only those around the call itself."""
    found: dict[int, list[Change]] = defaultdict(list)
    for change in window.changes:
        if not change.changed and not _shows(change):
            continue
        call = window.by_seq.get(change.call)
        while call is not None:
            if call.kind != MODULE or call.seq == change.call:
                found[call.seq].append(change)
            call = window.by_seq.get(call.parent)
    return found
