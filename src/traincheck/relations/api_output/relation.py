"""APIOutput(Ia, bound): the result of an API, compared with its arguments and circumstances.

Source: OSDI '25, section 3.2. There is one occasion for each call and each group of properties that can be judged on
it.

Note [Relative before absolute]
A fixed dtype or size reflects the configuration of one program. So results are compared with inputs, with arguments
that name a type or a number, and with autocast. A fixed type is judged only for results that are not floating point.
The input types of good programs are a fact (`inputs_dtype`): a rule that was learned from float32 alone cannot separate
"as its input" from "float32".

Note [What torch settles]
The arguments settle which types and sizes the functions and modules of torch return, so a rule would only record how
somebody used them. For these, TrainCheck judges only what the surroundings affect: autocast (for modules without others
inside; a container returns what its last layer does), the flow of gradients through modules, values that should be
finite, and norms after clipping. Functions and modules outside torch are judged on everything.

Note [Bounds]
A number among the arguments that is larger than the result need not be a bound at all (a seed, say). So a call supports
"at most" only if it reaches the bound, and refutes it if it exceeds the bound. Rules about lengths mean something only
if the argument had several values in the learned runs: `argument_of` names it.

call_kinds.py judges calls by their kind, whatever a program calls them.

Note [Filled at the start]
During set-up, a function of the project that is given a parameter to fill fills each of them. Later, a function that
adjusts parameters may find nothing to do.

Known limitations: values are judged only where sources read them. Of several results, only the first with dimensions is
compared. Modules in general are judged on the flow of gradients alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from operator import itemgetter
from typing import ClassVar, NamedTuple

from traincheck.relations.api_output import call_results as results
from traincheck.relations.api_output.call_kinds import CallKinds
from traincheck.relations.api_output.call_results import Flow
from traincheck.relations.base import context_of, short, varies
from traincheck.relations.parts import FORWARD
from traincheck.vocab.bounded_cache import BoundedCache
from traincheck.vocab.collectives import STARTERS, WAIT
from traincheck.vocab.demand import ARGUMENTS, CONTENTS, NUMBERS, ROWS, TENSORS, Demand, ValueKind
from traincheck.vocab.events import FUNCTION, LIFECYCLE, MODULE, PROJECT, SETUP, Call, Window
from traincheck.vocab.facts import Facts, merged, value_of
from traincheck.vocab.occasion import Occasion, Property, Subject
from traincheck.vocab.properties import (
    LEAVES_ARGUMENT,
    LEAVES_NORM,
    RETURNS,
    RETURNS_DTYPE,
    RETURNS_LENGTH,
    RETURNS_MORE,
    RETURNS_SIZE,
    RETURNS_WIDTH,
)

GRAIN = "result"
_Judge = Callable[[Flow], results.Judged]

_SIZE_JUDGES: tuple[_Judge, ...] = (results.sizes, results.lengths, results.values, results.untouched)
_IMPLIED = ((results.SHAPE, results.BATCH), (results.EQUAL_TO, results.AT_MOST))
"""Beginnings of objects about sizes: a result that keeps the shape of an input keeps its batch."""
_MAX_CACHED = 10_000
"""Cached judgements, of about a kilobyte each."""


class _Levels(NamedTuple):
    """The subjects of a call: for the effect of autocast, for other effects of the surroundings, for the flow of
    gradients, and for everything that torch settles for its own functions."""

    cast: tuple[Subject, ...]
    own: tuple[Subject, ...]
    general: tuple[Subject, ...]
    foreign: tuple[Subject, ...]


class _Group(NamedTuple):
    """Properties that are judged together, in one context (without the stage)."""

    subjects: tuple[Subject, ...]
    context: Facts
    held: frozenset[Property]
    failed: frozenset[Property]


class APIOutput:
    """See the module."""

    name: ClassVar[str] = "APIOutput"

    def __init__(self, interest: Set[Subject] | None = None) -> None:
        self._interest = interest
        self._levels: dict[tuple[str, tuple[str, ...]], _Levels | None] = {}
        self._cache: BoundedCache[tuple[object, ...], tuple[tuple[_Group, ...], Facts]] = BoundedCache(
            _MAX_CACHED
        )  # with the context
        self._expectations = CallKinds(interest)
        self._grains = None if interest is None else {subject.grain for subject in interest}

    def occasions(self, window: Window) -> Iterator[Occasion]:
        if not window.calls:
            return
        if self._grains is None or GRAIN in self._grains:
            yield from self._of_calls(window)
        if self._grains is None or CallKinds.grain in self._grains:
            for occasion in self._expectations.occasions(window):
                if self._interest is None or occasion.subject in self._interest:
                    yield occasion

    def _of_calls(self, window: Window) -> Iterator[Occasion]:
        containers: set[int] | None = None
        for call, levels in self._requested_calls(window):
            if call.kind == FUNCTION and value_of(call.context, "autocast") == "off":
                continue
            contains = False
            if call.kind == MODULE and levels.cast != levels.foreign and value_of(call.context, "autocast") != "off":
                containers = _containers(window) if containers is None else containers
                contains = call.seq in containers
            for group in self._groups(call, levels, window.stage, contains=contains):
                context = context_of(group.context, window.stage)
                for subject in group.subjects:
                    yield Occasion(subject, context, group.held, group.failed, call.seq)
            if call.kind == PROJECT and window.stage == SETUP:
                for group in _group(levels.foreign, call.context, Flow.of(call), results.filled):
                    context = context_of(group.context, window.stage)
                    for subject in group.subjects:
                        yield Occasion(subject, context, group.held, group.failed, call.seq, _parameters(call))

    def _requested_calls(self, window: Window) -> list[tuple[Call, _Levels]]:
        """The calls with requested subjects, in order."""
        matches = [
            (call, subjects)
            for (kind, levels), calls in window.calls_like.items()
            if (subjects := self._levels_of(kind, levels)) is not None
            for call in calls
        ]
        matches.sort(key=itemgetter(0))  # by `seq`
        return matches

    def _levels_of(self, kind: str, levels: tuple[str, ...]) -> _Levels | None:
        """The subjects of a call, None if none of them is requested."""
        key = (kind, levels)
        if key not in self._levels:
            # No type or size can be expected of modules in general, and reading all their values would be slow.
            own = levels[:-1] if kind == MODULE else levels
            foreign = () if kind == FUNCTION else [level for level in own if not level.startswith("torch.")]
            subjects = _Levels(*(self._requested_subjects(some) for some in (own, own, levels, foreign)))
            self._levels[key] = subjects if any(subjects) else None
        return self._levels[key]

    def _requested_subjects(self, levels: Sequence[str]) -> tuple[Subject, ...]:
        subjects = (Subject(level, GRAIN) for level in levels)
        return tuple(subject for subject in subjects if self._interest is None or subject in self._interest)

    def _groups(self, call: Call, levels: _Levels, stage: str, *, contains: bool) -> tuple[_Group, ...]:
        """The judgements on the call. Equal calls share them, unless they recorded values."""
        varying = varies(call)
        if not varying:
            context = context_of(call.context, stage)  # equal ones are one object, and kept with what rests on them
            kinds = tuple([type(value) for _, value in call.args])  # 1 and True are equal, and here they are not
            key = (contains, call.kind, call.levels, id(context), call.args, kinds, call.result, call.tensors)
            cached = self._cache.get(key)
            if cached is not None:
                return cached[0]
        groups = tuple(_judge(call, levels._replace(cast=levels.foreign) if contains else levels))
        return groups if varying else self._cache.put(key, (groups, context))[0]

    @staticmethod
    def needs(subject: Subject, prop: Property) -> Demand:
        if subject.grain == CallKinds.grain:
            return CallKinds.needs(subject, prop)
        data_kinds: set[ValueKind] = {ARGUMENTS, TENSORS}
        if prop.verb == LEAVES_ARGUMENT:
            data_kinds.add(CONTENTS)
        elif prop.verb == RETURNS and prop.object == results.ROWS.object:
            data_kinds.add(ROWS)
        elif prop.verb == LEAVES_NORM or (prop.verb == RETURNS and prop != results.REQUIRES_GRAD):
            data_kinds.add(NUMBERS)
        apis = {subject.api}
        if subject.api == WAIT:
            apis |= STARTERS
            return Demand.of_calls(*apis, values=data_kinds)
        demand = Demand.of_calls(subject.api, values=data_kinds)
        if prop.object == results.OF_AUTOCAST and subject.api.endswith(".forward"):
            demand |= Demand.of_calls(FORWARD)  # to know which modules contain others
        return demand

    @staticmethod
    def is_optional_practice(prop: Property) -> bool:
        return False

    @staticmethod
    def is_setting(prop: Property) -> bool:
        return False

    @staticmethod
    def argument_of(subject: Subject, prop: Property) -> tuple[str, str] | None:
        if subject.grain == CallKinds.grain:
            return CallKinds.argument_of(subject)
        if prop.verb in (RETURNS_LENGTH, RETURNS_WIDTH, RETURNS_MORE):
            return subject.api, prop.object.removeprefix(results.AT_MOST).removeprefix(results.EQUAL_TO)
        return None

    @staticmethod
    def implied(prop: Property) -> Iterable[Property]:
        for stronger, weaker in _IMPLIED:
            if prop.object.startswith(stronger):
                yield prop._replace(object=weaker + prop.object.removeprefix(stronger))

    @staticmethod
    def describe(subject: Subject, prop: Property) -> str:
        if subject.grain == CallKinds.grain:
            return CallKinds.describe(subject, prop)
        api = short(subject.api)
        of = f" ({prop.detail})" if prop.detail else ""
        if prop.verb == LEAVES_ARGUMENT and subject.api == WAIT:
            return "what is sent stays as it was until the end of its sending is waited for"
        if prop.verb == LEAVES_ARGUMENT and prop.detail == results.CHANGED:
            return f"during set-up, {api} changes the {prop.object} that it is given"
        if prop.verb == LEAVES_ARGUMENT:
            return f"{api} leaves its argument {prop.object} as it was"
        if prop == results.SCALED_ALIKE:
            return f"{api} scales all gradients of an optimizer by the same factor"
        if prop.verb == LEAVES_NORM:
            return f"{api} leaves gradients with a norm of max_norm at most"
        if prop.verb == RETURNS_DTYPE:
            if prop.object in results.WHOLE:
                return f"{api} returns a tensor{of} of {prop.object}"
            return f"{api} returns a tensor{of} with the dtype {prop.object}"
        if prop.verb == RETURNS_SIZE:
            if prop.object.startswith(results.LENGTH):
                return f"{api} returns an entry{of} for each in {prop.object.removeprefix(results.LENGTH)}"
            return f"{api} returns a tensor{of} with the {prop.object}"
        if prop.verb == RETURNS:
            phrases = {
                results.FINITE.object: "what is finite, if all that goes in is",
                results.REQUIRES_GRAD.object: "what gradients flow through, if they flow through what goes in",
                results.UNIT.object: f"a tensor{of} of about unit scale",
            }
            return f"{api} returns {phrases.get(prop.object, f'{prop.object}{of}')}"
        noun = {RETURNS_LENGTH: "something", RETURNS_WIDTH: "a tensor"}.get(prop.verb)
        if noun is None:
            return f"{api} returns a sequence{of} that is longer than what goes in by {prop.object}"
        measure = "rows of length" if prop.verb == RETURNS_WIDTH else "a length"
        return f"{api} returns {noun}{of} with {measure} {prop.object}"


def _parameters(call: Call) -> tuple[str, ...]:
    """The variables among the arguments of a call."""
    return tuple(tensor.storage for tensor in call.tensors if tensor.storage and not tensor.storage.startswith("~"))


def _containers(window: Window) -> set[int]:
    """The calls of modules that contain other modules, or may do so in parts that were not observed."""
    containers: set[int] = set(window.hidden)
    for call in window.calls:
        if call.kind == MODULE:
            containers.update(around.seq for around in window.ancestors(call) if around.kind == MODULE)
    return containers


def _is_inside_a_module(call: Call) -> bool:
    if call.kind == MODULE:
        return value_of(call.context, "outermost") is not True
    return value_of(call.context, "training") is not None


def _judge(call: Call, levels: _Levels) -> Iterator[_Group]:
    """Yield every judgement on the result of the call."""
    flow = Flow.of(call)
    if levels.cast:
        # The property itself is about the type of autocast, so that type cannot explain it.
        without = tuple(pair for pair in call.context if pair[0] != "autocast")
        yield from _group(levels.cast, without, flow, results.under_autocast)
    if call.kind == FUNCTION:
        return
    yield from _group(levels.general, call.context, flow, results.requires_grad)
    if not _is_inside_a_module(call):  # inside, infinite values may mask entries
        yield from _group(levels.own, call.context, flow, results.finite)
    if call.kind == LIFECYCLE:
        yield from _group(levels.own, call.context, flow, results.on_its_way)
        # Programs clip with gradients switched on or off.
        without = tuple(pair for pair in call.context if pair[0] != "grad_mode")
        yield from _group(levels.own, without, flow, results.norms)
    if levels.foreign:
        context = merged(call.context, inputs_dtype=results.promoted(flow.arguments) or "none")
        yield from _group(levels.foreign, context, flow, results.dtypes)
        yield from _group(levels.foreign, call.context, flow, *_SIZE_JUDGES)


def _group(subjects: tuple[Subject, ...], context: Facts, flow: Flow, *judges: _Judge) -> Iterator[_Group]:
    if not subjects:
        return
    held: set[Property] = set()
    failed: set[Property] = set()
    for judge in judges:
        for prop, holds in judge(flow):
            (held if holds else failed).add(prop)
    if held or failed:
        yield _Group(subjects, context, frozenset(held - failed), frozenset(failed))
