"""Check that a name has the same value on all ranks that hold replicas of it.

Fingerprints are compared in windows of the same step: the gradients and parameters that an update uses, the parameters
that it leaves, and the gradients that a backward leaves. Readings that steer an update (learning rates, step counts)
are compared, too. If ranks are known to be the same (`Window.shared`), one is compared for all. Buffers: see
buffers.py.

Note [Replicas and shards]
Where ranks hold different parts on purpose (shards, experts, pipeline stages), their values differ from the start or
from the first update on, and facts of the variable may show it. Two variables are replicas because they were the same:
*before* the update, after an earlier one, or together with all others of the model. The question is then whether the
update used the same gradients and left the same values. An update is a function of value and gradient: if both were the
same, the results must be. So the context of an update holds nothing else; with more facts, more of them would separate
by chance. A rule is not rejected because ranks seldom agree.

Where the optimizer of only one rank holds a variable, the other rank makes no update of it: an optimizer that is
divided over the ranks sends its results afterwards. Such values are compared before the next update. Only a wrapper,
or a program that averages gradients by itself (`data_parallel`, see sources/distributed/replica_readings.py), promises
that gradients are the same: local SGD averages parameters now and then.

Known limitations: the state that an optimizer keeps for a parameter is not compared, so a momentum that differs shows
only when the parameters differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from traincheck.relations.base import context_of, outcome_of
from traincheck.relations.consistent.ranks.rank_pairs import AgreedVariables, VariableNames, classes_of, pairs_of
from traincheck.relations.parts import BACKWARD, UPDATE, StatelessPart, calls_of, named, phrase_for
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import DIGEST, LIVE, NO_CALL, Change, Reading, Window
from traincheck.vocab.facts import Facts, FactValue, facts, value_of
from traincheck.vocab.occasion import RANKS, Occasion, Property, Subject
from traincheck.vocab.properties import SAME_ON_RANKS
from traincheck.vocab.ranks import NONE_DIFFER, DifferingRanks, differing_ranks_text, ranks_that_differ

DATA, GRAD = "parameter.data", "parameter.grad"
USED_DATA, USED_GRAD = "parameter.used_data", "parameter.used_grad"
FIRST_DATA, BUILT = "parameter.first_data", "torch.optim.Optimizer.__init__"
_API_BY_QUANTITY = {DATA: UPDATE, GRAD: BACKWARD}
_KINDS = ("hyperparameter", "optimizer_state")
_OWN = ("keys", "lowest_step")
"""Readings that may differ: a parameter without a gradient (an expert without tokens) stands still on one rank."""
_SHARED_FACTS = ("requires_grad", "held", "owned", "tied", "attributes", "replicated", "precision", "scalar")
"""Facts of a variable that may explain why ranks differ."""
_ALWAYS: dict[str, FactValue] = {"same_name": True, "same_rank": False}


THOUGH_KEPT = "though an earlier update left the same"
THOUGH_ALIKE = "though value and gradient were the same before it"
"""How notes end if ranks diverged between two updates, or in one."""


class _Left(NamedTuple):
    """The last change of a variable in a window, with the context managers around its call."""

    change: Change
    within: FactValue


class _Observed(NamedTuple):
    """The values of one rank in a step: changes by (attribute, variable), and values that updates used by (quantity,
    variable)."""

    left: dict[tuple[str, str], _Left]
    used: dict[tuple[str, str], Reading]

    def value(self, quantity: str, variable: str) -> FactValue:
        """The fingerprint of a value that an update used, None if it was not read."""
        reading = self.used.get((quantity, variable))
        return None if reading is None else reading.value


_IN_WORDS = {
    USED_GRAD: "the gradient that the update used",
    USED_DATA: "the value before the update",
    DATA: "the value that the update left",
    GRAD: "the gradient that the backward left",
    FIRST_DATA: "the value that an optimizer was built with",
}


Outcomes = dict[tuple[str, Facts, bool, str], list[tuple[str, int]]]
"""Variables with the call of each, by quantity, context, whether both ranks agree, and what should have kept them the
same."""


class _Difference(NamedTuple):
    """Which of the ranks differ from the others, in words and as data."""

    note: str = ""
    differing: DifferingRanks = NONE_DIFFER


class _Ranks(NamedTuple):
    """The values of all ranks in a step. `differences` caches results, because many pairs of ranks may differ."""

    numbers: list[int]
    seen: list[_Observed]
    differences: dict[tuple[str, str, FactValue], _Difference]

    def unlike(self, quantity: str, variable: str, before: FactValue) -> _Difference:
        """Which ranks differ in a variable: among all, or among those that held the value `before` the update, if
        given."""
        key = quantity, variable, before
        if key not in self.differences:
            self.differences[key] = _difference(quantity, self._values(*key))
        return self.differences[key]

    def _values(self, quantity: str, variable: str, before: FactValue) -> list[tuple[int, FactValue]]:
        values: list[tuple[int, FactValue]] = []
        for number, of_rank in zip(self.numbers, self.seen, strict=True):
            left = of_rank.left.get((quantity, variable))
            value = of_rank.value(quantity, variable) if left is None else left.change.fingerprint
            if value is not None and before in (None, of_rank.value(USED_DATA, variable)):
                values.append((number, value))
        return values


def _difference(quantity: str, values: Sequence[tuple[int, FactValue]]) -> _Difference:
    words = _IN_WORDS.get(quantity, f"the {phrase_for(quantity)}")
    return _Difference(f"{differing_ranks_text(values)} in {words}", ranks_that_differ(values))


class Replicas(StatelessPart):
    """Compares aligned windows. Keeps the last value of each reading and rank, because sources report changes only."""

    def __init__(self) -> None:
        self._values: dict[int, dict[tuple[str, str], FactValue]] = {}
        self._next_index: dict[int, int] = {}
        self._agreed = AgreedVariables()

    def across(self, windows: Sequence[Window]) -> Iterator[Occasion]:
        """Yield the occasions in windows of several ranks at the same step; `seq` refers to the first."""
        observed = {window.rank: _observed_by_rank(window) for window in windows if window.values_of == window.rank}
        ranks = _Ranks([window.rank for window in windows], [observed[window.values_of] for window in windows], {})
        sharded = any(window.shared is not None and window.shared.sharded for window in windows)
        classes = classes_of(windows)
        for first, second in sorted(pairs_of(list(classes)) | self._agreed.pairs(classes)):
            agreed = self._agreed.of(first, second, classes)
            second_observed = observed.get(second, observed[first])  # one rank holds the values for all of its class
            yield from _compare_pair(observed[first], second_observed, agreed, windows[0].stage, ranks, sharded)
        yield from _compare_first_values([window for window in windows if window.rank in observed])
        yield from self._of_readings(windows)

    def _of_readings(self, windows: Sequence[Window]) -> Iterator[Occasion]:
        seq_by_key: dict[tuple[str, str], int] = {}
        for window in windows:
            if window.index != self._next_index.get(window.rank, 0):
                self._values.pop(window.rank, None)
            self._next_index[window.rank] = window.index + 1
            if not window.readings:  # as on most ranks of a large job
                continue
            last_values = self._values.setdefault(window.rank, {})
            for call in calls_of(window, UPDATE):
                for reading in window.readings_of.get(call.seq, ()):
                    if reading.kind in _KINDS and reading.role == LIVE and reading.attribute not in _OWN:
                        last_values[named(reading), reading.variable] = reading.value
                        seq_by_key.setdefault((named(reading), reading.variable), NO_CALL)
                        if window is windows[0]:
                            seq_by_key[named(reading), reading.variable] = call.seq
        if not seq_by_key:
            return
        context = context_of(facts(same_name=True, same_rank=False), windows[0].stage)
        pairs = sorted(pairs_of([window.rank for window in windows]))
        for key, seq in seq_by_key.items():
            quantity, variable = key
            difference = _Difference()
            for first, second in pairs:
                values = self._values.get(first, {}), self._values.get(second, {})
                if all(key in last_values for last_values in values):
                    holds = values[0][key] == values[1][key]
                    if not holds and not difference.note:
                        kept_by = {window.rank: self._values.get(window.rank, {}) for window in windows}
                        difference = _difference(
                            quantity,
                            [(rank, last_values[key]) for rank, last_values in kept_by.items() if key in last_values],
                        )
                    yield _occasion(quantity, context, holds, seq, (variable,), difference)

    @staticmethod
    def speaks_of(subject: Subject) -> bool:
        return subject.grain == RANKS

    @staticmethod
    def needs(subject: Subject, prop: Property) -> Demand:
        if subject.api == FIRST_DATA:
            return Demand.of_calls(BUILT) | Demand.of_readings(FIRST_DATA)
        if subject.api in (USED_DATA, USED_GRAD, DATA):  # each is a circumstance of the others
            return Demand.of_calls(UPDATE, changes=(DATA,)) | Demand.of_readings(USED_DATA, USED_GRAD)
        if subject.api == GRAD:
            return Demand.of_calls(BACKWARD, changes=(GRAD,))
        return Demand.of_calls(UPDATE) | Demand.of_readings(subject.api)

    @staticmethod
    def describe(subject: Subject, prop: Property) -> str:
        return {
            DATA: "an update leaves the same value of a parameter on every rank",
            GRAD: "a backward leaves the same gradient of a parameter on every rank",
            FIRST_DATA: "an optimizer is built with the same value of a parameter on every rank",
            USED_DATA: "a parameter has the same value on every rank before an update",
            USED_GRAD: "an update uses the same gradient of a parameter on every rank",
        }.get(subject.api, f"the {phrase_for(subject.api)} has the same value on every rank at the end of a step")

    def occasions(self, window: Window) -> Iterator[Occasion]:
        """Nothing: a single rank cannot be judged."""
        return iter(())


def _compare_first_values(windows: Sequence[Window]) -> Iterator[Occasion]:
    """The values that optimizers were built with, on each rank and the first one. Which of them are replicas is unknown
    then."""
    readings_by_rank = [
        {reading.variable: reading for reading in window.readings if named(reading) == FIRST_DATA} for window in windows
    ]
    for holds in (True, False):
        names = [
            name
            for name, own in readings_by_rank[0].items()
            if all(name in readings for readings in readings_by_rank)
            and holds == all(readings[name].value == own.value for readings in readings_by_rank)
        ]
        if names:
            context = context_of(facts(**_ALWAYS), windows[0].stage)
            first = [(window.rank, own[names[0]].value) for window, own in zip(windows, readings_by_rank, strict=True)]
            difference = _Difference() if holds else _difference(FIRST_DATA, first)
            yield _occasion(FIRST_DATA, context, holds, readings_by_rank[0][names[0]].call, tuple(names), difference)


def hold_the_same(windows: Sequence[Window]) -> bool | None:
    """Whether the ranks update parameters of the same names and values; None if one of them reports none."""
    leaders = [window for window in windows if window.values_of == window.rank]
    values_by_rank = [
        {(reading.variable, reading.value) for reading in window.readings if named(reading) == USED_DATA}
        for window in leaders
    ]
    if any(window.shared is not None and window.shared.sharded for window in windows):
        return False
    is_known = all(values_by_rank) or all(
        any(reading.kind == DIGEST for reading in window.readings) for window in leaders
    )  # a window with digests holds the values that differ
    return all(values == values_by_rank[0] for values in values_by_rank) if is_known else None


def values(window: Window) -> Iterator[tuple[str, str, object]]:
    """Yield the compared values of parameters: quantity, variable and content. If two windows agree in all of them, the
    same holds for both."""
    observed = _observed_by_rank(window)
    for (quantity, variable), left in observed.left.items():
        shared_facts = [(name, value) for name, value in left.change.context if name in _SHARED_FACTS]
        yield quantity, variable, (left.change.fingerprint, left.change.changed, left.within, shared_facts)
    for (used_quantity, variable), reading in observed.used.items():
        yield used_quantity, variable, (reading.value, reading.context)
    for reading in window.readings:
        if named(reading) == FIRST_DATA:
            yield FIRST_DATA, reading.variable, reading.value


def _observed_by_rank(window: Window) -> _Observed:
    left: dict[tuple[str, str], _Left] = {}
    for change in window.changes:
        quantity = f"{change.kind}.{change.attribute}"
        call = window.by_seq.get(change.call)
        if change.fingerprint is not None and call is not None and call.levels[-1] == _API_BY_QUANTITY.get(quantity):
            left[quantity, change.variable] = _Left(change, value_of(call.context, "within"))
    used = {
        (named(reading), reading.variable): reading
        for reading in window.readings
        if reading.kind == "parameter" and named(reading) in (USED_DATA, USED_GRAD)
    }
    return _Observed(left, used)


def _compare_pair(
    first: _Observed, second: _Observed, agreed: VariableNames, stage: str, ranks: _Ranks, sharded: bool
) -> Iterator[Occasion]:
    """Yield the occasions of two ranks; `agreed` holds the variables that were the same after an earlier update."""
    all_same = not sharded and _all_same(first, second)
    outcomes: Outcomes = {}
    for (quantity, variable), own in first.left.items():
        theirs = second.left.get((quantity, variable))
        if theirs is None:
            continue
        holds = own.change.fingerprint == theirs.change.fingerprint
        context_facts = _shared(own, theirs)
        if quantity == DATA:
            before, grad = (_agree(first, second, used_quantity, variable) for used_quantity in (USED_DATA, USED_GRAD))
            if before is not None:
                context_facts = {**_ALWAYS, "same_before": before}
                if grad is not None:
                    copies = {**context_facts, "copies": agreed.has(variable) or all_same}
                    copies.update(_wrapped(first, second, variable))
                    _note(outcomes, USED_GRAD, copies, grad, variable, own.change.call)
                    # Zeros that agree prove nothing about the parameter.
                    context_facts["same_grad"] = grad and not _zero(first, USED_GRAD, variable)
                    before_facts = {"same_grad": context_facts["same_grad"], "before": _state(first, second, variable)}
                    though = THOUGH_KEPT if agreed.has(variable) else ""
                    _note(outcomes, USED_DATA, {**_ALWAYS, **before_facts}, before, variable, own.change.call, though)
            if holds and own.change.changed:
                agreed.add(variable)
            if _held_here(own) != _held_here(theirs):
                continue
        though = THOUGH_ALIKE if context_facts.get("same_before") and context_facts.get("same_grad") else ""
        _note(outcomes, quantity, context_facts, holds, variable, own.change.call, though)
    for (quantity, context, holds, though), group in outcomes.items():
        names = tuple(variable for variable, _ in group)
        held = first.value(USED_DATA, names[0]) if value_of(context, "same_before") else None
        difference = _Difference() if holds else ranks.unlike(quantity, names[0], held)  # others may hold another shard
        difference = difference._replace(note=difference.note + (f", {though}" if though else ""))
        yield _occasion(quantity, context_of(context, stage), holds, group[0][1], names, difference)


def _note(
    outcomes: Outcomes,
    quantity: str,
    context_facts: dict[str, FactValue],
    holds: bool,
    variable: str,
    call: int,
    though: str = "",
) -> None:
    """Add an outcome to its group. `though` names values that were the same and should have kept this one the same."""
    outcomes.setdefault((quantity, facts(**context_facts), holds, though), []).append((variable, call))


def _agree(first: _Observed, second: _Observed, quantity: str, variable: str) -> bool | None:
    """Whether both ranks report the same value, None if one of them reports none."""
    values = first.value(quantity, variable), second.value(quantity, variable)
    return None if None in values else values[0] == values[1]


def _all_same(first: _Observed, second: _Observed) -> bool:
    first_values, second_values = (
        {variable: reading.value for (quantity, variable), reading in observed.used.items() if quantity == USED_DATA}
        for observed in (first, second)
    )
    return first_values == second_values


def _zero(observed: _Observed, quantity: str, variable: str) -> bool:
    reading = observed.used.get((quantity, variable))
    return reading is not None and value_of(reading.context, "before") == "zero"


def _held_here(left: _Left) -> bool:
    return value_of(left.change.context, "held") == "this"


def _wrapped(first: _Observed, second: _Observed, variable: str) -> dict[str, FactValue]:
    """Whether a wrapper averages the gradient on both ranks: local SGD without one has gradients that differ."""
    readings = first.used.get((USED_GRAD, variable)), second.used.get((USED_GRAD, variable))
    wrapped = all(reading is not None and value_of(reading.context, "data_parallel") for reading in readings)
    return {"data_parallel": True} if wrapped else {}


def _state(first: _Observed, second: _Observed, variable: str) -> str:
    """Whether the parameter began as zeros, as a bias does on each rank, whether it is a shard or not."""
    return "zero" if _zero(first, USED_DATA, variable) and _zero(second, USED_DATA, variable) else "some"


def _shared(first: _Left, second: _Left) -> dict[str, FactValue]:
    """The facts of the variable that are the same on both ranks."""
    first_facts, second_facts = dict(first.change.context), dict(second.change.context)
    shared = {
        name: first_facts[name]
        for name in _SHARED_FACTS
        if name in first_facts and second_facts.get(name) == first_facts[name]
    }
    if first.within is not None and first.within == second.within:
        shared["within"] = first.within
    return {**_ALWAYS, **shared}


def _occasion(
    quantity: str, context: Facts, holds: bool, seq: int, variables: tuple[str, ...], difference: _Difference
) -> Occasion:
    occasion = Occasion(
        Subject(quantity, RANKS), context, *outcome_of(Property(SAME_ON_RANKS, quantity), holds), seq, variables
    )
    return occasion if holds else occasion._replace(note=difference.note, differing=difference.differing)
