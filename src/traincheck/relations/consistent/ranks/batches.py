"""Check that ranks which hold the same model train on different batches.

Note [Copies and parts]
If each rank computes with the whole model, more ranks help only if each has another batch. If ranks compute with parts
of one model (tensor parallelism, pipeline stages), they rightly see the same batch. The parameters show which case it
is: all the same on the ranks or not, including frozen parameters that no update reports. FSDP stores parts as well, but
gathers the whole for each call, which equals the case of the same parameters. Other parts that a device mesh declares
(DTensor) are parts even if they begin with equal values: the CPU draws the same random numbers for each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from traincheck.relations.base import context_of, outcome_of
from traincheck.relations.consistent.ranks.replicas import USED_DATA, hold_the_same
from traincheck.relations.parts import FORWARD, UPDATE, StatelessPart, named
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import TRAIN, Reading, Window
from traincheck.vocab.facts import FactValue, facts, value_of
from traincheck.vocab.occasion import RANKS, Occasion, Property, Subject
from traincheck.vocab.properties import DIFFERS_ON_RANKS
from traincheck.vocab.ranks import NONE_DIFFER, DifferingRanks, named_ranks, ranks_that_share

BATCH, FROZEN = "module.batch", "module.frozen"
DIFFERENT = Property(DIFFERS_ON_RANKS, BATCH)
SUBJECT = Subject(BATCH, RANKS)


class Batches(StatelessPart):
    """Compares the inputs of models in training windows of several ranks; keeps nothing from step to step."""

    def across(self, windows: Sequence[Window]) -> Iterator[Occasion]:
        """Yield one occasion in a step in which sources read batches on all ranks; `seq` refers to the first."""
        if windows[0].stage != TRAIN:
            return
        batches_by_rank = []
        for window in windows:
            batches_by_rank.append([reading for reading in window.readings if named(reading) == BATCH])
            if not batches_by_rank[-1]:
                return
        same = _gather(batches_by_rank)
        if same is None:
            same = hold_the_same(windows)
            if same is None:
                return
            same = same and len({_frozen(window) for window in windows}) == 1
        pair: dict[str, FactValue] = {"same_rank": False, "all_same": same}
        context = context_of(facts(**pair), TRAIN)
        seq, sharing = _first_shared_batch(windows, batches_by_rank)
        note = f"{named_ranks(sharing.ranks)} had the same batch" if sharing.ranks else ""
        yield Occasion(SUBJECT, context, *outcome_of(DIFFERENT, not note), seq, note=note, differing=sharing)

    @staticmethod
    def speaks_of(subject: Subject) -> bool:
        return subject == SUBJECT

    @staticmethod
    def needs(subject: Subject, prop: Property) -> Demand:
        update = Demand.of_calls(UPDATE, changes=("parameter.data",))
        return Demand.of_calls(FORWARD) | update | Demand.of_readings(BATCH, FROZEN, USED_DATA)

    @staticmethod
    def describe(subject: Subject, prop: Property) -> str:
        return "each rank trains its model on another batch"

    def occasions(self, window: Window) -> Iterator[Occasion]:
        """Nothing: a single rank cannot be judged."""
        return iter(())


def _gather(batches_by_rank: Sequence[Sequence[Reading]]) -> bool | None:
    """Whether the model of every rank gathers its parameters for the calls with these batches; None if they are whole
    anyway."""
    gathered = {value_of(batch.context, "gathered") for batches in batches_by_rank for batch in batches}
    return False if False in gathered else True if gathered == {True} else None


def _first_shared_batch(
    windows: Sequence[Window], batches_by_rank: Sequence[Sequence[Reading]]
) -> tuple[int, DifferingRanks]:
    """The ranks that share the first batch that any ranks share, and the call of the first rank with it (or with its
    first batch, if none is shared)."""
    for batches in zip(*batches_by_rank, strict=False):
        sharing = ranks_that_share([(window.rank, batch.value) for window, batch in zip(windows, batches, strict=True)])
        if sharing.ranks:
            return batches[0].call, sharing
    return batches_by_rank[0][0].call, NONE_DIFFER


def _frozen(window: Window) -> frozenset[FactValue]:
    """The fingerprints of the frozen parameters of a rank."""
    return frozenset(reading.value for reading in window.readings if named(reading) == FROZEN)
