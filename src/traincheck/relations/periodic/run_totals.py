"""Check that a run is as long as announced.

A pass over a data loader has as many batches as the loader announced, and a scheduler makes as many steps as it was
built for.

Note [Passes that are cut short]
A loop may leave a loader early: to look at one batch, or because it counts steps and restarts the loader whenever the
data end. So a pass is expected to go to its end only if this run works in passes. That is, `ESTABLISHED` passes of this
loader went to their end and none was left before. Between two of them, the program did what belongs to the end of a
pass (an evaluation, a scheduler step, a save). Whether a pass trained (`updated`) or evaluated is a fact. Whether the
last batch was fetched (`last_batch`) must not be one, because it is the question itself.

Note [Looks at the data]
A program may look at a few batches before it trains: to print a shape, to show images. After the first update, such a
look no longer counts as a pass that was left. A look never shows in which order a pass goes through the data. Only
passes with updates between the first and the last fetch do.

Note [Samplers that shuffle]
A pass in a fixed order may be intended, but not with a sampler that was built to shuffle: `set_epoch` is missing, or a
generator gets the same seed for each pass. This rule is built in (builtin_rules.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from traincheck.relations.base import context_of, outcome_of
from traincheck.relations.parts import ITER, KEPT_LOADERS, NEXT, SCHEDULE, UPDATE, calls_of, named, number, outermost
from traincheck.vocab.builtin_rules import SHUFFLED, SHUFFLES, sentence_of
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import ANNOUNCED, END, EVAL, LIVE, NO_CALL, Call, Reading, Window
from traincheck.vocab.facts import Facts, FactValue, facts, value_of
from traincheck.vocab.occasion import Occasion, Property, Subject
from traincheck.vocab.properties import DIFFERS_BETWEEN_PASSES, REACHES, STAYS_WITHIN

PASS, HORIZON, RUN = "pass", "horizon", "run"
BATCHES, ORDER, LENGTH, SAMPLER = "loader.batches", "loader.order", "loader.length", "loader.sampler"
BEGUN_ORDER = "loader.begun_order"
SHUFFLING = ("(shuffle=True)", "RandomSampler")
"""Ends of descriptions of samplers that draw an order."""

EPOCH, TOTAL, SCHEDULED_LR, STEPS = "scheduler.last_epoch", "scheduler.total", "scheduler.lr", "run.steps"
CLOSING = (SCHEDULE, "torch.save")
"""Calls that, like an evaluation, belong to the end of a pass in programs that work in passes."""

ESTABLISHED = 2
"""Completed passes before the next one is expected to be complete: one may be chance, and runs have few."""

ENOUGH_BATCHES = 5
"""A pass with fewer may have the same order twice by chance."""

MAX_LOADERS = 64
"""Programs that build a loader for each epoch have many. Only the latest continue."""


@dataclass(slots=True)
class _Loader:
    """The history of a loader from its passes so far."""

    length: float | None = None
    order: FactValue = None  # of the latest pass with updates
    begun: FactValue = None  # of the pass under way, until it is compared
    shuffles: bool = False  # whether its sampler was built to draw another order for each pass
    whole: int = 0
    cut: bool = False
    looked: bool = False  # left before any update
    updates_before: int = 0
    updates_fetched: int = 0  # at the latest fetch
    closes: bool = True  # something was done once after each pass that went to its end
    closing: bool = False  # one has, and nothing was done yet
    passes: int = 0
    site: str = ""  # where the latest began


def is_whole_pass(end: Reading, length: float | None) -> bool:
    """Whether a pass went to the end of the data, by its number of batches and the length of its loader, if known."""
    batches = number(end.value)
    all_fetched = batches is not None and length is not None and batches >= length
    return all_fetched or value_of(end.context, "last_batch") is True


class LoaderPasses:
    """Follows the passes over each loader."""

    def __init__(self) -> None:
        self._drawn: dict[str, FactValue] = {}  # the order of the latest pass over each loader that shuffles
        self.forget()

    def forget(self) -> None:
        """Two passes with one order are an error whatever came between them. The rest is unknown after a gap."""
        self._loaders: dict[str, _Loader] = {}
        self._updates = 0

    def occasions(self, window: Window) -> Iterator[Occasion]:
        """Yield up to two occasions when a pass ends: its batches and its order."""
        if window.stage == EVAL:
            self._closed()
        for reading in window.readings:
            if named(reading) == SAMPLER:
                self._loader(reading.variable).shuffles = str(reading.value).endswith(SHUFFLING)
        for event in _in_order(window):
            if isinstance(event, Call):
                if event.levels[-1] == UPDATE:
                    self._updates += 1
                elif event.levels[-1] == ITER:
                    self._begins(event)
                elif event.levels[-1] == NEXT:
                    yield from self._fetched(event)
                else:
                    self._closed()
            elif event.role == ANNOUNCED:
                self._loader(event.variable).length = number(event.value)
            elif named(event) == BEGUN_ORDER:
                self._loader(event.variable).begun = event.value
            elif named(event) == ORDER:
                yield from self._of_order(event)
            else:
                yield from self._ends(event, window)
                if window.stage == EVAL:
                    self._closed()

    def _closed(self) -> None:
        for loader in self._loaders.values():
            loader.closing = False

    def _loader(self, name: str) -> _Loader:
        loader = self._loaders.get(name)
        if loader is None:
            if len(self._loaders) >= MAX_LOADERS:
                del self._loaders[next(iter(self._loaders))]
            loader = self._loaders[name] = _Loader()
        return loader

    def _begins(self, call: Call) -> None:
        loader = self._loader(call.receiver)
        loader.passes += 1
        loader.begun = None
        loader.site = call.site
        loader.updates_before = loader.updates_fetched = self._updates
        loader.closes = loader.closes and not loader.closing
        loader.closing = False

    def _fetched(self, call: Call) -> Iterator[Occasion]:
        """Compare the order of a pass with that of the one before it, when an update has followed a fetch."""
        loader = self._loader(call.receiver)
        loader.updates_fetched = self._updates
        if loader.begun is not None and loader.updates_fetched > loader.updates_before:
            begun, loader.begun = loader.begun, None
            if not loader.shuffles or (loader.length or 0) < ENOUGH_BATCHES:
                return
            before = self._drawn.pop(call.receiver, None) if loader.order is None else loader.order
            self._drawn[call.receiver] = begun
            if len(self._drawn) > KEPT_LOADERS:
                del self._drawn[next(iter(self._drawn))]
            if begun == before:
                yield _occasion(Subject(ORDER, SHUFFLED), SHUFFLES, False, (), call.seq, (call.receiver,))

    def _of_order(self, reading: Reading) -> Iterator[Occasion]:
        loader = self._loader(reading.variable)
        # Evaluations go through their data in a fixed order. See also Note [Looks at the data].
        if loader.updates_fetched <= loader.updates_before:
            return
        old, loader.order = loader.order, reading.value
        if old is not None and reading.value is not None:
            subject = Subject(ORDER, PASS)
            yield _occasion(
                subject,
                Property(DIFFERS_BETWEEN_PASSES, ORDER),
                old != reading.value,
                (),
                reading.call,
                (reading.variable,),
            )

    def _ends(self, reading: Reading, window: Window) -> Iterator[Occasion]:
        loader, batches = self._loader(reading.variable), number(reading.value)
        if batches is None:
            return
        updates = self._updates - loader.updates_before
        names = (reading.variable,)
        cut = loader.cut or (loader.looked and not self._updates)
        if loader.length is not None and loader.whole >= ESTABLISHED and loader.closes and not cut:
            pass_facts = facts(updated=updates > 0)
            reached = batches == loader.length
            occasion = _occasion(
                Subject(BATCHES, PASS), Property(REACHES, LENGTH), reached, pass_facts, reading.call, names
            )
            if not reached:
                occasion = occasion._replace(site=loader.site, note=_left(reading.variable, loader, batches, window))
            yield occasion
        if is_whole_pass(reading, loader.length):
            loader.whole += 1
            loader.closing = True
        elif self._updates or loader.whole:
            loader.cut = True
        else:
            loader.looked = True  # see Note [Looks at the data]

    @staticmethod
    def speaks_of(subject: Subject) -> bool:
        return subject.grain in (PASS, SHUFFLED)

    @staticmethod
    def needs(subject: Subject, prop: Property) -> Demand:
        if subject.grain == SHUFFLED:
            return Demand.of_calls(UPDATE, ITER, NEXT) | Demand.of_readings(ORDER, BEGUN_ORDER, SAMPLER, LENGTH)
        # A source reports a pass at the fetch that ends it.
        return Demand.of_calls(UPDATE, ITER, NEXT, *CLOSING) | Demand.of_readings(BATCHES, ORDER, LENGTH)

    @staticmethod
    def is_optional_practice(prop: Property) -> bool:
        return prop.verb == DIFFERS_BETWEEN_PASSES and prop != SHUFFLES  # a fixed order may be intended

    @staticmethod
    def describe(subject: Subject, prop: Property) -> str:
        if prop == SHUFFLES:
            return sentence_of(subject, prop)
        if prop.verb == DIFFERS_BETWEEN_PASSES:
            return "each pass over a loader in which parameters are updated has its batches in another order"
        return "a loader that was read to its end in every pass so far is read to its end in the next as well"


class ScheduleHorizons:
    """Follows schedulers that announce for how many steps they are made."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self._totals: dict[str, float] = {}
        self._epochs: dict[str, float] = {}
        self._rates: dict[str, float] = {}

    def occasions(self, window: Window) -> Iterator[Occasion]:
        """Yield one occasion at each step of such a scheduler, and one at the end of the run."""
        for call in calls_of(window, SCHEDULE):
            if outermost(call, window):
                yield from self._of_step(call, window)
        if any(named(reading) == STEPS and reading.role == LIVE for reading in window.readings):
            for name, total in self._totals.items():
                if name in self._epochs:
                    # The step that a scheduler takes when it is built is counted by some and not by others.
                    reached = self._epochs[name] >= total - 1
                    yield _occasion(Subject(EPOCH, RUN), Property(REACHES, TOTAL), reached, (), NO_CALL, (name,))

    def _of_step(self, call: Call, window: Window) -> Iterator[Occasion]:
        name, old = call.receiver, self._rates.get(call.receiver)
        for reading in window.readings_of.get(call.seq, ()):
            value = number(reading.value)
            values = {TOTAL: self._totals, EPOCH: self._epochs, SCHEDULED_LR: self._rates}.get(named(reading))
            if values is not None and value is not None and (reading.role == ANNOUNCED) == (values is self._totals):
                values[name] = value
        total, epoch, rate = self._totals.get(name), self._epochs.get(name), self._rates.get(name)
        if total is None or epoch is None or (epoch > total and (old is None or rate is None)):
            return
        rests = epoch <= total or rate == old
        context = context_of((), window.stage)
        yield _occasion(Subject(EPOCH, HORIZON), Property(STAYS_WITHIN, TOTAL), rests, context, call.seq, (name,))

    @staticmethod
    def speaks_of(subject: Subject) -> bool:
        return subject.api == EPOCH and subject.grain in (HORIZON, RUN)

    @staticmethod
    def needs(subject: Subject, prop: Property) -> Demand:
        last = SCHEDULED_LR if subject.grain == HORIZON else STEPS
        return Demand.of_calls(SCHEDULE) | Demand.of_readings(EPOCH, TOTAL, last)

    @staticmethod
    def is_optional_practice(prop: Property) -> bool:
        # A run may be stopped early, or be a short trial of a long one.
        return prop == Property(REACHES, TOTAL)

    @staticmethod
    def describe(subject: Subject, prop: Property) -> str:
        if subject.grain == RUN:
            return "at the end of a run, a scheduler has made as many steps as it was built for"
        return "the learning rate rests once a scheduler has made as many steps as it was built for"


