"""What every good run did at some time: a run that never does it is a violation.

A step need not copy the best weights, update the target network, evaluate or save: these happen now and then, so no
step lacks them. A run does. At the end of a run, everything that its steps showed of a subject is one more occasion, on
which nothing may be missing that all good runs had.

Note [Runs of one length]
A short trial of a long run does less, and says nothing. So runs are compared with runs of about the same length: those
of 64 to 255 steps are, and those of 128 to 511. A run that an exception ended, and one of which some steps were not
watched or not described, is no occasion. The first rank of a job often evaluates and saves for all, so other ranks have
rules of their own. Each good run has to show a thing `MIN_TIMES` before other runs need it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Set

from traincheck.relations.consistent.call_order import THEN
from traincheck.relations.consistent.computation import UNDER
from traincheck.relations.parts import named, number
from traincheck.relations.periodic.run_totals import STEPS
from traincheck.vocab.demand import DESCRIBED_ALL, NO_GRAD, OPERATIONS, Demand
from traincheck.vocab.events import LIVE, NO_CALL, Reading, Window, without_positions
from traincheck.vocab.occasion import Occasion, Property, Subject
from traincheck.vocab.properties import FOLLOWS, HAS, SOMETIMES

OPERATIONS_WITHOUT_GRADIENTS = f"{NO_GRAD}.{OPERATIONS}"
FUNCTIONS = Subject(OPERATIONS_WITHOUT_GRADIENTS, "functions that compute without gradients")
"""Its occasions are only whole runs: a function that is never called has no occasion of its own."""

ALL_DESCRIBED = f"{NO_GRAD}.{DESCRIBED_ALL}"

RUNS = Demand.of_readings(STEPS, ALL_DESCRIBED)
"""The demand for occasions of whole runs, see own_runs.py."""

MIN_TIMES = 2
"""A run that showed something once may have done it by chance, and does not show that other runs have to."""

_IN_A_RUN = ", in a run of "


def base_of(subject: Subject) -> Subject:
    """The subject whose occasions make up those of `subject`, which is about whole runs; otherwise `subject` itself."""
    return subject._replace(grain=subject.grain.partition(_IN_A_RUN)[0])


def is_about_runs(subject: Subject) -> bool:
    """Whether the occasions of a subject are whole runs."""
    return _IN_A_RUN in subject.grain


def needs(subject: Subject) -> Demand:
    """The demand of a rule about whole runs, in addition to that of its base."""
    return RUNS if subject.api.startswith(NO_GRAD) else Demand.of_readings(STEPS)


def describe(subject: Subject) -> str:
    """The rule as a sentence."""
    what, _, length = subject.grain.partition(_IN_A_RUN)
    return f"a run of {length} shows everything that all good runs of this length showed of {what.partition(UNDER)[0]}"


class WholeRuns:
    """Collects what the occasions of a run showed. `interest` as for relations."""

    def __init__(self, interest: Set[Subject] | None) -> None:
        self._interest = None if interest is None else frozenset(filter(is_about_runs, interest))
        self._bases = None if self._interest is None else frozenset(map(base_of, self._interest))
        self._shown: dict[Subject, Counter[Property]] = {}  # how often each was shown
        self._complete = True

    def add(self, occasion: Occasion) -> None:
        """Note which calls an occasion about their order showed. Which pairs meet depends on where a batch ends."""
        for prop in occasion.held:
            call = prop.detail.partition(THEN)[2] if prop.verb == FOLLOWS else ""
            if call:
                self._note(occasion.subject, (prop._replace(detail=call),))

    def forget(self) -> None:
        """Windows were dropped: nobody knows what they showed."""
        self._complete = False

    def occasions(self, window: Window) -> Iterator[Occasion]:
        """The occasions of the run, if it ends with this window. Call after `add` for all of its occasions."""
        for reading in window.readings:
            if named(reading) == OPERATIONS_WITHOUT_GRADIENTS:
                self._note_operations(reading)
        readings = {named(reading): reading for reading in window.readings if reading.role == LIVE}
        steps = number(readings[STEPS].value) if STEPS in readings else None
        if not steps or not self._complete:
            return
        described = ALL_DESCRIBED in readings and readings[ALL_DESCRIBED].value is True
        for base, shown in sorted(self._shown.items()):
            if base.api == OPERATIONS_WITHOUT_GRADIENTS and not described:
                continue
            for length in lengths(int(steps), window.rank):
                subject = base._replace(grain=f"{base.grain}{_IN_A_RUN}{length}")
                if self._interest is None or subject in self._interest:
                    once = frozenset(prop for prop, times in shown.items() if times < MIN_TIMES)
                    yield Occasion(subject, (), frozenset(shown), None, NO_CALL, sometimes=once)

    def _note_operations(self, reading: Reading) -> None:
        """Note what a function did in any stage. The stage of an evaluation depends on where a batch ends."""
        origin, *lines = str(reading.value).split("\n")
        function = without_positions(reading.variable)
        self._note(FUNCTIONS, (Property(HAS, FUNCTIONS.api, function),))
        elements = (Property(HAS, FUNCTIONS.api, line.removeprefix(SOMETIMES)) for line in lines)
        self._note(Subject(FUNCTIONS.api, f"{function}{UNDER}{origin}"), elements)

    def _note(self, subject: Subject, shown: Iterable[Property]) -> None:
        if self._bases is None or subject in self._bases:
            self._shown.setdefault(subject, Counter()).update(shown)


def lengths(steps: int, rank: int) -> tuple[str, ...]:
    """The ranges of lengths that a run of so many steps belongs to, see Note [Runs of one length]."""
    most = 1 << (steps.bit_length() - 1)
    which = " on a rank after the first" if rank else ""
    return tuple(f"{least} to {4 * least - 1} steps{which}" for least in (most // 2, most) if least)
