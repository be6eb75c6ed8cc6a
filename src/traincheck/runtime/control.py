"""Applies the requests in control.json to this process, and answers with its progress. See decision 0016.

Note [Two threads]
A small thread reads the file twice a second and writes the answers, so that the training never waits for a disk.
Requests about sources take effect on the training thread, when a window ends. All other requests (sampling, mutes, a
stop) are forwarded at once, and apply from the next step.
"""

from __future__ import annotations

import math
import os
import platform
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from traincheck import plugins
from traincheck.background_threads import background
from traincheck.errors import TrainCheckError
from traincheck.runtime.ranks.rank_info import RankInfo
from traincheck.runtime.stderr_log import log_warning
from traincheck.trace.control_file import Answer, Control, ControlFile, change_control, withdraw_answer, write_answer
from traincheck.trace.folder import RunFolder
from traincheck.trace.run_notes import StopRequest
from traincheck.vocab.finding import Finding

PAUSE = 0.5
"""Seconds between two reads of the file."""

AHEAD = 1.5
"""Seconds between the first rank's choice of a common stop and the stop itself."""

PATIENCE = 3.0
"""Seconds that the other ranks wait for this choice."""


class Orders(Protocol):
    """Requests to an observed process. You may call all methods except `switch` from any thread."""

    def report_finding(self, finding: Finding) -> None:
        """Report a finding that another process made about several ranks."""

    def mute(self, muted: Mapping[str, str]) -> None:
        """Skip exactly these rules from now on; the values are the reasons."""

    def sample(self, interval: int | None, budget: float | None) -> str:
        """Change the sampling. Returns the reason for a refusal, or an empty string."""

    def switch(self, source: str, *, off: bool) -> None:
        """Suspend a source or resume it. Called on the training thread, when a window has ended."""

    def look(self, steps: int) -> str:
        """Record every call for `steps` steps. Returns the reason for a refusal, or an empty string."""

    def snapshot(self) -> None:
        """Write a snapshot before the next update."""

    def stop(self, request: StopRequest) -> None:
        """Stop the training before the next update, or before the update of step `request.at`."""


@dataclass
class State:
    """Progress of a process, shared between its threads."""

    step: int = 0
    training: bool = False
    remarks: list[str] = field(default_factory=list)
    """Reasons for refused requests."""
    full: list[tuple[int, int]] = field(default_factory=list)
    snapshots: list[str] = field(default_factory=list)

    def decline(self, reason: str) -> None:
        if reason and reason not in self.remarks:
            self.remarks.append(reason)


