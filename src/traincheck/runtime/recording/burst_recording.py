"""Closer: observes everything for some steps, after the first violation of a rule or on request.

See Note [Reattachment] in sources/attachment.py for how. It begins and ends between calls of the training thread, and
counts the steps that were recorded in full from their beginning to their end.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from traincheck.runtime.control import State
from traincheck.vocab.events import TRAIN

if TYPE_CHECKING:
    from traincheck.sources.attachment import Attachment
    from traincheck.sources.recording.recorder import Recorder

MOST_TIMES = 3
"""How often a run looks closer by itself: what is broken by then shows in the report, and full steps cost time."""

MOST_SECONDS = 120.0
"""How long it may take in all, where steps are slow; the step under way is finished."""

MOST_TRIES = 200
"""Windows in which a moment is waited for at which sources can be attached anew."""


class BurstRecorder:
    """`ask` and `violated` may be called from any thread, the others on the one that trains."""

    def __init__(
        self,
        attachment: Attachment,
        recorder: Recorder,
        state: State,
        steps: int,
        watch_all: Callable[[int], None] = lambda steps: None,
    ) -> None:
        self._attachment = attachment
        self._recorder = recorder
        self._state = state
        self._steps = steps
        self._watch_all = watch_all
        self._times = 0
        self._reported_rules: set[str] = set()
        self._lock = threading.Lock()
        self._requested_steps = 0
        self._tries = 0
        self._off_for_good = ""
        self._began = 0.0
        self._from = 0  # the place from which on everything is observed
        self._start = 0  # where the open window begins
        self._left = 0
        self._over = False

    def violated(self, rules: tuple[str, ...]) -> None:
        """A finding of severity error was made, of these rules."""
        self._recorder.raise_suspicion()
        with self._lock:
            first = not self._reported_rules.intersection(rules)
            self._reported_rules.update(rules)
            if not self._steps or not first or self._times >= MOST_TIMES:
                return
            self._times += 1
        self.ask(self._steps)

    @property
    def is_recording(self) -> bool:
        """Whether everything is observed at this moment."""
        return self._attachment.records_everything

    def ask(self, steps: int) -> str:
        """Look closer for so many steps; why that cannot be done."""
        if self._off_for_good:
            return self._off_for_good
        self._requested_steps = max(self._requested_steps, steps)
        self._watch_all(steps + 1)
        return ""

    def at_rest(self) -> None:
        """The training is between two calls: begin or end, where that is due."""
        closer = self._attachment.records_everything
        if not self._recorder.watching:
            return
        if closer and self._over:
            self._attach(closer=False)
        elif self._requested_steps and not closer and not self._off_for_good:
            self._attach(closer=True)

    def at_border(self, step: int, stage: str) -> None:
        """A window of this step has ended."""
        start, self._start = self._start, self._recorder.window_start
        if not self._attachment.records_everything:
            self._tries += bool(self._requested_steps)
            if self._tries > MOST_TRIES:
                self._decline("no moment was found at which all could be observed")
            return
        if start < self._from or stage != TRAIN or self._over:
            return
        full = self._state.full
        if full and full[-1][1] in (step, step - 1):
            full[-1] = (full[-1][0], step)
        else:
            full.append((step, step))
        self._left -= 1
        self._over = self._left <= 0 or time.monotonic() - self._began > MOST_SECONDS

    def _attach(self, *, closer: bool) -> None:
        from traincheck.sources.attachment import CannotReattach

        try:
            self._attachment.record_everything(closer)
        except CannotReattach as hindrance:
            if hindrance.permanent:
                self._decline(str(hindrance))
            return
        self._tries = 0
        if closer:
            self._from, self._left, self._over = self._recorder.next_seq(), self._requested_steps, False
            self._began, self._requested_steps = time.monotonic(), 0

    def _decline(self, reason: str) -> None:
        self._requested_steps = self._tries = 0
        self._off_for_good = f"it was not looked closer: {reason}"
        self._state.decline(self._off_for_good)
