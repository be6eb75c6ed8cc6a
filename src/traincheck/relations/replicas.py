"""Replicas: what several ranks hold under one name has the same value on all of them.

Compared are the fingerprints of parameters and gradients as they are at the end of a step, and readings of what steers
an update (learning rates, step counts). Ranks are compared with the first one and each with the next, in windows of the
same step. Where ranks hold different parts on purpose (shards, experts), facts of the variable tell so; a precondition
is learned from these, and how seldom the rule holds is no reason against it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from traincheck.relations.base import context_of
from traincheck.relations.parts import RANKS, UPDATE, calls_of, named, readings, said
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import LIVE, NO_CALL, Change, Window
from traincheck.vocab.facts import Facts, FactValue, facts, value_of
from traincheck.vocab.occasion import Occasion, Property, Subject

SAME = "same on ranks"
BACKWARD = "torch.autograd.backward"
_OF_CHANGES = {"parameter.data": UPDATE, "parameter.grad": BACKWARD}
_KINDS = ("hyperparameter", "optimizer_state")
_TELLING = ("requires_grad", "held", "owned", "tied", "attributes", "replicated", "precision", "scalar")
"""Facts of a variable that may tell why ranks differ."""

_Fingerprinted = dict[tuple[str, str], tuple[Change, FactValue]]
"""The last change with a fingerprint, with the context managers around its call, by (attribute, variable)."""


class Replicas:
    """Compares aligned windows; of readings the last value of each rank is kept, as they are told when they change."""

    def __init__(self) -> None:
        self._values: dict[int, dict[tuple[str, str], FactValue]] = {}
        self._next_index: dict[int, int] = {}

    def across(self, windows: Sequence[Window]) -> Iterator[Occasion]:
        """The occasions in windows of several ranks at the same step; `seq` is of the first."""
        seen = [_fingerprints(window) for window in windows]
        for one, other in _pairs(len(windows)):
            yield from _of_changes(seen[one], seen[other], windows[0].stage)
        yield from self._of_readings(windows)

    def _of_readings(self, windows: Sequence[Window]) -> Iterator[Occasion]:
        told: dict[tuple[str, str], int] = {}
        for window in windows:
            if window.index != self._next_index.get(window.rank, 0):
                self._values.pop(window.rank, None)
            self._next_index[window.rank] = window.index + 1
            kept = self._values.setdefault(window.rank, {})
            for call in calls_of(window, UPDATE):
                for reading in window.readings_of.get(call.seq, ()):
                    if reading.kind in _KINDS and reading.role == LIVE and reading.attribute != "keys":
                        kept[named(reading), reading.variable] = reading.value
                        told.setdefault((named(reading), reading.variable), NO_CALL)
                        if window is windows[0]:
                            told[named(reading), reading.variable] = call.seq
        context = context_of(facts(same_name=True, same_rank=False), windows[0].stage)
        for key, seq in told.items():
            thing, variable = key
            prop = frozenset((Property(SAME, thing),))
            for one, other in _pairs(len(windows)):
                values = [self._values[windows[place].rank] for place in (one, other)]
                if all(key in kept for kept in values):
                    so = values[0][key] == values[1][key]
                    yield _occasion(thing, context, prop, so, seq, (variable,))

    @staticmethod
    def speaks_of(subject: Subject) -> bool:
        return subject.grain == RANKS

    @staticmethod
    def needs(subject: Subject, prop: Property) -> Demand:
        call = _OF_CHANGES.get(subject.api)
        if call is not None:
            return Demand(frozenset((call,)), frozenset(((call, subject.api),)))
        return Demand(frozenset((UPDATE,)), readings(subject.api))

    @staticmethod
    def is_habit(prop: Property) -> bool:
        return False

    @staticmethod
    def describe(subject: Subject, prop: Property) -> str:
        named_so = {"parameter.data": "a parameter", "parameter.grad": "the gradient of a parameter"}
        what = named_so.get(subject.api, f"the {said(subject.api)}")
        return f"{what} has the same value on every rank at the end of a step"

    def occasions(self, window: Window) -> Iterator[Occasion]:
        """None: one rank alone says nothing of others."""
        return iter(())

    def forget(self) -> None:
        """See `across`, which looks at the windows of each rank by itself."""


def _pairs(ranks: int) -> list[tuple[int, int]]:
    """Each with the first, and with the next: a single rank that differs shows in three pairs at the most."""
    return sorted({*((0, other) for other in range(1, ranks)), *((one, one + 1) for one in range(ranks - 1))})


def _fingerprints(window: Window) -> _Fingerprinted:
    found: _Fingerprinted = {}
    for change in window.changes:
        what = f"{change.kind}.{change.attribute}"
        call = window.by_seq.get(change.call)
        if change.fingerprint is not None and call is not None and call.levels[-1] == _OF_CHANGES.get(what):
            found[what, change.variable] = (change, value_of(call.context, "within"))
    return found


def _of_changes(one: _Fingerprinted, other: _Fingerprinted, stage: str) -> Iterator[Occasion]:
    fates: dict[tuple[str, Facts, bool], list[Change]] = {}
    for (what, variable), (change, within) in one.items():
        found = other.get((what, variable))
        if found is not None:
            context = _shared(change, found[0], within, found[1])
            fates.setdefault((what, context, change.fingerprint == found[0].fingerprint), []).append(change)
    for (what, context, so), changes in fates.items():
        prop = frozenset((Property(SAME, what),))
        names = tuple(change.variable for change in changes)
        yield _occasion(what, context_of(context, stage), prop, so, changes[0].call, names)


def _shared(one: Change, other: Change, within: FactValue, other_within: FactValue) -> Facts:
    """What both ranks tell alike of the variable."""
    mine, theirs = dict(one.context), dict(other.context)
    found = {name: mine[name] for name in _TELLING if name in mine and theirs.get(name) == mine[name]}
    if within is not None and within == other_within:
        found["within"] = within
    return facts(same_name=True, same_rank=False, **found)


def _occasion(
    thing: str, context: Facts, prop: frozenset[Property], so: bool, seq: int, variables: tuple[str, ...]
) -> Occasion:
    nothing = frozenset[Property]()
    return Occasion(Subject(thing, RANKS), context, prop if so else nothing, nothing if so else prop, seq, variables)
