"""Records every API call for a few steps, after the first violation of a rule or on request.

Note [Reattachment] in sources/attachment.py explains the mechanism. A burst begins and ends between two calls of the
training thread. The recorder counts the steps that were recorded in full.
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

MAX_TIMES = 3
"""Automatic bursts per run. Later errors appear in the report anyway, and full recording costs time."""

MAX_SECONDS = 120.0
"""Total seconds of all bursts, for programs with slow steps. The recorder finishes the current step."""

MAX_TRIES = 200
"""Windows to wait for a moment at which the sources can be attached again."""


class BurstRecorder:
    """Starts and ends bursts of full recording.

    You may call `ask` and `violated` from any thread, and the other methods only on the training thread.
    """

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
        self._from = 0  # the first event that is recorded in full
        self._start = 0  # the first event of the current window
        self._left = 0
        self._over = False

    def violated(self, rules: tuple[str, ...]) -> None:
        """React to a finding of severity error about these rules."""
        self._recorder.raise_suspicion()
        with self._lock:
            first = not self._reported_rules.intersection(rules)
            self._reported_rules.update(rules)
            if not self._steps or not first or self._times >= MAX_TIMES:
                return
            self._times += 1
        self.ask(self._steps)

    @property
    def is_recording(self) -> bool:
        """Whether a burst is active."""
        return self._attachment.records_everything

    def ask(self, steps: int) -> str:
        """Request a burst of `steps` steps. Returns the reason for a refusal, or an empty string."""
        if self._off_for_good:
            return self._off_for_good
        self._requested_steps = max(self._requested_steps, steps)
        self._watch_all(steps + 1)
        return ""

    def at_rest(self) -> None:
        """Begin or end a burst if necessary. Called between two calls of the training thread."""
        closer = self._attachment.records_everything
        if not self._recorder.watching:
            return
        if closer and self._over:
            self._attach(closer=False)
        elif self._requested_steps and not closer and not self._off_for_good:
            self._attach(closer=True)

    def at_border(self, step: int, stage: str) -> None:
        """Count a window that has ended, of this step and stage."""
        start, self._start = self._start, self._recorder.window_start
        if not self._attachment.records_everything:
            self._tries += bool(self._requested_steps)
            if self._tries > MAX_TRIES:
                self._decline("no moment was suitable for attaching to all calls")
            return
        if start < self._from or stage != TRAIN or self._over:
            return
        full = self._state.full
        if full and full[-1][1] in (step, step - 1):
            full[-1] = (full[-1][0], step)
        else:
            full.append((step, step))
        self._left -= 1
        self._over = self._left <= 0 or time.monotonic() - self._began > MAX_SECONDS

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
        self._off_for_good = f"burst recording is not available: {reason}"
        self._state.decline(self._off_for_good)
