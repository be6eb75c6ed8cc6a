"""Steering: what can be asked of an observed process, handed to the part that does it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from traincheck.checking.live import LiveChecker
from traincheck.runtime.before_update import BeforeUpdate
from traincheck.runtime.control import State
from traincheck.runtime.ranks.rank_publisher import RankPublisher
from traincheck.runtime.recording.burst_recording import BurstRecorder
from traincheck.trace.run_notes import StopAsked
from traincheck.vocab.finding import Finding

if TYPE_CHECKING:
    from pathlib import Path

    from traincheck.sources.modules.variables import VariableCatalog
    from traincheck.sources.recording.recorder import Recorder


class ControlActions:
    """See `control.Orders`. `sampling` decides which steps are watched; None where nothing does."""

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
        """Somebody else has found this of several ranks."""
        self._react(finding)

    def mute(self, muted: Mapping[str, str]) -> None:
        """These rules, and no others, are not judged from now on."""
        if self._checker is not None:
            self._checker.mute(muted)
        if self._publisher is not None:
            self._publisher.mute(muted)

    def sample(self, interval: int | None, budget: float | None) -> str:
        """Watch these steps; why that cannot be done, empty where it can."""
        if self._sampling is None:
            return "which steps are watched cannot be changed in this run"
        self._sampling.set(interval=interval, budget=budget)
        return ""

    def switch(self, source: str, *, off: bool) -> None:
        """Have a source tell nothing, or tell again."""
        self._recorder.switch(source, off=off)

    def look(self, steps: int) -> str:
        """Look closer for so many steps; why that cannot be done."""
        return "everything is recorded anyway" if self._closer is None else self._closer.ask(steps)

    def snapshot(self) -> None:
        """Write a snapshot before the next update."""
        self._before_update.request_snapshot()

    def stop(self, because: StopAsked) -> None:
        """End the training before the next update, or that of `because.at`."""
        self._before_update.stop(because)


def snapshot(folder: Path, catalog: VariableCatalog, state: State, step: int, rank: int) -> None:
    """Write a snapshot of this rank into the run folder, and say in `state` what became of it."""
    from traincheck.sources.checkpoints.snapshots import write_snapshot

    name = f"snapshots/step-{step}-rank-{rank}.pt"
    problem = write_snapshot(folder / name, catalog, step, rank)
    if problem:
        state.decline(problem)
    elif name not in state.snapshots:
        state.snapshots.append(name)
