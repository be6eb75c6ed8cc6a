"""Forwards control requests to the component that carries them out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from traincheck.checking.live import LiveChecker
from traincheck.runtime.before_update import BeforeUpdate
from traincheck.runtime.control import State
from traincheck.runtime.ranks.rank_publisher import RankPublisher
from traincheck.runtime.recording.burst_recording import BurstRecorder
from traincheck.trace.run_notes import StopRequest
from traincheck.vocab.finding import Finding

if TYPE_CHECKING:
    from pathlib import Path

    from traincheck.sources.modules.variables import VariableCatalog
    from traincheck.sources.recording.recorder import Recorder


class ControlActions:
    """Implements `control.Orders`. `sampling` selects the observed steps; None if sampling is fixed."""

    def __init__(
        self,
        recorder: Recorder,
        closer: BurstRecorder | None,
        before_update: BeforeUpdate,
        checker: LiveChecker | None,
        publisher: RankPublisher | None,
        react: Callable[[Finding], None],
        sampling: Any = None,
    ) -> None:
        self._recorder = recorder
        self._closer = closer
        self._before_update = before_update
        self._checker = checker
        self._publisher = publisher
        self._react = react
        self._sampling = sampling

    def report_finding(self, finding: Finding) -> None:
        """Report a finding that another process made about several ranks."""
        self._react(finding)

    def mute(self, muted: Mapping[str, str]) -> None:
        """Skip exactly these rules from now on; the values are the reasons."""
        if self._checker is not None:
            self._checker.mute(muted)
        if self._publisher is not None:
            self._publisher.mute(muted)

    def sample(self, interval: int | None, budget: float | None) -> str:
        """Change the sampling. Returns the reason for a refusal, or an empty string."""
        if self._sampling is None:
            return "the sampling of this run cannot be changed"
        self._sampling.set(interval=interval, budget=budget)
        return ""

    def switch(self, source: str, *, off: bool) -> None:
        """Suspend a source or resume it."""
        self._recorder.switch(source, off=off)

    def look(self, steps: int) -> str:
        """Record every call for `steps` steps. Returns the reason for a refusal, or an empty string."""
        return "this run records every call already" if self._closer is None else self._closer.ask(steps)

    def snapshot(self) -> None:
        """Write a snapshot before the next update."""
        self._before_update.request_snapshot()

    def stop(self, request: StopRequest) -> None:
        """Stop the training before the next update, or before the update of step `request.at`."""
        self._before_update.stop(request)


def snapshot(folder: Path, catalog: VariableCatalog, state: State, step: int, rank: int) -> None:
    """Write a snapshot of this rank into the run folder, and add the result to `state`."""
    from traincheck.sources.checkpoints.snapshots import write_snapshot

    name = f"snapshots/step-{step}-rank-{rank}.pt"
    problem = write_snapshot(folder / name, catalog, step, rank)
    if problem:
        state.decline(problem)
    elif name not in state.snapshots:
        state.snapshots.append(name)
