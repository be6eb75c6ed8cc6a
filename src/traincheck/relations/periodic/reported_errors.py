"""Errors that a source has decided by itself: each of their readings is a violation.

A source sees what no event shows: a setting that nothing reads, memory that nothing wrote, an optimizer that lost its
state. It takes a reading only for an error. The rules need no good run (builtin_rules.py). So an occasion arises only
if they fail, and nothing is learned from it.

Note [Runs without an update]
A source counts the backwards of a run in which no update used the gradients of a model in training mode. It is an error
if an optimizer alone holds the parameters and never stepped, or there is no optimizer. A program that only looks at
gradients (attribution, adversarial samples, a test of gradients) usually has no optimizer, and its model is in
evaluation mode. A benchmark of the backward may have it in training mode, so the finding is a notice without an
optimizer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from traincheck.relations.base import context_of, outcome_of
from traincheck.relations.parts import NEXT, UPDATE, Part, StatelessPart, calls_of, named, number, site_of
from traincheck.vocab.builtin_rules import (
    CLIPPED_SHARDS,
    COPIES,
    CUT_OFF_PARAMETERS,
    EQUAL_LAYERS,
    IDLE,
    IDLE_AUTOCAST,
    KEEPS_STATE,
    KEPT_WEIGHTS,
    MEMORY,
    MERGED_HEADS,
    MERGED_STATE,
    MISPLACED_DECAY,
    NO_AVERAGE,
    ONE_HEAD,
    REDUCED_GRADIENT,
    REPLACED_OPTIMIZER,
    REPLACED_WITHOUT_LOADER,
    REPORTED,
    REPORTED_ERRORS,
    RESTARTED_SCHEDULE,
    RESTORES_STATE,
    RUN,
    SAME_SAMPLES,
    SCHEDULE_UNIT,
    SELF_UPDATE,
    STALE_COPY,
    SUCCESSION,
    UNREAD,
    UNREAD_BY_OPTIMIZER,
    UNREGISTERED,
    UNRESTORED,
    UNRESTORED_HERE,
    UNSET,
    UNSTEPPED_SCHEDULER,
    UNUSED,
    USED_AGAIN,
    sentence_of,
)
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import Reading, Window
from traincheck.vocab.occasion import Occasion, Property, Subject


def _unused(readings: Sequence[Reading]) -> str:
    return f"{_backwards(readings)} and no parameter was updated"


def _idle(readings: Sequence[Reading]) -> str:
    holder = readings[0].variable
    return f"{_backwards(readings)}; {holder} holds parameters that got gradients, and it has never stepped"


def _backwards(readings: Sequence[Reading]) -> str:
    return f"{number(readings[0].value) or 0:,.0f} backwards ran in this run"


_NOTES: Mapping[str, Callable[[Sequence[Reading]], str]] = {
    UNUSED: _unused,
    IDLE: _idle,
    UNREAD: lambda readings: (
        f"the program set {readings[0].value}=False there, and torch reads only requires_grad of parameters"
    ),
    UNREAD_BY_OPTIMIZER: lambda readings: (
        f"the program set the attribute {readings[0].value}, and the optimizer reads param_groups"
    ),
    KEPT_WEIGHTS: lambda readings: (
        f"{readings[0].value} updates have changed the state since state_dict() returned it"
        if readings[0].value
        else "the state is the memory of the model that loads it, and nothing has written to it"
    ),
    MERGED_STATE: lambda readings: (
        f"state_dict() returned a state there, {readings[0].value} of its parameters became those of another model, "
        "and nothing has loaded them"
    ),
    CUT_OFF_PARAMETERS: lambda readings: f"these parameters have no gradient, and {readings[0].value}",
    MEMORY: lambda readings: f"{len(readings)} parameters have the contents that to_empty() left in their memory",
    UNSET: lambda readings: (
        f"{len(readings)} layers are in evaluation mode, and no batch has set their running mean and variance"
    ),
    UNREGISTERED: lambda readings: (
        "random numbers made it, training computes with it, and it is neither a parameter nor a buffer"
    ),
    EQUAL_LAYERS: lambda readings: (
        f"{len(readings)} parameters are equal, and the seed was the same when they were made"
    ),
    STALE_COPY: lambda readings: f"it is a copy of {readings[0].value}, which training has changed since",
    NO_AVERAGE: lambda readings: str(readings[0].value),
    MISPLACED_DECAY: lambda readings: str(readings[0].value),
    USED_AGAIN: lambda _: "nothing has written to its gradients since its last step",
    REPLACED_WITHOUT_LOADER: lambda readings: (
        f"it replaces {readings[0].value}, has no state, and trains on the same samples"
    ),
    UNRESTORED: lambda readings: f"it has no state, its weights are those of the file, and {readings[0].value}",
    RESTARTED_SCHEDULE: lambda readings: f"the program restored its optimizer from the file; {readings[0].value}",
    SELF_UPDATE: lambda _: "the update reads the parameters to which it writes, so the copy is the model itself",
    UNSTEPPED_SCHEDULER: lambda readings: f"it was built for {readings[0].value}, and the run is over",
    SCHEDULE_UNIT: lambda readings: str(readings[0].value),
    SAME_SAMPLES: lambda readings: str(readings[0].value),
    IDLE_AUTOCAST: lambda _: "the graph of the loss has matrix products in single precision, and no cast",
    MERGED_HEADS: lambda readings: f"a reshape of its result mixes heads and positions: {readings[0].value}",
    ONE_HEAD: lambda readings: str(readings[0].value),
    COPIES: lambda _: "",
    REDUCED_GRADIENT: lambda readings: f"the collective combines the gradients of ranks by {readings[0].value}",
}
"""What a finding says of readings of one site, by their quantity."""


MAX_LOOPS = 1024
"""Loops over a loader that are remembered, the first ones."""


class OptimizerSuccession(Part):
    """Optimizers that replace an equal one without its state (sources/optimizers/replaced_optimizers.py), if both learn
    from one loader. (With a loader for each task, the program may mean a new beginning.) The same holds for those that
    do not restore it from a checkpoint (sources/checkpoints/resumed_training.py), if they step at the same line."""

    def __init__(self) -> None:
        self._loader = ""
        self._loaders: dict[str, str] = {}  # by optimizer: the loader of its latest step
        self._loops: set[tuple[str, str]] = set()  # the loaders and lines of all steps

    def forget(self) -> None:
        self._loader = ""

    def occasions(self, window: Window) -> Iterator[Occasion]:
        """Yield an occasion for each such optimizer."""
        unrestored = {reading.variable: reading for reading in window.readings if named(reading) == UNRESTORED_HERE}
        for call in calls_of(window, NEXT, UPDATE):
            if call.levels[-1] == NEXT:
                self._loader = call.receiver
                continue
            for reading in window.readings_of.get(call.seq, ()):
                former = str(reading.value)
                if named(reading) == REPLACED_OPTIMIZER and self._loader and self._loaders.get(former) == self._loader:
                    subject, note = Subject(REPLACED_OPTIMIZER, SUCCESSION), f"it replaces {former}, and has no state"
                    context, outcome = context_of((), window.stage), outcome_of(KEEPS_STATE, False)
                    yield Occasion(subject, context, *outcome, call.seq, (call.receiver,), site=call.site, note=note)
            loop = self._loader, call.site
            if call.receiver in unrestored and self._loader and loop in self._loops:
                reading = unrestored.pop(call.receiver)
                note = f"it has no state, its weights are those of the file, and {reading.value}"
                subject, site = Subject(UNRESTORED_HERE, SUCCESSION), site_of(reading)
                context, outcome = context_of((), window.stage), outcome_of(RESTORES_STATE, False)
                yield Occasion(subject, context, *outcome, call.seq, (call.receiver,), site=site, note=note)
            self._loaders[call.receiver] = self._loader
            if len(self._loops) < MAX_LOOPS:
                self._loops.add(loop)

    @staticmethod
    def speaks_of(subject: Subject) -> bool:
        return subject.grain == SUCCESSION

    @staticmethod
    def needs(subject: Subject, prop: Property) -> Demand:
        return Demand.of_calls(UPDATE, NEXT) | Demand.of_readings(subject.api)

    @staticmethod
    def describe(subject: Subject, prop: Property) -> str:
        return sentence_of(subject, prop)


class ReportedErrors(StatelessPart):
    """See the module."""

    def occasions(self, window: Window) -> Iterator[Occasion]:
        """Yield an occasion for the readings of each error that have one site, call and value."""
        groups: dict[tuple[str, str, int, object], list[Reading]] = {}
        for reading in window.readings:
            if named(reading) in REPORTED_ERRORS:
                key = named(reading), site_of(reading), reading.call, reading.value
                groups.setdefault(key, []).append(reading)
        for (quantity, site, call, _), readings in groups.items():
            yield Occasion(
                Subject(quantity, REPORTED),
                context_of((), window.stage),
                *outcome_of(REPORTED_ERRORS[quantity], False),
                call if quantity == COPIES else readings[0].seq,
                tuple(reading.variable for reading in readings if reading.kind != RUN),
                site=site,
                note=_NOTES[quantity](readings),
            )

    @staticmethod
    def speaks_of(subject: Subject) -> bool:
        return subject.grain == REPORTED

    @staticmethod
    def needs(subject: Subject, prop: Property) -> Demand:
        return Demand.of_readings(subject.api)

    @staticmethod
    def describe(subject: Subject, prop: Property) -> str:
        return sentence_of(subject, prop)


class ClippedShards(StatelessPart):
    """Clipping of gradients that are divided over ranks. Only the comparison of ranks judges it (shard_clipping.py)."""

    def occasions(self, window: Window) -> Iterator[Occasion]:
        """Nothing: a single rank cannot be judged."""
        return iter(())

    @staticmethod
    def speaks_of(subject: Subject) -> bool:
        return subject == CLIPPED_SHARDS

    @staticmethod
    def needs(subject: Subject, prop: Property) -> Demand:
        return Demand.of_readings(subject.api)

    @staticmethod
    def describe(subject: Subject, prop: Property) -> str:
        return sentence_of(subject, prop)
