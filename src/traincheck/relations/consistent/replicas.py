"""Replicas: what several ranks hold under one name has the same value on all of them.

Compared are, by fingerprint, the gradients and parameters that an update uses and the parameters that it leaves, the
gradients that a backward leaves, and readings of what steers an update (learning rates, step counts), in windows of the
same step. Of ranks that are known to be alike (`Window.alike`) one is compared for all. Buffers: see buffers.py.

Note [Replicas and shards]
Where ranks hold different parts on purpose (shards, experts, stages of a pipeline), their values differ from the start,
or from the first update on, and facts of the variable may tell so. What makes replicas of two variables is that they
were the same: *before* the update, after an earlier one, or together with all others of the model. Whether the update
then used the same gradients, and left the same values, is what is asked. That an update is a function of value and
gradient needs no other reason: where both were the same, so must be what it leaves. So nothing else is told of an
update; the more facts there are, the more of them would separate by chance. How seldom ranks agree is no reason against
a rule.

Known limitations: what an optimizer keeps for a parameter is not compared, so a momentum that differs shows when it has
made the parameters differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from traincheck.relations.base import context_of, fate
from traincheck.relations.consistent.rank_pairs import Kept, Names, classes_of, pairs_of
from traincheck.relations.parts import BACKWARD, UPDATE, calls_of, named, readings, said
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import DIGEST, LIVE, NO_CALL, Change, Reading, Window
from traincheck.vocab.facts import Facts, FactValue, facts, value_of
from traincheck.vocab.occasion import RANKS, Occasion, Property, Subject
from traincheck.vocab.ranks import NOT_APART, Apart, apart, who_differs

SAME = "same on ranks"
DATA, GRAD = "parameter.data", "parameter.grad"
USED_DATA, USED_GRAD = "parameter.used_data", "parameter.used_grad"
FIRST_DATA, BUILT = "parameter.first_data", "torch.optim.Optimizer.__init__"
_OF_CHANGES = {DATA: UPDATE, GRAD: BACKWARD}
_KINDS = ("hyperparameter", "optimizer_state")
_OWN = ("keys", "lowest_step")
"""Readings that differ honestly: a parameter without a gradient (an expert without tokens) stands still on one rank."""
_TELLING = ("requires_grad", "held", "owned", "tied", "attributes", "replicated", "precision", "scalar")
"""Facts of a variable that may tell why ranks differ."""
_ALWAYS: dict[str, FactValue] = {"same_name": True, "same_rank": False}


THOUGH_KEPT = "though an earlier update left the same"
THOUGH_ALIKE = "though value and gradient were the same before it"
"""How notes end where ranks went apart between two updates, or in one."""


class _Left(NamedTuple):
    """The last change of a variable in a window, with the context managers around its call."""

    change: Change
    within: FactValue


class _Seen(NamedTuple):
    """What one rank tells of a step: changes by (attribute, variable), and what updates used by (thing, variable)."""

    left: dict[tuple[str, str], _Left]
    used: dict[tuple[str, str], Reading]

    def value(self, thing: str, variable: str) -> FactValue:
        """The fingerprint of what an update used, None where it was not told."""
        found = self.used.get((thing, variable))
        return None if found is None else found.value


_IN_WORDS = {
    USED_GRAD: "the gradient that the update used",
    USED_DATA: "the value before the update",
    DATA: "the value that the update left",
    GRAD: "the gradient that the backward left",
    FIRST_DATA: "the value that an optimizer was built with",
}


class _Unlike(NamedTuple):
    """Which of the ranks differ from the others, in words and as data."""

    note: str = ""
    apart: Apart = NOT_APART


class _Ranks(NamedTuple):
    """What all ranks tell of a step; `found` keeps what was found of it, as many pairs of them may differ."""

    numbers: list[int]
    seen: list[_Seen]
    found: dict[tuple[str, str, FactValue], _Unlike]

    def unlike(self, what: str, variable: str, before: FactValue) -> _Unlike:
        """Who differs in a variable: of all ranks, or of those that held the value `before` the update, if given."""
        key = what, variable, before
        if key not in self.found:
            self.found[key] = _unlike(what, self._values(*key))
        return self.found[key]

    def _values(self, what: str, variable: str, before: FactValue) -> list[tuple[int, FactValue]]:
        values: list[tuple[int, FactValue]] = []
        for number, of_rank in zip(self.numbers, self.seen, strict=True):
            left = of_rank.left.get((what, variable))
            value = of_rank.value(what, variable) if left is None else left.change.fingerprint
            if value is not None and before in (None, of_rank.value(USED_DATA, variable)):
                values.append((number, value))
        return values


def _unlike(what: str, values: Sequence[tuple[int, FactValue]]) -> _Unlike:
    words = _IN_WORDS.get(what, f"the {said(what)}")
    return _Unlike(f"{who_differs(values)} in {words}", apart(values))


class Replicas:
    """Compares aligned windows; of readings the last value of each rank is kept, as they are told when they change."""

    def __init__(self) -> None:
        self._values: dict[int, dict[tuple[str, str], FactValue]] = {}
        self._next_index: dict[int, int] = {}
        self._kept = Kept()

    def across(self, windows: Sequence[Window]) -> Iterator[Occasion]:
        """The occasions in windows of several ranks at the same step; `seq` is of the first."""
        seen = {window.rank: _seen(window) for window in windows if window.values_of == window.rank}
        told = _Ranks([window.rank for window in windows], [seen[window.values_of] for window in windows], {})
        sharded = any(window.alike is not None and window.alike.sharded for window in windows)
        alike = classes_of(windows)
        for one, other in sorted(pairs_of(list(alike)) | self._kept.pairs(alike)):
            kept = self._kept.of(one, other, alike)
            theirs = seen.get(other, seen[one])  # of those alike, one tells for all
            yield from _compared(seen[one], theirs, kept, windows[0].stage, told, sharded)
        yield from _of_first([window for window in windows if window.rank in seen])
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
                    if reading.kind in _KINDS and reading.role == LIVE and reading.attribute not in _OWN:
                        kept[named(reading), reading.variable] = reading.value
                        told.setdefault((named(reading), reading.variable), NO_CALL)
                        if window is windows[0]:
                            told[named(reading), reading.variable] = call.seq
        context = context_of(facts(same_name=True, same_rank=False), windows[0].stage)
        pairs = sorted(pairs_of([window.rank for window in windows]))
        for key, seq in told.items():
            thing, variable = key
            found = _Unlike()
            for one, other in pairs:
                values = self._values[one], self._values[other]
                if all(key in kept for kept in values):
                    so = values[0][key] == values[1][key]
                    if not so and not found.note:
                        kept_by = {window.rank: self._values[window.rank] for window in windows}
                        found = _unlike(thing, [(rank, kept[key]) for rank, kept in kept_by.items() if key in kept])
                    yield _occasion(thing, context, so, seq, (variable,), found)

    @staticmethod
    def speaks_of(subject: Subject) -> bool:
        return subject.grain == RANKS

    @staticmethod
    def needs(subject: Subject, prop: Property) -> Demand:
        if subject.api == FIRST_DATA:
            return Demand(frozenset((BUILT,)), readings(FIRST_DATA))
        if subject.api in (USED_DATA, USED_GRAD, DATA):  # each is a circumstance of the others
            return Demand(frozenset((UPDATE,)), readings(USED_DATA, USED_GRAD) | {(UPDATE, DATA)})
        if subject.api == GRAD:
            return Demand(frozenset((BACKWARD,)), frozenset(((BACKWARD, GRAD),)))
        return Demand(frozenset((UPDATE,)), readings(subject.api))

    @staticmethod
    def is_habit(prop: Property) -> bool:
        return False

    @staticmethod
    def describe(subject: Subject, prop: Property) -> str:
        return {
            DATA: "an update leaves the same value of a parameter on every rank",
            GRAD: "a backward leaves the same gradient of a parameter on every rank",
            FIRST_DATA: "an optimizer is built with the same value of a parameter on every rank",
            USED_DATA: "a parameter has the same value on every rank before an update",
            USED_GRAD: "an update uses the same gradient of a parameter on every rank",
        }.get(subject.api, f"the {said(subject.api)} has the same value on every rank at the end of a step")

    def occasions(self, window: Window) -> Iterator[Occasion]:
        """None: one rank alone says nothing of others."""
        return iter(())

    def forget(self) -> None:
        """See `across`, which looks at the windows of each rank by itself."""


def _of_first(windows: Sequence[Window]) -> Iterator[Occasion]:
    """What optimizers were built with, on each rank and the first one; which were to be replicas is not known yet."""
    told = [
        {reading.variable: reading for reading in window.readings if named(reading) == FIRST_DATA} for window in windows
    ]
    for so in (True, False):
        alike = [
            name
            for name, mine in told[0].items()
            if all(name in of_rank for of_rank in told)
            and so == all(of_rank[name].value == mine.value for of_rank in told)
        ]
        if alike:
            context = context_of(facts(**_ALWAYS), windows[0].stage)
            first = [(window.rank, mine[alike[0]].value) for window, mine in zip(windows, told, strict=True)]
            unlike = _Unlike() if so else _unlike(FIRST_DATA, first)
            yield _occasion(FIRST_DATA, context, so, told[0][alike[0]].call, tuple(alike), unlike)


def hold_the_same(windows: Sequence[Window]) -> bool | None:
    """Whether the ranks update parameters of the same names and values; None where one of them tells of none."""
    leaders = [window for window in windows if window.values_of == window.rank]
    told = [{(each.variable, each.value) for each in window.readings if named(each) == USED_DATA} for window in leaders]
    if any(window.alike is not None and window.alike.sharded for window in windows):
        return False
    if len(leaders) == 1 and any(each.kind == DIGEST for each in leaders[0].readings):
        return True
    return all(of_rank == told[0] for of_rank in told) if all(told) else None


def values(window: Window) -> Iterator[tuple[str, str, object]]:
    """What of the parameters is compared: of what thing, of which variable, and its content. Where two windows agree in
    all of it, the same is said of both."""
    seen = _seen(window)
    for (what, variable), left in seen.left.items():
        told = [(name, value) for name, value in left.change.context if name in _TELLING]
        yield what, variable, (left.change.fingerprint, left.change.changed, left.within, told)
    for (thing, variable), reading in seen.used.items():
        yield thing, variable, (reading.value, value_of(reading.context, "before"))
    for reading in window.readings:
        if named(reading) == FIRST_DATA:
            yield FIRST_DATA, reading.variable, reading.value


def _seen(window: Window) -> _Seen:
    left: dict[tuple[str, str], _Left] = {}
    for change in window.changes:
        what = f"{change.kind}.{change.attribute}"
        call = window.by_seq.get(change.call)
        if change.fingerprint is not None and call is not None and call.levels[-1] == _OF_CHANGES.get(what):
            left[what, change.variable] = _Left(change, value_of(call.context, "within"))
    used = {
        (named(reading), reading.variable): reading
        for reading in window.readings
        if reading.kind == "parameter" and named(reading) in (USED_DATA, USED_GRAD)
    }
    return _Seen(left, used)


def _compared(one: _Seen, other: _Seen, kept: Names, stage: str, ranks: _Ranks, sharded: bool) -> Iterator[Occasion]:
    """The occasions of two of the ranks; `kept` holds the variables that were the same after an earlier update."""
    all_same = not sharded and _all_same(one, other)
    fates: dict[tuple[str, Facts, bool], list[tuple[str, int]]] = {}
    for (what, variable), mine in one.left.items():
        theirs = other.left.get((what, variable))
        if theirs is None:
            continue
        so = mine.change.fingerprint == theirs.change.fingerprint
        told = _shared(mine, theirs)
        if what == DATA:
            before, grad = (_agree(one, other, thing, variable) for thing in (USED_DATA, USED_GRAD))
            if before is not None:
                told = {**_ALWAYS, "same_before": before}
                if grad is not None:
                    copies = {**told, "copies": kept.has(variable) or all_same}
                    _note(fates, USED_GRAD, copies, grad, variable, mine.change.call)
                    # Zeros that agree say nothing of what they are the gradient of.
                    told["same_grad"] = grad and not _zero(one, USED_GRAD, variable)
                    found = {"kept_same": kept.has(variable), "all_same": all_same, "same_grad": told["same_grad"]}
                    found["before"] = _state(one, other, variable)
                    _note(fates, USED_DATA, {**_ALWAYS, **found}, before, variable, mine.change.call)
            if so and mine.change.changed:
                kept.add(variable)
        _note(fates, what, told, so, variable, mine.change.call)
    for (what, context, so), alike in fates.items():
        names = tuple(variable for variable, _ in alike)
        held = one.value(USED_DATA, names[0]) if value_of(context, "same_before") else None
        unlike = _Unlike() if so else ranks.unlike(what, names[0], held)  # others may hold another shard
        unlike = unlike._replace(note=unlike.note + _although(what, context))
        yield _occasion(what, context_of(context, stage), so, alike[0][1], names, unlike)


def _although(what: str, context: Facts) -> str:
    """What was the same before that should have kept a variable the same."""
    if what == USED_DATA and value_of(context, "kept_same"):
        return f", {THOUGH_KEPT}"
    alike = value_of(context, "same_before") and value_of(context, "same_grad")
    return f", {THOUGH_ALIKE}" if what == DATA and alike else ""


def _note(
    fates: dict[tuple[str, Facts, bool], list[tuple[str, int]]],
    what: str,
    told: dict[str, FactValue],
    so: bool,
    variable: str,
    call: int,
) -> None:
    fates.setdefault((what, facts(**told), so), []).append((variable, call))


def _agree(one: _Seen, other: _Seen, thing: str, variable: str) -> bool | None:
    """Whether both ranks tell the same value, None where one of them tells none."""
    values = one.value(thing, variable), other.value(thing, variable)
    return None if None in values else values[0] == values[1]


def _all_same(one: _Seen, other: _Seen) -> bool:
    mine, theirs = (
        {variable: reading.value for (thing, variable), reading in seen.used.items() if thing == USED_DATA}
        for seen in (one, other)
    )
    return mine == theirs


def _zero(seen: _Seen, thing: str, variable: str) -> bool:
    found = seen.used.get((thing, variable))
    return found is not None and value_of(found.context, "before") == "zero"


def _state(one: _Seen, other: _Seen, variable: str) -> str:
    """Whether the parameter began as zeros, as a bias does on each rank whatever it is a part of."""
    return "zero" if _zero(one, USED_DATA, variable) and _zero(other, USED_DATA, variable) else "some"


def _shared(one: _Left, other: _Left) -> dict[str, FactValue]:
    """What both ranks tell alike of the variable."""
    mine, theirs = dict(one.change.context), dict(other.change.context)
    found = {name: mine[name] for name in _TELLING if name in mine and theirs.get(name) == mine[name]}
    if one.within is not None and one.within == other.within:
        found["within"] = one.within
    return {**_ALWAYS, **found}


def _occasion(thing: str, context: Facts, so: bool, seq: int, variables: tuple[str, ...], unlike: _Unlike) -> Occasion:
    found = Occasion(Subject(thing, RANKS), context, *fate(Property(SAME, thing), so), seq, variables)
    return found if so else found._replace(note=unlike.note, apart=unlike.apart)
