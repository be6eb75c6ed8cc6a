"""Check that a computation which is executed again from the same state gives the same bits.

TrainCheck executes steps again on request only (`--verify-every`, see sources/replay/replays.py and
sources/replay/verdicts.py). Sources then report the result of the forward, the backward and the update. The rule
follows from what a computer is, so it needs no good run (see builtin_rules.py).

A unit that computes the same wrong value each time repeats its bits. Such a fault is visible only if another rank
executes the step (`elsewhere`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from traincheck.relations.base import context_of, outcome_of
from traincheck.relations.parts import ReadingPart, named, site_of
from traincheck.vocab.events import Reading, Window
from traincheck.vocab.facts import value_of
from traincheck.vocab.occasion import Occasion, Property, Subject
from traincheck.vocab.properties import REPEATS
from traincheck.vocab.ranks import NONE_DIFFER, DifferingRanks, named_ranks
from traincheck.vocab.replayed_computations import ELSEWHERE, KIND, PERSISTENT, SAME, TRANSIENT, UNDECIDED
from traincheck.vocab.verification import EXPERIMENTS

GRAIN = "again"
EXACT = Property(REPEATS, "to the last bit")
DECIDED = Property(REPEATS, "or it is known why not")
WAYS = {
    TRANSIENT: "two of three executions agree, so that one was wrong",
    PERSISTENT: "it was something else in each of several executions",
    UNDECIDED: "so it has been in every step since",
}
ELSEWHERE_ENDS = "from the same state, twice"
"""How such notes end. Diagnoses recognise them by it."""


def _rank_difference(reading: Reading) -> tuple[str, DifferingRanks]:
    """The result of another rank in words, and which ranks differ."""
    details = dict(reading.context)
    ranks = tuple(int(rank) for rank in str(details["ranks"]).split("+"))
    ranks_phrase = named_ranks(ranks)
    differ = (
        f"{ranks_phrase} computed something else than the others"
        if len(ranks) == 1
        else f"{ranks_phrase} computed different things"
    )
    note = f"in step {details['step']}, {differ}: {details['first']}, in the {details['part']} of {reading.variable}, "
    return note + ELSEWHERE_ENDS, DifferingRanks(ranks, int(str(details["compared"])))


class ReplayedSteps(ReadingPart):
    """See the module."""

    grain: ClassVar[str] = GRAIN

    def occasions(self, window: Window) -> Iterator[Occasion]:
        """Yield one occasion for each part of a step that was executed again."""
        for reading in window.readings:
            if reading.kind != KIND or reading.attribute in EXPERIMENTS:
                continue
            verdict, context = str(reading.value), context_of((), window.stage)
            note, ranks = "", NONE_DIFFER
            if verdict != SAME and reading.attribute == ELSEWHERE:
                note, ranks = _rank_difference(reading)
            elif verdict != SAME:
                first, step = value_of(reading.context, "first"), value_of(reading.context, "step")
                note = f"in step {step}, {first} was not what it is when the {reading.attribute} of {reading.variable} "
                note += f"is executed again from the same state; {WAYS.get(verdict, verdict)}"
            decided = outcome_of(DECIDED, verdict != UNDECIDED)
            exact = outcome_of(EXACT, verdict == SAME) if verdict != UNDECIDED else (frozenset(), frozenset())
            yield Occasion(
                Subject(named(reading), GRAIN),
                context,
                decided[0] | exact[0],
                decided[1] | exact[1],
                reading.seq,
                (reading.variable,),
                site_of(reading),
                note,
                ranks,
            )

    @staticmethod
    def describe(subject: Subject, prop: Property) -> str:
        part = subject.api.rpartition(".")[2]
        if part == ELSEWHERE:
            return "what a rank computes is the same to the last bit when another one computes it from the same state"
        ends = "to the last bit" if prop == EXACT else "or the next steps tell whether the program or the device is why"
        return f"a {part} that is executed again from the same state gives the same {ends}"
