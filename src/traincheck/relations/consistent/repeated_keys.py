"""Whether the random keys that a program passes to its updates repeat: what good runs never did is a violation.

In JAX a program makes a new key for each step, or folds the number of the step into one key. Either is right, and a run
shows which one the program means. A program that made new keys in good runs, and now passes one key again and
again, draws the same dropout masks in each step.

After a gap, the rule judges no key, because the program may have used it in the gap.
"""

from __future__ import annotations

from collections.abc import Iterator

from traincheck.relations.parts import UPDATE, Part, named
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import Window
from traincheck.vocab.occasion import Occasion, Property, Subject
from traincheck.vocab.properties import KEY_IS

KEY = "random.key"
NEW, AS_LAST, AS_EARLIER = "the key is new", "the key is the last one again", "the key is an earlier one again"

MAX_REMEMBERED = 20_000


class RepeatedKeys(Part):
    """Follows the keys that each argument of an update holds."""

    def __init__(self) -> None:
        self._last: dict[str, str] = {}
        self._used: dict[str, set[str]] = {}
        self._complete = True

    def occasions(self, window: Window) -> Iterator[Occasion]:
        """Yield an occasion for each key."""
        for reading in window.readings if self._complete else ():
            if named(reading) == KEY:
                held = frozenset((Property(KEY_IS, KEY, self._judge(reading.variable, str(reading.value))),))
                subject = Subject(KEY, f"keys of {reading.variable}")
                yield Occasion(subject, (), held, frozenset(), reading.call, (reading.variable,))

    def _judge(self, variable: str, key: str) -> str:
        used = self._used.setdefault(variable, set())
        kind = AS_LAST if self._last.get(variable) == key else AS_EARLIER if key in used else NEW
        self._last[variable] = key
        if len(used) < MAX_REMEMBERED:
            used.add(key)
        return kind

    def forget(self) -> None:
        """A key of the steps that were not seen may come again."""
        self._complete = False

    @staticmethod
    def speaks_of(subject: Subject) -> bool:
        return subject.api == KEY

    @staticmethod
    def needs(subject: Subject, prop: Property) -> Demand:
        return Demand.of_calls(UPDATE) | Demand.of_readings(KEY)

    @staticmethod
    def describe(subject: Subject, prop: Property) -> str:
        return f"the random {subject.grain} repeat, or do not, as in good runs"
