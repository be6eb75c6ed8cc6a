"""Whatever callback of a source fails, and however: it is told once, and the program computes what it does without us.

The callbacks are found by watching the program (see traincheck.testing.faults), so that a new one is tried by itself.
"""

from __future__ import annotations

import gc
import itertools
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence

import pytest
import torch
from torch.nn.modules import module as nn_module
from torch.optim import optimizer as optim_module

import all_callbacks
from all_callbacks import PARTS, Results, same
from observed_process import Seen, observing
from traincheck.testing import faults
from traincheck.testing.faults import Place
from traincheck.testing.leftovers import differences, process_state
from traincheck.vocab.events import PROJECT, Window

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a loader that failed

NEEDS_RANKS = ("traincheck.sources.distributed.async_messages.AsyncMessages.attach.<locals>.<lambda>",)
"""Callbacks around the end of a message to another rank: there is none here."""

Part = Callable[[Results], None]


def watched(step: int) -> bool:
    """Which steps are: some are not, so that what is done around a gap is come to."""
    return step != 2


def told_by(part: Part) -> Results:
    torch.manual_seed(0)
    told: Results = []
    part(told)
    return [*told, torch.rand(1)]


@pytest.fixture(scope="module")
def expected() -> dict[Part, Results]:
    """What each part of the program computes without us."""
    for part in PARTS:
        told_by(part)  # what torch does only once
    return {part: told_by(part) for part in PARTS}


@pytest.fixture(scope="module")
def places(expected: dict[Part, Results]) -> dict[Place, list[tuple[Part, int]]]:
    """The callbacks, each with the parts of the program that come through it, quickest first, and how many times."""
    found: dict[Place, list[tuple[Part, int]]] = {}
    took: dict[Part, float] = {}
    for part in PARTS:
        with faults.watching() as seen_places, observing(watches=watched) as seen:
            began = time.thread_time()
            assert same(told_by(part), expected[part])
            took[part] = time.thread_time() - began
        assert seen.faults == []
        for place, times in seen_places.items():
            found.setdefault(place, [])
            if times:
                found[place].append((part, times))
    return {place: sorted(parts, key=lambda one: (one[1] < 4, took[one[0]])) for place, parts in found.items()}


def test_the_program_comes_through_every_callback(places: dict[Place, list[tuple[Part, int]]]) -> None:
    missed = [place for place, parts in places.items() if not parts]
    assert [place for place in missed if not place.function.startswith(NEEDS_RANKS)] == []
    assert len(places) > 80


Errors = Sequence[tuple[type[Exception], int]]
ONCE: Errors = [(LookupError, 0)]
LATER: Errors = [(MemoryError, 1), (RecursionError, 2)]
"""What is raised, in turns, and after how many calls that went well."""


@pytest.mark.parametrize(
    "errors",
    [pytest.param(ONCE, marks=pytest.mark.slow), pytest.param(LATER, marks=[pytest.mark.slow, pytest.mark.long])],
    ids=["once", "later"],
)
def test_a_fault_is_told_once_and_the_program_computes_the_same(
    errors: Errors, places: dict[Place, list[tuple[Part, int]]], expected: dict[Part, Results]
) -> None:
    before = settled()
    wrong = []
    for (place, parts), (error, after) in zip(places.items(), itertools.cycle(errors)):
        for part, times in parts:
            told, faulty, count = attempt(place, part, error, min(after, times - 1))
            if not (same(told, expected[part]) and faulty == [(place.source, error)][:count] and count < 2):
                wrong.append((place, faulty, count, list(all_callbacks.differing(told, expected[part]))))
            if count:
                break
        else:
            assert not parts or "ProjectFunctionSource" in place.function, f"{place} was not come to"
    assert wrong == []
    assert differences(before, settled()) == {}


