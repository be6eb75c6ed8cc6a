"""Check that a model was prepared before it is used.

* A class of modules that freezes stages in its `train`, or keeps its statistics, needs a call of that method. A new
  module is in training mode without the call, so nothing seems to be missing. Freezing by hand has the same effect and
  is accepted.
* The plain attributes that a constructor sets (sizes, indices, names) belong to the module. Code that writes to an
  attribute of the same name, for bookkeeping, changes what the module does.
* A buffer that starts with random numbers and is updated in training (an estimate, a queue, a codebook) means nothing
  before the first update. A buffer that starts with ones or zeros (the statistics of batch norms) is neutral.
"""

from __future__ import annotations

from collections.abc import Iterator

from traincheck.relations.base import context_of, outcome_of
from traincheck.relations.parts import FORWARD, Part, calls_of, named, number
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import TRAIN, Call, Change, Window
from traincheck.vocab.facts import value_of
from traincheck.vocab.occasion import Occasion, Property, Subject
from traincheck.vocab.properties import HAS_TAKEN_EFFECT, IS_AS_BUILT, IS_UPDATED_BEFORE_USE

OWN_TRAIN, ATTRIBUTES, MADE = "module.own_train", "module.attributes", "buffer.made"
BUFFER_DATA = "buffer.data"
AS_BUILT = "as built"
GRAIN = "readiness"

IN_FORCE = Property(HAS_TAKEN_EFFECT, OWN_TRAIN)
KEPT = Property(IS_AS_BUILT, ATTRIBUTES)
FIRST_UPDATED = Property(IS_UPDATED_BEFORE_USE, BUFFER_DATA)

MAX_VARIABLES = 100_000
"""Beyond this, a program makes modules in a loop. The state is dropped, which bounds memory."""


class Readiness(Part):
    """Follows modules with a `train` of their own, and buffers of random numbers."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self._in_force: dict[str, bool] = {}
        self._made: dict[str, int] = {}  # fingerprints of buffers that hold what they were made with
        self._random: dict[str, bool] = {}  # by buffer: whether it was updated before it was used
        self._sites: dict[str, tuple[str, int]] = {}  # where one that was not was used, and after how many steps

    def occasions(self, window: Window) -> Iterator[Occasion]:
        """Yield occasions at the first call of a model (its attributes), and at calls in training."""
        for call in calls_of(window, FORWARD):
            yield from self._judge_attributes(call, window)
            if value_of(call.context, "outermost") is True:
                yield from self._judge_train_methods(call, window)
            if self._random:
                yield from self._judge_buffers(call, window)
        if len(self._in_force) + len(self._random) > MAX_VARIABLES:
            self.forget()

    def _judge_attributes(self, call: Call, window: Window) -> Iterator[Occasion]:
        changed: dict[str, str] = {}
        judged = False
        for reading in window.readings_of.get(call.seq, ()):
            quantity = named(reading)
            if quantity == OWN_TRAIN:
                self._in_force[reading.variable] = reading.value is True
            elif quantity == MADE:
                self._random[reading.variable] = True
                made = number(reading.value)
                if made is not None:
                    self._made[reading.variable] = int(made)
            elif quantity == ATTRIBUTES:
                judged = True
                if reading.value != AS_BUILT:
                    changed[reading.variable] = str(reading.value)
        if judged:
            first = next(iter(changed.items()), None)
            note = "" if first is None else _of_attribute(*first, others=len(changed) - 1)
            names = tuple(changed) or (call.receiver,)
            yield _occasion(Subject(ATTRIBUTES, GRAIN), KEPT, not changed, call, window, names, note=note)

    def _judge_train_methods(self, call: Call, window: Window) -> Iterator[Occasion]:
        if window.stage != TRAIN or value_of(call.context, "grad_mode") != "on":
            return
        own = [name for name in self._in_force if name == call.receiver or name.startswith(f"{call.receiver}.")]
        for holds in (True, False):
            names = tuple(name for name in own if self._in_force[name] is holds)
            if names:
                note = "" if holds else f"the train() of {names[0]} was never called, and nothing in it is frozen"
                yield _occasion(Subject(OWN_TRAIN, GRAIN), IN_FORCE, holds, call, window, names, note=note)

    def _judge_buffers(self, call: Call, window: Window) -> Iterator[Occasion]:
        training = value_of(call.context, "training") is True
        outcomes: dict[bool, list[str]] = {}
        for change in window.changes_of.get(call.seq, ()):
            name = change.variable
            if change.kind != "buffer" or name not in self._random:
                continue
            if training and change.changed:
                outcomes.setdefault(self._random[name], []).append(name)
                self._made.pop(name, None)
            elif not training and not change.changed and self._random[name] and self._is_made(change):
                self._random[name] = False
                self._sites[name] = call.site, window.step
        for holds, names in outcomes.items():
            site, step = self._sites.get(names[0], ("", 0)) if not holds else ("", 0)
            note = (
                ""
                if holds
                else (
                    f"{names[0]} still had the random numbers that it was made with when the model was called in "
                    f"evaluation mode (after step {step}); training updates it only now"
                )
            )
            subject = Subject(BUFFER_DATA, GRAIN)
            yield _occasion(subject, FIRST_UPDATED, holds, call, window, tuple(names), site=site, note=note)

    def _is_made(self, change: Change) -> bool:
        """Whether a buffer still holds its initial numbers."""
        return change.fingerprint is not None and self._made.get(change.variable) == change.fingerprint

    @staticmethod
    def speaks_of(subject: Subject) -> bool:
        return subject.grain == GRAIN

    @staticmethod
    def needs(subject: Subject, prop: Property) -> Demand:
        if subject.api == BUFFER_DATA:
            return Demand.of_calls(FORWARD, changes=(BUFFER_DATA,)) | Demand.of_readings(MADE)
        return Demand.of_calls(FORWARD) | Demand.of_readings(subject.api)

    @staticmethod
    def describe(subject: Subject, prop: Property) -> str:
        if subject.api == OWN_TRAIN:
            return "a module whose class freezes parts of it in train() has it called before it trains (or is frozen)"
        if subject.api == ATTRIBUTES:
            return "when a model is first called, its modules have the numbers and names that they were built with"
        return "a buffer that begins with random numbers is updated in training before an evaluation uses it"


def _of_attribute(variable: str, value: str, others: int) -> str:
    module, _, attribute = variable.rpartition(".")
    more = f" (and {others} more like it)" if others else ""
    return f"attribute {attribute} of {module} was changed since the module was built: it {value}{more}"


def _occasion(
    subject: Subject,
    prop: Property,
    holds: bool,
    call: Call,
    window: Window,
    variables: tuple[str, ...],
    *,
    site: str = "",
    note: str = "",
) -> Occasion:
    return Occasion(subject, context_of((), window.stage), *outcome_of(prop, holds), call.seq, variables, site, note)
