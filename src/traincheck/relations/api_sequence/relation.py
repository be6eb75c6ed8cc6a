"""APISequence(Ia, Ib, ...): between two calls of B, a call of A occurs or a variable changes; and the order of two
calls.

Source: OSDI '25, section 3.2. Occasions are the calls that change observed state, because these pace the loop;
evaluation has no fixed rhythm. Each receiver has its own occasions. The events between two calls of B form a *cycle*. A
cycle that contains A says both "B is preceded by A" and "A is followed by B". The calls inside B belong to the cycle
that B ends: a step whose closure clears gradients and calls backward updates with these gradients. In the cycle of an
optimizer, a call counts only if it touched parameters of this optimizer, or none at all: a program with two optimizers
may clip the gradients of one.

Note [Established calls]
A loop need not call any particular API: it may clip or not, and clear gradients through the model or by hand. So a call
is expected in a cycle only after this program made it in every cycle so far, at least `ESTABLISHED` of them. It is
missed if it is absent from as many cycles in a row: a program may skip updates whose gradients are not finite, or whose
batches did not fit into memory. An argument says how a call is made, so it is missed only in a cycle that has the call.
Where a program that always updates calls backward without an update, it looks at gradients: nothing else is missed
then, and in evaluation mode no update either. A call without a receiver, like a backward, begins anew where it touches
parameters of an optimizer for the first time, or is first called inside its step: a program may train several models
one after another, each with a loop of its own, or one model with Adam and then with L-BFGS, whose step calls backward
several times. A change of state is expected where a program needs it. Gradients are cleared in a cycle whose backward
adds to them (a program that writes gradients by hand need not). They are filled once they were set to none. See Note
[Means and ends] in event_contain/relation.py.

Note [Order that matters]
Two calls in a cycle are put in order (`then`) only if both changed the same kind of state in it, as `zero_grad` and
`backward` both change gradients. The order of other calls (fetch a batch, step a scheduler) is a matter of taste. The
last call of each before B counts, since a cycle may hold the calls of another optimizer's update as well.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Set
from itertools import chain
from operator import attrgetter
from typing import ClassVar, NamedTuple

from traincheck.relations.base import (
    argument_demand,
    argument_in,
    context_of,
    family,
    fixed_arguments,
    short,
    transitions,
    without_argument,
)
from traincheck.relations.parts import BACKWARD, FORWARD
from traincheck.vocab.bounded_cache import BoundedCache
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import COMPILED, LIFECYCLE, MODULE, REGION, TOUCHES, Call, Change, Window
from traincheck.vocab.facts import value_of
from traincheck.vocab.occasion import Occasion, Property, Subject
from traincheck.vocab.properties import IS_CLEARED, IS_FILLED, PRECEDED_BY, THEN

GRAIN = "cycle"
STATE_TOKENS = (
    Property(PRECEDED_BY, "parameter.grad", IS_CLEARED),
    Property(PRECEDED_BY, "parameter.grad", IS_FILLED),
)
"""The changes that are expected in a cycle of `UPDATE`, which consumes gradients, without being established first."""

CLEARED, FILLED = STATE_TOKENS
ACCUMULATES = Property(PRECEDED_BY, "parameter.grad", "accumulates")
"""A backward added to an existing gradient. This is not a property: it shows that the program should have cleared."""
EMPTIED = Property(PRECEDED_BY, "parameter.grad", "is emptied")
"""A gradient was set to none. This is not a property: it shows that a backward must fill the gradient. (Zeros that stay
zero may come from a backward that added nothing, at the floor of a loss.)"""
ZEROS_DROPPED = Property(PRECEDED_BY, "parameter.grad", "is dropped")
"""A gradient of zeros was set to none. This is not a property: it shows that nothing was left to clear, as after a
batch in which all samples are masked."""
HIDDEN, COMPUTED = Property(PRECEDED_BY, COMPILED, TOUCHES), Property(PRECEDED_BY, COMPILED)
"""A compiled function ran that changed gradients or parameters, or one that only computed (models may do that). These
are not properties: they show that sources did not observe all calls."""

OPTIMIZER = "torch.optim.Optimizer"
UPDATE = f"{OPTIMIZER}.step"
_UPDATES, _TRAINS = Property(PRECEDED_BY, UPDATE), Property(PRECEDED_BY, FORWARD, "training=True")


ESTABLISHED = 3
"""Cycles before a call counts as regular, or as missed: two may be chance (a first and a last), three in a row are a
practice."""


_NONE: Mapping[str, None] = {}
_NOTHING: frozenset[str] = frozenset()


class _Token(NamedTuple):
    """An event of the cycle: its names, its position and its owner. `properties` has one entry for each name.

    `effects` are the kinds of state that a call changed, `family` is its class or module; `parent` is the call around
    it, or the call that made the change. `optimizers` hold the parameters that a call touched, or called it.
    """

    seq: int
    properties: tuple[Property, ...]
    owner: str
    call: Call | None
    parent: int
    variables: Mapping[str, None] = _NONE
    effects: frozenset[str] = _NOTHING
    family: str = ""
    optimizers: frozenset[str] = _NOTHING


class _Cycle:
    """The events since the last call of a subject on one receiver, and the events of every cycle before."""

    __slots__ = (
        "absences",
        "count",
        "effects",
        "established",
        "family",
        "last",
        "of_optimizer",
        "optimizers",
        "receiver",
        "regular",
        "variables",
    )

    def __init__(self, call: Call, optimizers: frozenset[str]) -> None:
        self.receiver = call.receiver
        self.family = family(call.levels[-1])
        self.of_optimizer = self.family == OPTIMIZER
        self.count = 0
        self.last: dict[Property, int] = {}
        self.effects: dict[Property, frozenset[str]] = {}
        self.regular: set[Property] = set()
        self.established: set[Property] = set()
        self.absences: dict[Property, int] = {}  # for each of them: the cycles in a row that did not have it
        self.variables: dict[str, None] = {}
        self.optimizers = optimizers  # those of the parameters that the calls touched, also in earlier trainings

    def touches(self, optimizers: frozenset[str]) -> bool:
        """Note the optimizers of a call. Returns False if it is the first one for one of them."""
        known, self.optimizers = self.optimizers, self.optimizers | optimizers
        return optimizers <= known or not known

    def note(self, token: _Token) -> None:
        """Record an event. Calls of the same class count only on the same receiver; changes, and calls that touched
        parameters, count only for the optimizer of these parameters."""
        other_family = token.family != self.family if token.call is not None else not self.of_optimizer
        if not other_family and token.owner != self.receiver:
            return
        if self.of_optimizer and token.optimizers and self.receiver not in token.optimizers:
            return
        for prop in token.properties:
            self.last[prop] = token.seq
            self.effects[prop] = token.effects
        if token.variables:
            self.variables.update(token.variables)

    @property
    def only_looks(self) -> bool:
        """Whether a program that always updates has not updated: it looks at gradients, which are no training."""
        return _UPDATES in self.established and _UPDATES not in self.last

    @property
    def evaluates(self) -> bool:
        """Whether a program that trains in training mode called no model in it."""
        return _TRAINS in self.established and _TRAINS not in self.last

    def missing(self, expected: Set[Property]) -> set[Property]:
        """The expected events that did not occur although sources would have observed them."""
        absent = set(expected - self.last.keys())
        if not absent:
            return absent
        if HIDDEN in self.last:  # what has changed shows at the next call
            return absent & set(STATE_TOKENS)
        return {token for token in absent if COMPUTED not in self.last or token.object != FORWARD}

    def close(self) -> None:
        if self.only_looks:
            self.absences[_UPDATES] = self.absences.get(_UPDATES, 0) + (not self.evaluates)
        else:
            absent = self.missing(self.established)
            self.absences = {prop: self.absences.get(prop, 0) + 1 for prop in absent} if absent else {}
        happened = self.last.keys() - {ACCUMULATES, EMPTIED, ZEROS_DROPPED, HIDDEN, COMPUTED}
        self.regular = set(happened) if self.count == 0 else self.regular - self.missing(self.regular)
        self.count += HIDDEN not in self.last
        if self.count >= ESTABLISHED:
            self.established |= self.regular
        self.last.clear()
        self.effects.clear()
        self.variables.clear()


class APISequence:
    """See the module."""

    name: ClassVar[str] = "APISequence"

    def __init__(self, interest: Set[Subject] | None = None) -> None:
        self._interest = interest
        self._subjects: BoundedCache[tuple[str, ...], tuple[Subject, ...]] = BoundedCache()
        self._cycles: dict[tuple[str, str], _Cycle] = {}
        self._next_index = 0
        self._late: list[Occasion] = []  # of the last backward, to be judged if an update follows

    def occasions(self, window: Window) -> Iterator[Occasion]:
        if window.index != self._next_index:
            self._cycles.clear()
        self._next_index = window.index + 1
        running: list[tuple[Call, frozenset[str]]] = []  # calls that end cycles and may hold events, outermost first
        for token in _timeline(window):
            while running and not _is_inside(token, running[-1][0], window):
                yield from self._judge(*running.pop(), window)
            if token.call is not None and token.call.kind == LIFECYCLE and token.effects:
                running.append((token.call, token.optimizers))
            for cycle in self._cycles.values():
                cycle.note(token)
        while running:
            yield from self._judge(*running.pop(), window)
        self._late.clear()

    def _judge(self, call: Call, optimizers: frozenset[str], window: Window) -> Iterator[Occasion]:
        if self._late and call.levels[-1] in (BACKWARD, UPDATE):
            late, self._late = self._late, []
            yield from late if call.levels[-1] == UPDATE else ()
        for subject in self._subjects_of(call.levels):
            cycle = self._cycles.get((subject.api, call.receiver))
            if cycle is None or not cycle.touches(optimizers):
                # The events before the first call are incomplete: no cycle, no occasion.
                known = optimizers if cycle is None else cycle.optimizers
                self._cycles[subject.api, call.receiver] = _Cycle(call, known)
                continue
            held, failed = _judge_cycle(cycle, Property(PRECEDED_BY, call.levels[-1]))
            context, variables = context_of(call.context, window.stage), tuple(cycle.variables)
            if failed and subject.api == BACKWARD and _UPDATES in cycle.established:
                arguments = {prop for prop in failed if "=" in prop.detail}
                if arguments:
                    self._late.append(Occasion(subject, context, frozenset(), arguments, call.seq, variables))
                    failed -= arguments
            yield Occasion(subject, context, held, failed, call.seq, variables)
            cycle.close()

    def _subjects_of(self, levels: tuple[str, ...]) -> tuple[Subject, ...]:
        """The requested subjects of calls with these levels."""
        subjects = self._subjects.get(levels)
        if subjects is None:
            candidates = (Subject(level, GRAIN) for level in levels)
            requested = (subject for subject in candidates if self._interest is None or subject in self._interest)
            subjects = self._subjects.put(levels, tuple(requested))
        return subjects

    @staticmethod
    def needs(subject: Subject, prop: Property) -> Demand:
        # Only calls that change parameters or gradients have a cycle, so that has to be seen of all of them.
        if prop in STATE_TOKENS:
            apis = {subject.api}
        elif prop.detail.startswith(THEN):
            apis = {subject.api, prop.object, _second(prop).object}
        else:
            apis = {subject.api, prop.object}
        demand = Demand.of_calls(*apis, changes=("parameter.data", "parameter.grad"))
        return demand | argument_demand(prop.object, prop.detail) if "=" in prop.detail else demand

    @staticmethod
    def is_optional_practice(prop: Property) -> bool:
        return _is_practice(prop)

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
        around = f"between two calls of {short(subject.api)}"
        if prop.detail.startswith(THEN):
            return (
                f"{around}, {_phrase_of(Property(PRECEDED_BY, prop.object))} comes before {_phrase_of(_second(prop))}"
            )
        if prop in STATE_TOKENS:
            return f"{around}, some {prop.object.replace('.', ' ')} {prop.detail}"
        return f"{around}, {_phrase_of(prop)} is called"


def _is_practice(prop: Property) -> bool:
    """Whether a property says that a call is made, in whatever way."""
    return prop not in STATE_TOKENS and not prop.detail


def _is_of_absent_call(prop: Property, happened: Set[Property]) -> bool:
    """Whether a property says how a call is made that the cycle does not have: two backwards may follow a forward."""
    return "=" in prop.detail and Property(PRECEDED_BY, prop.object) not in happened


def _is_missed(prop: Property, cycle: _Cycle) -> bool:
    """Whether a call that the cycle does not have was absent from those before."""
    looks = cycle.only_looks and (prop != _UPDATES or cycle.evaluates)
    return cycle.absences.get(prop, 0) + 1 >= ESTABLISHED and not looks


def _is_inside(token: _Token, call: Call, window: Window) -> bool:
    """Whether the event belongs to a call that `call` made, and not to `call` itself."""
    if token.call is not None and token.parent == call.seq:
        return True
    around = window.by_seq.get(token.parent)
    return around is not None and any(ancestor is call for ancestor in window.ancestors(around))


def _second(prop: Property) -> Property:
    """The second of two calls that a `then` property orders. (The first is in `object`; only calls are ordered.)"""
    return Property(PRECEDED_BY, prop.detail.removeprefix(THEN))


def _phrase_of(token: Property) -> str:
    return f"{short(token.object)} with {token.detail}" if token.detail else short(token.object)


def _judge_cycle(cycle: _Cycle, itself: Property) -> tuple[Set[Property], Set[Property]]:
    """The properties that held in the cycle that ends now, and those that failed."""
    happened = cycle.last.keys() - {itself}
    expected = cycle.established - {itself}
    must_clear = ACCUMULATES in happened and ZEROS_DROPPED not in happened  # a rebuilt model has nothing to clear
    if not must_clear:
        expected -= {CLEARED} - happened
    if itself.object == UPDATE:
        expected |= {CLEARED} if must_clear else {CLEARED} & happened
        expected |= {FILLED} if EMPTIED in happened else {FILLED} & happened
    held = expected & happened
    failed = {prop for prop in cycle.missing(expected) if not _is_of_absent_call(prop, happened)}
    if failed and failed.isdisjoint(STATE_TOKENS):  # else a call that is absent explains what was not done
        failed = {prop for prop in failed if not _is_practice(prop) or _is_missed(prop, cycle)}
    effective = [token for token in happened if cycle.effects[token] and not token.detail]
    for first in effective:
        for second in effective:
            if first is not second and cycle.effects[first] & cycle.effects[second]:
                in_order = cycle.last[first] < cycle.last[second]
                (held if in_order else failed).add(_ordered_property(first.object, second.object))
    return held, failed


@functools.lru_cache(1_000)
def _ordered_property(first: str, second: str) -> Property:
    return Property(PRECEDED_BY, first, THEN + second)


def _timeline(window: Window) -> list[_Token]:
    """The calls that drive training and the changes of parameters and gradients, in order."""
    changes: dict[tuple[int, Property, str], list[list[int]]] = {}
    effects: dict[int, set[str]] = {}
    optimizers: dict[int, set[str]] = {}
    for change, positions in window.change_groups:
        if change.kind != "parameter":
            continue
        if change.changed:
            effects.setdefault(change.call, set()).add(change.attribute)
        if change.owner:
            optimizers.setdefault(change.call, set()).add(change.owner)
        for prop in _state_tokens(change.attribute, change.before, change.after, change.changed):
            if prop is not ACCUMULATES or _in_backward(change, window):
                changes.setdefault((change.call, prop, change.owner), []).append(positions)
    timeline = [
        _Token(
            call.seq,
            _names(call),
            call.receiver,
            call,
            call.parent,
            _NONE,
            frozenset(effects[call.seq]) if call.seq in effects else _NOTHING,
            family(call.levels[-1]),
            _optimizers_of(call, optimizers.get(call.seq), window),
        )
        for (kind, _), calls in window.calls_like.items()
        if kind in _DRIVING
        for call in calls
        if (value_of(call.context, "parametric") is True if kind == MODULE else _drives(call, window))
    ]
    timeline.sort(key=_SEQ)
    for (call_seq, prop, owner), groups in changes.items():
        group = groups[0] if len(groups) == 1 else sorted(chain.from_iterable(groups))
        variables = dict.fromkeys(window.variables_at(group))
        timeline.append(_Token(window.changes[group[0]].seq, (prop,), owner, None, call_seq, variables))
    timeline.sort(key=_SEQ)
    return timeline


@functools.lru_cache(1_000)
def _state_tokens(attribute: str, before: str, after: str, changed: bool) -> tuple[Property, ...]:
    """The tokens of a change of a parameter, including those that only a backward may produce."""
    transitions_made = transitions(before, after, changed)
    matches = [
        token for token in STATE_TOKENS if token.object == f"parameter.{attribute}" and token.detail in transitions_made
    ]
    if attribute == "grad" and before == after == "some" and changed:
        matches.append(ACCUMULATES)
    if attribute == "grad" and before == "some" and after == "none":
        matches.append(EMPTIED)
    if attribute == "grad" and (before, after) == ("zero", "none"):
        matches.append(ZEROS_DROPPED)
    return tuple(matches)


def _in_backward(change: Change, window: Window) -> bool:
    call = window.by_seq.get(change.call)
    return call is not None and call.levels[-1] == BACKWARD


def _optimizers_of(call: Call, owners: set[str] | None, window: Window) -> frozenset[str]:
    around = window.ancestors(call) if call.parent in window.by_seq else ()
    steps = {outer.receiver for outer in around if outer.levels[-1] == UPDATE}
    return frozenset(steps.union(owners or ())) if steps or owners else _NOTHING


_SEQ = attrgetter("seq")
_DRIVING = (MODULE, REGION, LIFECYCLE)


def _drives(call: Call, window: Window) -> bool:
    """Whether a call drives training. Modules do if they have parameters and are called from outside other modules."""
    if call.kind == REGION:  # what is compiled of a model or an optimizer drives nothing else
        parent = window.by_seq.get(call.parent)
        return call.name == COMPILED and (parent is None or parent.kind not in (MODULE, LIFECYCLE))
    return call.kind == LIFECYCLE and not any(around.kind == MODULE for around in window.ancestors(call))


def _names(call: Call) -> tuple[Property, ...]:
    """The most general name of a call, alone and with each fixed argument."""
    general = call.levels[-1]
    if call.kind == REGION:
        return (HIDDEN if value_of(call.result, TOUCHES) is True else COMPUTED,)
    return _named(general, tuple(fixed_arguments(call)) if call.args else ())


@functools.lru_cache(1_000)
def _named(general: str, arguments: tuple[str, ...]) -> tuple[Property, ...]:
    return (Property(PRECEDED_BY, general), *(Property(PRECEDED_BY, general, given) for given in arguments))
