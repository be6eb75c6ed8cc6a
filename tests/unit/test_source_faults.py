"""A fault in any callback of a source is reported once, and the program computes the same results.

`traincheck.testing.faults` collects the callbacks while a program runs, so the test covers new callbacks at once.
"""

from __future__ import annotations

import gc
import itertools
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack

import pytest
import torch
from torch.nn.modules import module as nn_module
from torch.optim import optimizer as optim_module

import all_callbacks
from all_callbacks import PARTS, Results, same
from observed_process import Seen, observing
from traincheck.sources.recording import sampling_gate
from traincheck.testing import faults
from traincheck.testing.faults import Callback
from traincheck.testing.leftovers import differences, process_state
from traincheck.vocab.events import PROJECT, Window

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a loader that failed

_CLIPPING = "traincheck.sources.gradients.clipping.ClippingSource"
NEEDS_RANKS = (
    "traincheck.sources.distributed.async_messages.AsyncMessages.attach.<locals>.<lambda>",
    f"{_CLIPPING}._measured.<locals>.<lambda>",
    f"{_CLIPPING}._measure_shards.<locals>.imported",
    f"{_CLIPPING}._observe_zero",
)
"""Callbacks around the end of a message to another rank, which this program does not send, around clipping of gradients
that are divided over ranks, and for DeepSpeed and Megatron."""

Part = Callable[[Results], None]


def watched(step: int) -> bool:
    """All steps but few, so that the program reaches the callbacks around a gap, and in a long one."""
    return step != 2 and step not in LONG_GAP


def quiet(first: int, most: int) -> int:
    """How many steps from `first` on are not watched."""
    return min(most, LONG_GAP.stop - first) if first in LONG_GAP else 0


LONG_GAP = range(20, 32)


def results_of(part: Part) -> Results:
    torch.manual_seed(0)
    results: Results = []
    part(results)
    return [*results, torch.rand(1)]


@pytest.fixture(scope="module")
def expected() -> dict[Part, Results]:
    """The results of each part of the program without TrainCheck."""
    for part in PARTS:
        results_of(part)  # torch initializes itself once
    return {part: results_of(part) for part in PARTS}


