"""Decides which windows are watched, suspends costly hooks in the others, and resets sources afterwards.

Note [Suspended between samples]
A guarded function that returns at once is cheap. Some hooks cost time by being installed: a mode makes each function of
torch several times slower, a global hook each module, a profiler each function. These hooks are suspended between
watched windows. They are resumed all together or not at all, for a window without one of them would look like a program
that makes fewer calls. A hook that cannot be suspended safely stays installed and records nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Suspendable(Protocol):
    """A hook that makes the program slower by being installed."""

    def suspend(self) -> None:
        """Uninstall the hook where it is installed and that is safe here."""

    def can_resume(self) -> bool:
        """Whether the hook is installed, or can be installed here."""

    def resume(self) -> None:
        """Install the hook again where it was suspended."""


class SamplingGate:
    """Suspends hooks before the steps that are not watched, and resumes hooks and resets sources after them.

    The gate calls `is_sampled` once for each step, in order.
    """

    def __init__(self, is_sampled: Callable[[int], bool]) -> None:
        self._is_sampled = is_sampled
        self._suspendables: list[Suspendable] = []
        self._resets: list[Callable[[], object]] = []
        self._repeats: list[Callable[[], object]] = []  # the resets that only make a source report again
        self._step = -1
        self._watched = True

    def add_suspendable(self, hook: Suspendable) -> None:
        """Suspend `hook` between watched windows, until `remove_suspendable`."""
        self._suspendables.append(hook)

    def remove_suspendable(self, hook: Suspendable) -> None:
        """Leave `hook` alone from now on."""
        self._suspendables.remove(hook)

    def add_reset(self, reset: Callable[[], object], *, repeatable: bool) -> None:
        """Call `reset` before the first watched window after a gap, until `remove_reset`; also from `repeat_reports` if
        `repeatable`."""
        self._resets.append(reset)
        if repeatable:
            self._repeats.append(reset)

    def remove_reset(self, reset: Callable[[], object]) -> None:
        """Do not call `reset` any more."""
        self._resets.remove(reset)
        if reset in self._repeats:
            self._repeats.remove(reset)

    def is_watched(self, step: int) -> bool:
        """Whether `step`, and the activity right before it, is watched."""
        if step != self._step:
            self._step, self._watched = step, self._is_sampled(step)
        return self._watched

    def reset_sources(self) -> None:
        """Make all sources forget the state that they follow from window to window."""
        for reset in self._resets:
            reset()

    def repeat_reports(self) -> None:
        """Make all sources report again the values that they report once, or on a change."""
        for repeat in self._repeats:
            repeat()

    def suspend(self) -> None:
        """Suspend all hooks that allow it."""
        for hook in self._suspendables:
            hook.suspend()

    def resume(self) -> bool:
        """Resume all hooks; where one cannot be resumed here, none is, and the result is False."""
        if not all(hook.can_resume() for hook in self._suspendables):
            return False
        for hook in self._suspendables:
            hook.resume()
        return True
