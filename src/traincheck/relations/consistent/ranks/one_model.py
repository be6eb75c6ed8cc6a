"""Check that ranks that compute one model together keep equal the parameters that each of them holds.

Note [Ranks of one model]
In tensor parallelism, ranks hold different parts of some layers, and the same copy of others. Each rank gets the same
batch. If parts differ and the loss is nevertheless the same, to the last bit, then the ranks have computed it together.
Its derivative with respect to a copy is then one gradient. A backward that does not reduce over ranks leaves a part of
it on each rank: the norms of the gradients differ, and so do the copies after the first update.

A copy is a parameter that began with the same random numbers on all ranks, where parts began with others. Ones and
zeros show nothing, because parts begin with them as well. Ranks that train different models (an ensemble, a sweep) have
other losses, except where the differing parts do not yet contribute to it. Their first gradients are the same then.

Note [Matrices that stages share]
In a pipeline, the first and the last stage may hold one matrix under two names: the embedding and the layer that it is
tied to. Both stages add the gradients of both before an update. A matrix is shared if it began with the same random
numbers on two ranks under different names, and nearly all other parameters of the two ranks began with other numbers.
Ranks that draw all their parameters from one seed have more of them in common.

Known limitations: where a program makes some parts with the same random numbers on all ranks and others with different
ones, a part counts as a copy. Only the first change of a parameter is looked at.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from traincheck.relations.base import context_of, outcome_of
from traincheck.relations.consistent.ranks.batches import BATCH
from traincheck.relations.parts import StatelessPart, named, number
from traincheck.vocab.builtin_rules import ONE_MODEL, REPLICAS, sentence_of
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import TRAIN, Reading, Window
from traincheck.vocab.facts import FactValue, value_of
from traincheck.vocab.occasion import RANKS, Occasion, Property, Subject
from traincheck.vocab.ranks import DifferingRanks, named_ranks

SUBJECT = Subject(REPLICAS, RANKS)

PRECISION = 0.02
"""Relative difference of the norms of gradients from which they differ. Atomic additions on a GPU change a norm by less
than this, even in half precision."""

SHARED = 1 / 3
"""Largest share of the random parameters of a stage that another stage may hold as well."""


class OneModel(StatelessPart):
    """Compares the windows of the second update. An occasion arises only if the rule fails."""

    def across(self, windows: Sequence[Window]) -> Iterator[Occasion]:
        """Yield one occasion for the ranks of a model whose copies drift apart."""
        if windows[0].stage != TRAIN:
            return
        ranks = [_Rank.of(window) for window in windows]
        drift = _drift_of_copies(ranks) or _drift_of_stages(ranks)
        if drift is not None:
            context, outcome = context_of((), TRAIN), outcome_of(ONE_MODEL, False)
            occasion = Occasion(SUBJECT, context, *outcome, drift.call, drift.variables, note=drift.note)
            yield occasion._replace(differing=DifferingRanks(drift.ranks, len(windows)))

    @staticmethod
    def speaks_of(subject: Subject) -> bool:
        return subject == SUBJECT

    @staticmethod
    def needs(subject: Subject, prop: Property) -> Demand:
        return Demand.of_readings(BATCH, REPLICAS)  # they are judged if other rules need updates

    @staticmethod
    def describe(subject: Subject, prop: Property) -> str:
        return sentence_of(subject, prop)

    def occasions(self, window: Window) -> Iterator[Occasion]:
        """Nothing: a single rank cannot be judged."""
        return iter(())


class _Rank(NamedTuple):
    """What a rank read in a step: its batches, and the parameters that changed for the first time."""

    number: int
    batches: tuple[FactValue, ...]
    parameters: dict[str, Reading]

    @classmethod
    def of(cls, window: Window) -> _Rank:
        batches = tuple(reading.value for reading in window.readings if named(reading) == BATCH)
        parameters = {reading.variable: reading for reading in window.readings if named(reading) == REPLICAS}
        return cls(window.rank, batches, parameters)

    def random(self) -> dict[FactValue, str]:
        """The names of the parameters that began with random numbers, by their first fingerprint."""
        return {
            value_of(reading.context, "first"): name
            for name, reading in self.parameters.items()
            if value_of(reading.context, "random") is True
        }


class _Drift(NamedTuple):
    """Copies that drift apart, and on which ranks."""

    ranks: tuple[int, ...]
    variables: tuple[str, ...]
    call: int
    note: str


def _drift_of_copies(ranks: Sequence[_Rank]) -> _Drift | None:
    """See Note [Ranks of one model]."""
    groups: dict[tuple[FactValue, ...], list[_Rank]] = {}
    for rank in ranks:
        if rank.batches and rank.parameters:
            groups.setdefault(rank.batches, []).append(rank)
    for group in groups.values():
        drifted = _drifted([rank.parameters for rank in group]) if len(group) > 1 else []
        if drifted:
            numbers, call = tuple(rank.number for rank in group), group[0].parameters[drifted[0]].call
            note = f"{named_ranks(numbers)} compute one loss from one batch, and use different gradients"
            return _Drift(numbers, tuple(drifted), call, note)
    return None


def _drift_of_stages(ranks: Sequence[_Rank]) -> _Drift | None:
    """See Note [Matrices that stages share]."""
    holders: dict[FactValue, dict[str, _Rank]] = {}  # by first fingerprint and name, the first rank of a stage
    for rank in ranks:
        for first, name in rank.random().items():
            holders.setdefault(first, {}).setdefault(name, rank)
    for of_stages in holders.values():
        for (name, a), (other, b) in itertools.combinations(of_stages.items(), 2):
            readings = a.parameters[name], b.parameters[other]
            if a is not b and _drifts(readings) and _are_stages(a, b):
                numbers = a.number, b.number
                note = f"{named_ranks(numbers)} share this matrix, and update it with different gradients"
                return _Drift(numbers, (name, other), readings[0].call, note)
    return None


def _are_stages(a: _Rank, b: _Rank) -> bool:
    """Whether two ranks hold different parameters apart from few."""
    of_a, of_b = a.random(), b.random()
    return len(of_a.keys() & of_b.keys()) <= SHARED * min(len(of_a), len(of_b))


def _drifted(ranks: Sequence[dict[str, Reading]]) -> list[str]:
    """The copies that drift apart on ranks that compute one model; none if the ranks do not."""
    losses = {value_of(reading.context, "loss") for parameters in ranks for reading in parameters.values()}
    if len(losses) != 1 or None in losses:
        return []
    names = [
        name
        for name, reading in ranks[0].items()
        if value_of(reading.context, "random") is True and all(name in parameters for parameters in ranks)
    ]
    copies = [name for name in names if len({value_of(parameters[name].context, "first") for parameters in ranks}) == 1]
    if len(copies) == len(names):
        return []  # all parameters are copies, or no part is known
    return [name for name in copies if _drifts([parameters[name] for parameters in ranks])]


def _drifts(readings: Sequence[Reading]) -> bool:
    norms = [number(value_of(reading.context, "norm")) or 0.0 for reading in readings]
    return max(norms) - min(norms) > PRECISION * max(norms) and len({reading.value for reading in readings}) > 1
