"""APIArg(Ia, distinct or consistent): the arguments of an API.

Source: OSDI '25, section 3.2. For one call: an argument follows the mode of the module around it, or fits what the
function is for. For several calls: arguments are all equal or all distinct, over the calls of a step, over threads,
over the workers of a data loader, and over ranks.

Note [Arguments that mean something]
Most arguments are a matter of taste or of geometry (which dimension, how many), so a fixed value says nothing about
other programs. Plain arguments are judged only if they follow the mode of the module around the call, see Note
[Arguments that follow the mode] in mode_arguments.py. The values of a tensor are judged only for the prediction that
goes into a loss: a call that takes several tensors and returns one number from which gradients flow.

Note [Filled again]
Many good programs fill memory twice: a layer's constructor and the program's own initialisation do, or both names of a
tied weight. A defect is one function at one line that fills most of its memory over and over.

Note [A look at a batch]
Many programs fetch a batch to see its shape, and start the pass again when they train. If data come in a fixed order,
that batch comes twice. So a fetch is not compared if the next fetch from this loader begins another pass and no
backward lies between them. (Where each micro-step begins a pass of its own, a backward lies between them.)

Known limitations: texts and None are not compared. A flag that is left at its default is not seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from itertools import zip_longest
from operator import itemgetter
from typing import ClassVar

from traincheck.relations.api_arg.call_arguments import (
    SCALED,
    argument_data_needed,
    judge_arguments,
    without_gradients,
)
from traincheck.relations.api_arg.mode_arguments import ModeArguments
from traincheck.relations.api_arg.rank_calls import VERBS, RankCalls
from traincheck.relations.api_arg.reinitialization import Reinitialization
from traincheck.relations.api_arg.worker_seeds import WorkerSeeds
from traincheck.relations.base import context_of, short
from traincheck.relations.comparison import AT_ONCE, common, compare, data_needed, phrase_for, sampled, ways_of
from traincheck.relations.parts import BACKWARD, calls_of
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import FUNCTION, LIFECYCLE, MODULE, TRAIN, Call, Window
from traincheck.vocab.facts import value_of
from traincheck.vocab.occasion import RANKS, Occasion, Property, Subject
from traincheck.vocab.properties import (
    ARGUMENT_AGREES,
    ARGUMENT_SIZE,
    ARGUMENT_VALUES,
    COMPARES_CALLS,
    FILLS_MEMORY,
    WORKER_STATES,
)

ARGUMENT, STEP, RECEIVER, THREADS = "argument", "step", "receiver", "threads"
"""Grains: one call; the calls of a step, all or on one receiver; calls in several threads. The other grains are
declared in the files of their parts."""


class APIArg:
    """See the module."""

    name: ClassVar[str] = "APIArg"
    compares_ranks: ClassVar[bool] = True

    def __init__(self, interest: Set[Subject] | None = None) -> None:
        self._interest = interest
        self._grains = None if interest is None else {subject.grain for subject in interest}
        self._subjects: dict[tuple[str, str, tuple[str, ...]], tuple[Subject, ...]] = {}
        self._workers = WorkerSeeds()
        self._switches = ModeArguments()
        self._fills = Reinitialization()
        self._ranks = RankCalls()
        self._next_index = 0

    def occasions(self, window: Window) -> Iterator[Occasion]:
        if window.index != self._next_index:
            self._workers = WorkerSeeds()  # the mode arguments stay: a gap does not change them
        self._next_index = window.index + 1
        if not window.calls:
            return
        if self._is_grain_requested(ARGUMENT):
            yield from self._of_arguments(window)
        if self._is_grain_requested(STEP) or self._is_grain_requested(RECEIVER):
            yield from self._of_steps(window)
        if self._is_grain_requested(THREADS):
            yield from self._of_threads(window)
        for part in (self._switches, self._fills, self._workers):
            if self._is_grain_requested(part.grain):
                yield from filter(self._is_requested, part.occasions(window))

    def across(self, windows: Sequence[Window]) -> Iterator[Occasion]:
        """Yield the occasions in windows of several ranks at the same step, see rank_calls.py."""
        if self._is_grain_requested(RANKS) and len(windows) > 1:
            yield from filter(self._is_requested, self._ranks.across(windows))

    def _is_grain_requested(self, grain: str) -> bool:
        return self._grains is None or grain in self._grains

    def _is_requested(self, occasion: Occasion) -> bool:
        return self._interest is None or occasion.subject in self._interest

    def _requested_calls(self, window: Window, *grains: str) -> list[tuple[Call, tuple[Subject, ...]]]:
        """The calls with requested subjects of these grains, with the subjects, in order. Most calls have none."""
        matches = [
            (call, subjects)
            for (kind, levels), calls in window.calls_like.items()
            for grain in grains
            if (subjects := self._subjects_of(kind, levels, grain))
            for call in calls
            if grain not in _STEP_GRAINS or grain == (RECEIVER if _receiver(call) else STEP)
        ]
        matches.sort(key=itemgetter(0))  # by `seq`
        return matches

    def _subjects_of(self, kind: str, levels: tuple[str, ...], grain: str) -> tuple[Subject, ...]:
        """The requested subjects of this grain for a call; none for most calls."""
        key = (grain, kind, levels)
        subjects = self._subjects.get(key)
        if subjects is None:
            levels_to_judge = dict.fromkeys((levels[0], levels[-1])) if grain == ARGUMENT else _comparable(kind, levels)
            subjects = tuple(Subject(level, grain) for level in levels_to_judge)
            if self._interest is not None:
                subjects = tuple(subject for subject in subjects if subject in self._interest)
            self._subjects[key] = subjects
        return subjects

    # -- one call --------------------------------------------------------------------------------------------------

    def _of_arguments(self, window: Window) -> Iterator[Occasion]:
        last_backward = max((call.seq for call in calls_of(window, BACKWARD)), default=-1)
        for call, subjects in self._requested_calls(window, ARGUMENT):
            if call.args or call.tensors or call.name == BACKWARD:
                for subject in subjects:
                    for judged in judge_arguments(call, subject.api):
                        context, held, failed = judged if call.seq <= last_backward else without_gradients(judged)
                        if held or failed:
                            yield Occasion(subject, context_of(context, window.stage), held, failed, call.seq)

    # -- several calls ---------------------------------------------------------------------------------------------

    def _of_steps(self, window: Window) -> Iterator[Occasion]:
        if window.stage != TRAIN:
            return  # an evaluation may well go over the same data twice
        groups: dict[tuple[Subject, str], list[Call]] = {}
        for call, subjects in self._requested_calls(window, *_STEP_GRAINS):
            for subject in subjects:
                groups.setdefault((subject, _receiver(call)), []).append(call)
        for (subject, _), calls in groups.items():
            yield from _occasion(subject, _without_looks(calls, window), window)

    def _of_threads(self, window: Window) -> Iterator[Occasion]:
        groups: dict[Subject, dict[int, list[Call]]] = {}
        if len({call.thread for call in window.calls}) < 2:
            return
        for call, subjects in self._requested_calls(window, THREADS):
            for subject in subjects:
                groups.setdefault(subject, {}).setdefault(call.thread, []).append(call)
        for subject, by_thread in groups.items():
            for calls in zip(*by_thread.values(), strict=False):
                yield from _occasion(subject, calls, window)

    # -- rules -----------------------------------------------------------------------------------------------------

    @staticmethod
    def needs(subject: Subject, prop: Property) -> Demand:
        if prop.verb == WORKER_STATES:
            return WorkerSeeds.needs(prop)
        if prop.verb == FILLS_MEMORY:
            return Reinitialization.needs()
        if prop.verb in VERBS:
            return RankCalls.needs(subject, prop)
        if prop.verb == ARGUMENT_AGREES:
            return ModeArguments.needs(subject, prop)
        data_kinds = {data_needed(prop)} if prop.verb == COMPARES_CALLS else argument_data_needed(prop)
        needed = Demand.of_calls(subject.api, values=data_kinds)
        return needed | Demand.of_calls(BACKWARD) if prop.verb == ARGUMENT_SIZE else needed

    @staticmethod
    def is_optional_practice(prop: Property) -> bool:
        return False

    @staticmethod
    def is_setting(prop: Property) -> bool:
        return False

    @staticmethod
    def argument_of(subject: Subject, prop: Property) -> tuple[str, str] | None:
        return (subject.api, prop.object) if prop.verb == ARGUMENT_AGREES else None

    @staticmethod
    def implied(prop: Property) -> Iterable[Property]:
        return ()

    @staticmethod
    def describe(subject: Subject, prop: Property) -> str:
        api = short(subject.api)
        if prop.verb == WORKER_STATES:
            return WorkerSeeds.describe(prop)
        if prop.verb == FILLS_MEMORY:
            return Reinitialization.describe()
        if prop.verb in VERBS:
            return RankCalls.describe(api, prop)
        if prop.verb == ARGUMENT_AGREES:
            return ModeArguments.describe(subject, prop)
        if prop == SCALED:
            return f"the loss that {api} starts from was scaled up"
        if prop.verb == ARGUMENT_VALUES:
            return f"in the {prop.object} of {api}, {prop.detail}"
        if prop.verb == ARGUMENT_SIZE:
            return f"the {prop.object} of {api} has {prop.detail}"
        calls_phrase = {
            STEP: f"all calls of {api} in a step have",
            RECEIVER: f"all calls of {api} on one object in a step have",
            THREADS: f"calls of {api} in several threads have",
        }.get(subject.grain, f"the calls of {api} on all ranks have")
        return f"{calls_phrase} {phrase_for(prop)}"


_STEP_GRAINS = (STEP, RECEIVER)


def _receiver(call: Call) -> str:
    """The object on which calls are compared: two loaders have different batches, so calls that drive training are
    compared on one."""
    return call.receiver if call.kind == LIFECYCLE else ""


def _without_looks(calls: Sequence[Call], window: Window) -> Sequence[Call]:
    """The calls without fetches of a batch that was only looked at, see Note [A look at a batch]."""
    if not any(value_of(call.result, "first_batch") is True for call in calls[1:]):
        return calls
    backwards = [call.seq for call in window.calls if call.levels[-1] == BACKWARD]
    return [
        call
        for call, later in zip_longest(calls, calls[1:])
        if later is None
        or value_of(later.result, "first_batch") is not True
        or any(call.seq < seq < later.seq for seq in backwards)
    ]


def _comparable(kind: str, levels: tuple[str, ...]) -> tuple[str, ...]:
    """The levels at which calls are compared.

    The layers that call a function of torch decide on its arguments, and layers differ. The same holds for modules of
    torch.
    """
    if kind == FUNCTION:
        return ()
    if kind == MODULE:
        return tuple(level for level in levels if not level.startswith("torch."))
    return levels


def _occasion(subject: Subject, calls: Sequence[Call], window: Window) -> Iterator[Occasion]:
    if len(calls) > 1:
        at_once = subject.grain == THREADS
        ways = AT_ONCE if at_once else ways_of(calls[0])
        held, failed = compare(calls, ways, sampled(calls), in_a_row=not at_once)
        if held or failed:
            yield Occasion(subject, common(calls, window.stage), held, failed, calls[0].seq)
