"""Whether the ranks of a program have the same seed or each its own. Both are right in some programs, so this is a
setting: a program that changes it draws other data, noise or initial weights on its ranks than its good runs did."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from traincheck.relations.parts import ReadingPart, named
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import NO_CALL, Window
from traincheck.vocab.facts import FactValue
from traincheck.vocab.occasion import RANKS, Occasion, Property, Subject
from traincheck.vocab.properties import IS
from traincheck.vocab.ranks import NONE_DIFFER, ranks_that_share

SEED = "run.seed"
_KIND = SEED.partition(".")[0]
SEEDS = Demand.of_readings(SEED)
"""The demand of these rules."""

SUBJECT = Subject(SEED, RANKS)
SAME, OWN, SHARED = "the same on all ranks", "another one on each rank", "shared by some ranks"


class Seeds(ReadingPart):
    """Compares the seeds of ranks at their first update."""

    def across(self, windows: Sequence[Window]) -> Iterator[Occasion]:
        """Yield one occasion if the windows of all ranks hold their seed."""
        seeds: dict[int, FactValue] = {}
        for window in windows:
            for reading in window.readings:
                if reading.kind == _KIND and named(reading) == SEED:
                    seeds[window.rank] = reading.value
            if window.rank not in seeds:
                return
        different = len(set(seeds.values()))
        sharing = ranks_that_share(list(seeds.items())) if 1 < different < len(seeds) else NONE_DIFFER
        how = SAME if different == 1 else OWN if different == len(seeds) else SHARED
        held = frozenset((Property(IS, SEED, how),))
        yield Occasion(SUBJECT, (), held, None, NO_CALL, differing=sharing)

    def occasions(self, window: Window) -> Iterator[Occasion]:
        """Nothing: a single rank cannot be judged."""
        return iter(())

    @classmethod
    def speaks_of(cls, subject: Subject) -> bool:
        return subject == SUBJECT

    @staticmethod
    def describe(subject: Subject, prop: Property) -> str:
        return f"the seed is {prop.detail}"