@pytest.fixture(scope="module", autouse=True)
def _program_in_a_file() -> Iterator[None]:
    """A program is no notebook. (Workers of pytest-xdist have a main module without a file.) Its steps are short,
    however slow the machine is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampling_gate, "LONGEST", 1e3)
        patch.setattr(sampling_gate, "LONGEST_STEP", 1e3)
        patch.setattr(sys.modules["__main__"], "__file__", __file__, raising=False)
        yield


@pytest.fixture(scope="module")
def callbacks(expected: dict[Part, Results]) -> dict[Callback, list[tuple[Part, int]]]:
    """The callbacks, each with the parts of the program that call it, quickest first, and the number of calls."""
    parts_of: dict[Callback, list[tuple[Part, int]]] = {}
    took: dict[Part, float] = {}
    for part in PARTS:
        with faults.watching() as called, observing(watches=watched, quiet_steps=quiet) as seen:
            start = time.thread_time()
            assert same(results_of(part), expected[part])
            took[part] = time.thread_time() - start
        assert seen.faults == []
        for callback, times in called.items():
            parts_of.setdefault(callback, [])
            if times:
                parts_of[callback].append((part, times))
    return {
        callback: sorted(parts, key=lambda entry: (entry[1] < 4, took[entry[0]]))
        for callback, parts in parts_of.items()
    }


def test_the_program_calls_every_callback(callbacks: dict[Callback, list[tuple[Part, int]]]) -> None:
    # Another test may have imported JAX: its callbacks are those of test_jax_updates.py.
    missed = [callback for callback, parts in callbacks.items() if not parts and callback.source != "jax"]
    assert [callback for callback in missed if not callback.function.startswith(NEEDS_RANKS)] == []
    assert len(callbacks) > 80


Errors = Sequence[tuple[type[Exception], int]]
ONCE: Errors = [(LookupError, 0)]
LATER: Errors = [(MemoryError, 1), (RecursionError, 2)]
"""The errors to raise, in turns, each with the number of calls that succeed before it."""


@pytest.mark.parametrize(
    "errors",
    [pytest.param(ONCE, marks=pytest.mark.slow), pytest.param(LATER, marks=[pytest.mark.slow, pytest.mark.long])],
    ids=["once", "later"],
)
def test_a_fault_is_reported_once_and_the_program_computes_the_same(
    errors: Errors, callbacks: dict[Callback, list[tuple[Part, int]]], expected: dict[Part, Results]
) -> None:
    before = settled()
    planned = {
        callback: [(part, error, min(after, times - 1)) for part, times in parts]
        for (callback, parts), (error, after) in zip(callbacks.items(), itertools.cycle(errors))
    }
    wrong, failed = [], set()
    for part, together in groups(planned):
        failed |= {callback for callback, count in attempt(part, together, expected[part], wrong).items() if count}
    # Some are called no more once another source has failed, so each of them fails alone.
    for callback in [callback for callback in planned if callback not in failed]:
        for part, error, after in planned[callback]:
            if attempt(part, {callback: (error, after)}, expected[part], wrong)[callback]:
                break
        else:
            assert not planned[callback] or "ProjectFunctionSource" in callback.function, f"{callback} was not called"
    assert wrong == []
    assert differences(before, settled()) == {}


Faults = dict[Callback, tuple[type[Exception], int]]
"""The callbacks that fail, each with its error and the number of calls that succeed before it."""


def groups(planned: dict[Callback, list[tuple[Part, type[Exception], int]]]) -> Iterator[tuple[Part, Faults]]:
    """The callbacks that fail in one run of a part: one of each source, since a source ends with its first fault."""
    waiting: dict[Part, dict[str, Faults]] = {}
    for callback, plans in planned.items():
        for part, error, after in plans[:1]:
            waiting.setdefault(part, {}).setdefault(callback.source, {})[callback] = (error, after)
    for part, sources in waiting.items():
        for rows in itertools.zip_longest(*(faults_of.items() for faults_of in sources.values())):
            yield part, dict(row for row in rows if row is not None)


def attempt(part: Part, failing: Faults, expected: Results, wrong: list[object]) -> dict[Callback, int]:
    """How often each callback failed in a part of the program; appends what was not as it should be to `wrong`.

    (A separate function: the errors keep the objects of their frames alive.)
    """
    with ExitStack() as stack:
        raised = {
            callback: stack.enter_context(faults.failing(callback, error, after))
            for callback, (error, after) in failing.items()
        }
        seen = stack.enter_context(observing(watches=watched, quiet_steps=quiet))
        results = results_of(part)
    reported = sorted((source, type(fault).__name__) for source, fault in seen.faults)
    counts = {callback: fault.times for callback, fault in raised.items()}
    due = sorted((callback.source, failing[callback][0].__name__) for callback, count in counts.items() if count)
    if not (same(results, expected) and reported == due and max(counts.values()) < 2):
        wrong.append((counts, reported, list(all_callbacks.differing(results, expected))))
    return counts


def settled() -> dict[str, object]:
    """The state of the process after the program's threads have ended, without the parts that the program changes.

    (The program draws random numbers, torch.distributed sets a hook for errors, and the compiler writes functions.)
    """
    gc.collect()
    for thread in threading.enumerate():
        if thread.name == "QueueFeederThread":
            thread.join(5)
    changed_by_program = ("random", "hooks", "torch.optim.optimizer:__resume_at")
    return {name: value for name, value in process_state().items() if not name.startswith(changed_by_program)}


Depths = dict[tuple[str, str], int]


def depths(windows: Iterable[Window]) -> Depths:
    """The largest number of calls around a call of torch, by its name and receiver."""
    deepest: Depths = {}
    for window in windows:
        for call in window.calls:
            if call.kind != PROJECT:
                key = (call.name, re.sub(r"#\d+", "", call.receiver))
                depth = sum(ancestor.kind != PROJECT for ancestor in window.ancestors(call))
                deepest[key] = max(depth, deepest.get(key, 0))
    return deepest


@pytest.mark.long
@pytest.mark.slow
def test_an_interrupt_in_a_callback_reaches_the_program(
    callbacks: dict[Callback, list[tuple[Part, int]]], expected: dict[Part, Results], monkeypatch: pytest.MonkeyPatch
) -> None:
    ignored: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: ignored.append(unraisable.exc_type))
    plain: dict[Part, Depths] = {}
    for part in PARTS:
        with observing(watches=watched, quiet_steps=quiet) as seen:
            results_of(part)
        plain[part] = depths(seen.windows)
    before = settled()
    wrong = []
    for callback, parts in callbacks.items():
        for part, times in parts[:1]:
            ignored.clear()
            interrupted, again, reported, later = interrupt(callback, part, min(1, times - 1))
            # Python ignores an interrupt in a finalizer.
            fine = (interrupted or KeyboardInterrupt in ignored) and reported == []
            fine = fine and (again is None or same(again, expected[part]))
            deeper = [key for key, depth in later.items() if depth > plain[part].get(key, 0)]
            if not fine or deeper:
                wrong.append((callback, interrupted, reported, deeper[:3]))
    assert wrong == []
    assert differences(before, settled()) == {}


def interrupt(callback: Callback, part: Part, after: int) -> tuple[bool, Results | None, list[str], Depths]:
    """Return whether an interrupt reached the program, its results if it continued, faults, and call depths."""
    interrupted, again, seen, after_it = False, None, Seen(), 0
    with faults.failing(callback, KeyboardInterrupt, after) as fault:
        try:
            with observing(watches=watched, quiet_steps=quiet) as seen:
                try:
                    results_of(part)
                except KeyboardInterrupt:
                    interrupted = fault.over = True
                    after_it = len(seen.windows) + 1
                    again = results_of(part)
        except KeyboardInterrupt:
            interrupted = True
    return interrupted, again, [source for source, _ in seen.faults], depths(seen.windows[after_it:])


def test_every_hook_is_guarded() -> None:
    """All but a few hooks that cannot raise: torch calls hooks from inside the program."""

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
    of_optimizers = {f"OptimizerSource.attach.<locals>.{name}" for name in ("before_step", "after_step")}
    assert bare == {*of_optimizers, "ModuleCalls._before", "ModuleCalls._after"}
