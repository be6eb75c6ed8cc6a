"""Counts training steps, and observes nothing else of them, where none of the next steps is watched.

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
from typing import Any

from traincheck.sources.compile.tracing import is_traced
from traincheck.sources.recording.step_tracker import StepTracker

LONGEST = 0.1
"""Seconds. Requests of the user, such as a stop, wait for the end of the counting."""
LONGEST_STEP = 0.02
"""Steps that take more seconds are observed as usual: their fixed cost is less than one percent."""
MOST = 4096


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

    def count(self) -> None:
        """Count an update."""
        steps = self._steps
        self.windows += 1
        self.left -= 1
        steps.step += 1
        steps.updates_made += 1
        steps.forwards += 1
        steps.backwards += 1
        steps.last_steps[self._name] = steps.step
        if self.left <= 0 or self._clock() >= self._until:
            self.end()

    def end(self) -> None:
        """Report everything again from now on."""
        self.left = 0
        self._on_end()
