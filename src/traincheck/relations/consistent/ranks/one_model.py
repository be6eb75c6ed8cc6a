"""Check that ranks that compute one model together keep equal the parameters that each of them holds.

Note [Ranks of one model]
In tensor parallelism, ranks hold different parts of some layers, and the same copy of others. Each rank gets the same
batch. If parts differ and the loss is nevertheless the same, to the last bit, then the ranks have computed it together.
Its derivative with respect to a copy is then one gradient. A backward that does not reduce over ranks leaves a part of
it on each rank: the norms of the gradients differ, and so do the copies after the first update.

A copy is a parameter that began with the same random numbers on all ranks, where parts began with others. Ones and
zeros show nothing, because parts begin with them as well. Ranks that train different models (an ensemble, a sweep) have
other losses, except where the differing parts do not yet contribute to it. Their first gradients are the same then.

Known limitations: where a program makes some parts with the same random numbers on all ranks and others with different
ones, a part counts as a copy. Only the first two updates are looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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


class OneModel(StatelessPart):
    """Compares the windows of the second update. An occasion arises only if the rule fails."""

    def across(self, windows: Sequence[Window]) -> Iterator[Occasion]:
        """Yield one occasion for the ranks of a model whose copies drift apart."""
        if windows[0].stage != TRAIN:
            return
        groups: dict[tuple[FactValue, ...], list[dict[str, Reading]]] = {}
        ranks: dict[tuple[FactValue, ...], list[int]] = {}
        for window in windows:
            batches = tuple(reading.value for reading in window.readings if named(reading) == BATCH)
            parameters = {reading.variable: reading for reading in window.readings if named(reading) == REPLICAS}
            if batches and parameters:
                groups.setdefault(batches, []).append(parameters)
                ranks.setdefault(batches, []).append(window.rank)
        for batches, group in groups.items():
            drifted = _drifted(group) if len(group) > 1 else []
            if drifted:
                note = f"{named_ranks(ranks[batches])} compute one loss from one batch, and use different gradients"
                context, outcome = context_of((), TRAIN), outcome_of(ONE_MODEL, False)
                occasion = Occasion(SUBJECT, context, *outcome, group[0][drifted[0]].call, tuple(drifted), note=note)
                yield occasion._replace(differing=DifferingRanks(tuple(ranks[batches]), len(windows)))
                return

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


def _drifted(ranks: Sequence[dict[str, Reading]]) -> list[str]:
    """The copies that drift apart on ranks that compute one model; none if the ranks do not."""
    losses = {value_of(reading.context, "loss") for parameters in ranks for reading in parameters.values()}
    if len(losses) != 1:
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