def attempt(place: Place, part: Part, error: type[Exception], after: int) -> tuple[Results, list[object], int]:
    """What a part of the program told while a callback failed, the faults that were told, and how often it failed.

    (A function of its own: the errors hold on to all that was there when they were raised.)
    """
    with faults.failing(place, error, after) as fault, observing(watches=watched) as seen:
        told = told_by(part)
    return told, [(source, type(found)) for source, found in seen.faults], fault.times


def settled() -> dict[str, object]:
    """The state of the process when what the program itself has started is over, without what it changes itself.

    (It draws random numbers, torch.distributed sets a hook for errors, and its compiler writes functions.)
    """
    gc.collect()
    for thread in threading.enumerate():
        if thread.name == "QueueFeederThread":
            thread.join(5)
    its_own = ("random", "hooks", "torch.optim.optimizer:__resume_at")
    return {name: value for name, value in process_state().items() if not name.startswith(its_own)}


Depths = dict[tuple[str, str], int]


def depths(windows: Iterable[Window]) -> Depths:
    """By the name and receiver of a call of torch's: in how many others it lies at the most."""
    found: Depths = {}
    for window in windows:
        for call in window.calls:
            if call.kind != PROJECT:
                key = (call.name, re.sub(r"#\d+", "", call.receiver))
                depth = sum(one.kind != PROJECT for one in window.ancestors(call))
                found[key] = max(depth, found.get(key, 0))
    return found


@pytest.mark.long
@pytest.mark.slow
def test_an_interrupt_in_our_midst_is_the_programs_and_it_may_go_on(
    places: dict[Place, list[tuple[Part, int]]], expected: dict[Part, Results], monkeypatch: pytest.MonkeyPatch
) -> None:
    ignored: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda found: ignored.append(found.exc_type))
    plain: dict[Part, Depths] = {}
    for part in PARTS:
        with observing(watches=watched) as seen:
            told_by(part)
        plain[part] = depths(seen.windows)
    before = settled()
    wrong = []
    for place, parts in places.items():
        for part, times in parts[:1]:
            ignored.clear()
            interrupted, again, told_faults, found = interrupt(place, part, min(1, times - 1))
            # Python tells nobody of an interrupt in the end of an object.
            fine = (interrupted or KeyboardInterrupt in ignored) and told_faults == []
            fine = fine and (again is None or same(again, expected[part]))
            deeper = [key for key, depth in found.items() if depth > plain[part].get(key, -1)]
            if not fine or deeper:
                wrong.append((place, interrupted, told_faults, deeper[:3]))
    assert wrong == []
    assert differences(before, settled()) == {}


def interrupt(place: Place, part: Part, after: int) -> tuple[bool, Results | None, list[str], Depths]:
    """Whether an interrupt came to the program, what it told when it went on, faults, and how deep its calls lie."""
    interrupted, again, seen, after_it = False, None, Seen(), 0
    with faults.failing(place, KeyboardInterrupt, after) as fault:
        try:
            with observing(watches=watched) as seen:
                try:
                    told_by(part)
                except KeyboardInterrupt:
                    interrupted = fault.over = True
                    after_it = len(seen.windows) + 1
                    again = told_by(part)
        except KeyboardInterrupt:
            interrupted = True
    return interrupted, again, [source for source, _ in seen.faults], depths(seen.windows[after_it:])


def test_every_hook_of_ours_is_guarded() -> None:
    """Or one of the few that are made to raise nothing; torch calls them all from the midst of the program."""

    def hooks() -> dict[tuple[str, int], Callable[..., object]]:
        return {
            (name, key): hook
            for module in (nn_module, optim_module)
            for name, registered in vars(module).items()
            if name.startswith("_global_") and isinstance(registered, dict)
            for key, hook in registered.items()
            if callable(hook)
        }

    before = hooks()
    with observing():
        during = hooks()
    ours = [hook for key, hook in during.items() if key not in before]
    assert len(ours) > 8
    bare = {hook.__qualname__ for hook in ours if hook.__code__.co_name != "safe"}
    assert bare == {"OptimizerSource.attach.<locals>.before_step", "ModuleCalls._before", "ModuleCalls._after"}
