"""Decides which windows are watched, suspends costly hooks in the others, and resets sources afterwards.

Note [Suspended between samples]
A guarded function that returns at once is cheap. Some hooks cost time by being installed: a mode makes each function of
torch several times slower, a global hook each module, a profiler each function. These hooks are suspended between
watched windows. They are resumed all together or not at all, for a window without one of them would look like a program
that makes fewer calls. A hook that cannot be suspended safely stays installed and records nothing.

Note [Counted steps]
An unwatched step costs a tenth of a millisecond even though nothing is recorded: a fetch, a call of the model, a
backward and an update are reported, and the window is closed. That is a tenth of a step of a small model. Where steps
are short, TrainCheck therefore counts only updates, for at most `LONGEST` seconds in a row.

* After each counted update, the tracker has the state that it has after any update, as if nothing had happened since.
  So every report is right at any time, and ends the counting if it closes a window.
* Only one optimizer may be in use, and only code of torch may run in its update. Then each update is a step.
* The steps that are counted, and the step after them, are known not to be watched or to begin afterwards: the first
  activity after the last counted update is reported.
* A loader that begins or ends an epoch ends the counting. So an evaluation after an epoch is seen as it is otherwise.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any, Protocol

from traincheck.sources.compile.tracing import is_traced
from traincheck.sources.recording.step_tracker import StepTracker

PASS_ENDS, EVALUATION_MODE = "a pass over data ends", "a model enters evaluation mode"
WITHOUT_GRADIENTS = "a model is called without gradients"
STATE_DICT, FILE = "a state dict is made or loaded", "a file is written"
"""The kinds of rare events, see `Recorder.rare_event`."""

LONGEST = 0.1
"""Seconds. Requests of the user, such as a stop, wait for the end of the counting."""
LONGEST_STEP = 0.02
"""Steps that take more seconds are observed as usual: their fixed cost is less than one percent."""
MOST = 4096


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

    The gate calls `is_sampled` once for each step, in order; and again after `ask_again`.
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

    def ask_again(self) -> None:
        """Call `is_sampled` again for the step that comes next: the answer may have changed."""
        self._step = -1

    def reset_sources(self) -> None:
        """Make all sources forget the state that they follow from window to window."""
        for reset in list(self._resets):  # one that fails ends its source, which removes it
            reset()

    def repeat_reports(self) -> None:
        """Make all sources report again the values that they report once, or on a change."""
        for repeat in list(self._repeats):
            repeat()

    def suspend(self) -> None:
        """Suspend all hooks that allow it."""
        for hook in list(self._suspendables):
            hook.suspend()

    def resume(self) -> bool:
        """Resume all hooks; where one cannot be resumed here, none is, and the result is False."""
        if not all(hook.can_resume() for hook in self._suspendables):
            return False
        for hook in list(self._suspendables):
            hook.resume()
        return True


class CountedSteps:
    """Counts updates of one optimizer. `quiet_steps` says how many steps from a step on are not watched (at most so
    many); without it, no step is counted. `on_end` is called when the counting ends."""

    def __init__(
        self,
        steps: StepTracker,
        clock: Callable[[], float],
        quiet_steps: Callable[[int, int], int] | None,
        on_end: Callable[[], None],
    ) -> None:
        self.left = 0
        """Updates that may be counted now; the sources report nothing while it is positive."""
        self.windows = 0
        """Counted windows that no lap includes yet."""
        self._steps = steps
        self._clock = clock
        self._quiet_steps = quiet_steps
        self._on_end = on_end
        self.optimizer: Callable[[], Any] = lambda: None
        """A weak reference to the optimizer whose updates are counted now."""
        self._name = ""
        self._until = 0.0

    def begin(self, optimizer: Any, name: str, step_seconds: float) -> None:
        """Count the next updates of `optimizer`, if possible. Call at the end of an update in an unwatched window."""
        if self._quiet_steps is None or step_seconds > LONGEST_STEP or not self._steps.has_only(name):
            return
        most = min(MOST, int(LONGEST / max(step_seconds, 1e-5)))
        self.left = self._quiet_steps(self._steps.step + 1, most)
        if self.left:
            self.optimizer, self._name = weakref.ref(optimizer), name
            self._until = self._clock() + LONGEST

    def unless_counting(self, observed: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """A decorator that calls the plain function while steps are only counted, otherwise the `observed` one."""

        def decorate(function: Any) -> Any:
            replacement = observed(function)

            @functools.wraps(function)
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                if not is_traced() and self.left:
                    return function(*args, **kwargs)
                return replacement(*args, **kwargs)

            return wrapper

        return decorate

    def count(self) -> bool:
        """Count an update. Return whether the counting is over, so that `end` has to be called."""
        steps = self._steps
        self.windows += 1
        self.left -= 1
        steps.step += 1
        steps.updates_made += 1
        steps.forwards += 1
        steps.backwards += 1
        steps.last_steps[self._name] = steps.step
        return self.left <= 0 or self._clock() >= self._until

    def end(self) -> None:
        """Report everything again from now on."""
        self.left = 0
        self._on_end()