class ControlFollower:
    """Follows control.json until `close`. `where` returns the current rank of this process."""

    def __init__(
        self, folder: RunFolder, process: int, where: Callable[[], RankInfo], orders: Orders, state: State
    ) -> None:
        self._folder = folder
        self._process = process
        self._rank_info = where
        self._orders = orders
        self._state = state
        self._file = ControlFile(folder.path)
        self._current = Control()
        self._fresh = True
        self._pending: Control | None = None  # for the training thread
        self._serial = 0
        self._since = 0
        self._off: frozenset[str] = frozenset()
        self._stopping = 0.0  # when the stop request was first read
        self._stopped = False
        self._pace = (0.0, 0)
        self._last_answer: Answer | None = None
        self._refused = False
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = background(self._watch, "traincheck-control")

    def close(self) -> None:
        """Answer that this process has ended."""
        self._over.set()
        if self._thread is not None:
            self._thread.join(2 * PAUSE)
        self._answer(ended=True)

    def at_border(self) -> None:
        """Suspend and resume sources. Called on the training thread when a window has ended."""
        control, self._pending = self._pending, None
        if control is None:
            return
        requested = _switchable(control.off)
        for source in sorted(self._off ^ requested):
            self._orders.switch(source, off=source in requested)
        self._off = requested
        self._since, self._serial = self._state.step + 1, control.serial

    # -- on the control thread --------------------------------------------------------------------------------------

    def _watch(self) -> None:
        while True:
            try:
                control = self._file.news()
                if control is not None:
                    self._apply(control)
            except TrainCheckError as error:
                log_warning(f"the requests to this run cannot be read and are ignored: {error}")
            except Exception as error:  # log every error, as this thread must go on
                log_warning(f"control: {type(error).__name__}: {error}")
            self._handle_stop()
            self._answer()
            self._fresh = False
            if self._over.wait(PAUSE):
                return

    def _apply(self, control: Control) -> None:
        before, self._current = self._current, control
        state, orders = self._state, self._orders
        if control.muted != before.muted:
            orders.mute(control.muted)
        if (control.sample, control.budget) != (before.sample, before.budget):
            state.decline(orders.sample(control.sample, control.budget))
        declarations = plugins.load(plugins.SOURCE_GROUP, control.off)
        for source in sorted(set(control.off) - set(before.off)):
            if source not in declarations:
                state.decline(f"there is no source {source}")
            elif not declarations[source].can_be_switched_off:
                rest = ": all others rest on it" if declarations[source].required else ""
                state.decline(f"source {source} cannot be switched off{rest}")
        if not self._fresh:  # earlier one-time requests were for other processes
            for finding in control.findings[len(before.findings) :]:
                orders.report_finding(finding)
            if control.look.number > before.look.number:
                state.decline(orders.look(control.look.steps))
            if control.snapshot.number > before.snapshot.number:
                orders.snapshot()
        if _switchable(control.off) == self._off or not state.training:
            self._serial, self._since = control.serial, state.step + 1
        self._pending = control

    def _handle_stop(self) -> None:
        """Stop the training. The first rank chooses a common step, so that no rank waits for another."""
        now, step = time.monotonic(), self._state.step
        (then, before), self._pace = self._pace, (now, step)
        request = self._current.stop
        if request is None or self._stopped:
            return
        self._stopping = self._stopping or now
        rank_info = self._rank_info()
        if request.at is None and rank_info.world_size > 1 and self._state.training:
            if rank_info.rank == 0:
                pace = (step - before) / (now - then) if now > then else 0.0
                self._agree(step + 2 + math.ceil(pace * AHEAD))
                return
            if now - self._stopping < PATIENCE:
                return
        self._stopped = True
        self._orders.stop(request)

    def _agree(self, at: int) -> None:
        def with_step(control: Control) -> Control:
            stop = control.stop
            if stop is None or stop.at is not None:
                return control
            return msgspec.structs.replace(control, stop=msgspec.structs.replace(stop, at=at))

        try:
            self._apply(change_control(self._folder.path, with_step))
        except TrainCheckError as error:
            log_warning(f"the ranks could not agree on where to stop: {error}")
            self._stopped = True
            if self._current.stop is not None:
                self._orders.stop(self._current.stop)

    def _answer(self, *, ended: bool = False) -> None:
        rank_info, state, current = self._rank_info(), self._state, self._current
        answer = Answer(
            rank=rank_info.rank,
            process=self._process,
            host=platform.node(),
            serial=self._serial,
            step=self._since,
            training=state.training,
            ended=ended,
            waiting=self._waiting(current) if not ended else "",
            declined=tuple(state.remarks),
            full=tuple(state.full),
            snapshots=tuple(state.snapshots),
        )
        previous = self._last_answer
        if answer == previous or self._process != os.getpid():
            return
        try:
            if previous is not None and previous.rank != answer.rank:
                withdraw_answer(self._folder.path, previous.rank, self._process)
            write_answer(self._folder.path, answer)
            self._last_answer = answer
        except TrainCheckError as error:
            if not self._refused:
                self._refused = True
                log_warning(str(error))

    def _waiting(self, current: Control) -> str:
        if current.stop is not None:
            at = f" before the update of step {current.stop.at}" if current.stop.at else " before its next update"
            return f"to stop{at}"
        return "for the end of the step under way" if self._serial < current.serial else ""


def _switchable(names: Iterable[str]) -> frozenset[str]:
    """The names of sources that can be switched off."""
    declarations = plugins.load(plugins.SOURCE_GROUP, names)
    return frozenset(name for name, declaration in declarations.items() if declaration.can_be_switched_off)