def _left(name: str, loader: _Loader, batches: float, window: Window) -> str:
    """How a pass ended early, for the finding."""
    run = "the run is over" if window.stage == END else f"the loop was left after step {window.step}"
    return (
        f"pass {loader.passes} over {name} ended early, with {batches:g} of {loader.length:g} batches, where passes "
        f"before it went to their end: {run}"
    )


def _in_order(window: Window) -> list[Call | Reading]:
    """Updates, beginnings of passes, fetches, closing calls and readings of loaders, in order.

    A pass begins when the call that begins it ends.
    """
    events: list[tuple[int, Call | Reading]] = [
        (call.end if call.levels[-1] == ITER else call.seq, call)
        for call in calls_of(window, UPDATE, ITER, NEXT, *CLOSING)
    ]
    quantities = (BATCHES, ORDER, BEGUN_ORDER, LENGTH)
    events += [
        (reading.seq, reading)
        for reading in window.readings
        if named(reading) in quantities and (reading.role == ANNOUNCED) == (named(reading) == LENGTH)
    ]
    events.sort(key=lambda event: event[0])
    return [event for _, event in events]


def _occasion(
    subject: Subject, prop: Property, holds: bool, context: Facts, seq: int, variables: tuple[str, ...]
) -> Occasion:
    return Occasion(subject, context, *outcome_of(prop, holds), seq, variables)
