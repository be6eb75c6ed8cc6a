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
from collections.abc import Iterable, Iterator

from traincheck.relations.consistent.call_order import BOUNDARIES, GRAIN, ORDER, SUBJECT, driving_calls
from traincheck.relations.consistent.computation import UNDER
from traincheck.relations.parts import Part, named, number
from traincheck.relations.periodic.run_totals import STEPS
from traincheck.vocab.demand import DESCRIBED_ALL, NO_GRAD, OPERATIONS, Demand
from traincheck.vocab.events import LIVE, NO_CALL, Reading, Window, without_positions
from traincheck.vocab.occasion import Occasion, Property, Subject
from traincheck.vocab.properties import FOLLOWS, HAS, SOMETIMES

OPERATIONS_WITHOUT_GRADIENTS = f"{NO_GRAD}.{OPERATIONS}"
FUNCTIONS = Subject(OPERATIONS_WITHOUT_GRADIENTS, "functions that compute without gradients")

ALL_DESCRIBED = f"{NO_GRAD}.{DESCRIBED_ALL}"

RUNS = Demand.of_readings(STEPS, ALL_DESCRIBED)
"""The demand for occasions of whole runs, in addition to that for what they show, see own_runs.py."""

MIN_TIMES = 2
"""A run that showed something once may have done it by chance, and does not show that other runs have to."""

_IN_A_RUN = ", in a run of "


class WholeRuns(Part):
    """Collects which calls drive the training of a run, and which operations its functions make."""

    def __init__(self) -> None:
        self._shown: dict[Subject, Counter[Property]] = {}  # in how many windows
        self._complete = True

    def occasions(self, window: Window) -> Iterator[Occasion]:
        """Yield the occasions of the run, if it ends with this window."""
        # Changes to evaluation and passes over the data come and go with the way in which a program evaluates.
        calls = (name for call, name in driving_calls(window) if name and call.levels[-1] not in BOUNDARIES)
        self._note(SUBJECT, (Property(FOLLOWS, GRAIN, name) for name in calls))
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
            once = frozenset(prop for prop, times in shown.items() if times < MIN_TIMES)
            for length in lengths(int(steps), window.rank):
                subject = base._replace(grain=f"{base.grain}{_IN_A_RUN}{length}")
                yield Occasion(subject, (), frozenset(shown), None, NO_CALL, sometimes=once)

    def _note_operations(self, reading: Reading) -> None:
        """Note what a function did in any stage. The stage of an evaluation depends on where a batch ends."""
        origin, *lines = str(reading.value).split("\n")
        function = without_positions(reading.variable)
        self._note(FUNCTIONS, (Property(HAS, FUNCTIONS.api, function),))
        elements = (Property(HAS, FUNCTIONS.api, line.removeprefix(SOMETIMES)) for line in lines)
        self._note(Subject(FUNCTIONS.api, f"{function}{UNDER}{origin}"), elements)

    def _note(self, subject: Subject, shown: Iterable[Property]) -> None:
        properties = set(shown)
        if properties:
            self._shown.setdefault(subject, Counter()).update(properties)

    def forget(self) -> None:
        """Windows were dropped: nobody knows what they showed."""
        self._complete = False

    @staticmethod
    def speaks_of(subject: Subject) -> bool:
        return _IN_A_RUN in subject.grain

    @staticmethod
    def needs(subject: Subject, prop: Property) -> Demand:
        if subject.api == OPERATIONS_WITHOUT_GRADIENTS:
            return RUNS | Demand.of_readings(OPERATIONS_WITHOUT_GRADIENTS)
        return ORDER | Demand.of_readings(STEPS)

    @staticmethod
    def describe(subject: Subject, prop: Property) -> str:
        subjects, _, length = subject.grain.partition(_IN_A_RUN)
        subjects = subjects.partition(UNDER)[0]
        return f"a run of {length} shows everything that all good runs of this length showed of {subjects}"


def lengths(steps: int, rank: int) -> tuple[str, ...]:
    """The ranges of lengths that a run of so many steps belongs to, see Note [Runs of one length]."""
    most = 1 << (steps.bit_length() - 1)
    which = " on a rank after the first" if rank else ""
    return tuple(f"{least} to {4 * least - 1} steps{which}" for least in (most // 2, most) if least)
