"""Observes this process in a test as a session does, without its threads and files."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch

from traincheck.runtime.launching.import_hooks import when_imported
from traincheck.sources.base import Source
from traincheck.sources.functions.value_forms import Connect
from traincheck.sources.modules.model_copies import Versions
from traincheck.sources.recording.call_sites import CallSites
from traincheck.sources.recording.recorder import Recorder
from traincheck.sources.registry import attach, build_all
from traincheck.vocab.demand import EVERYTHING, Demand
from traincheck.vocab.events import Call, Change, Reading, Window

torch.set_num_threads(1)  # threads that wait for each other are slow on a busy machine, and tests compute little

TESTS = str(Path(__file__).parent)


@dataclass
class Seen:
    """The windows, the faults of sources, and the sources that could not attach."""

    windows: list[Window] = field(default_factory=list)
    faults: list[tuple[str, BaseException]] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    sources: list[Source] = field(default_factory=list)
    undo: ExitStack = field(default_factory=ExitStack)
    recorder: Recorder = field(init=False)

    @property
    def stages(self) -> list[tuple[str, int]]:
        """Stage and step of each window."""
        return [(window.stage, window.step) for window in self.windows]

    @property
    def calls(self) -> list[Call]:
        return [call for window in self.windows for call in window.calls]

    @property
    def changes(self) -> list[Change]:
        return [change for window in self.windows for change in window.changes]

    @property
    def readings(self) -> list[Reading]:
        return [reading for window in self.windows for reading in window.readings]

    def named(self, name: str) -> list[Call]:
        """The calls known under `name` at any level."""
        return [call for call in self.calls if name in call.levels]

    def around(self, name: str) -> list[Change]:
        """The changes around calls known under `name`."""
        seqs = {call.seq for call in self.named(name)}
        return [change for change in self.changes if change.call in seqs]


def _without_context(error: BaseException) -> BaseException:
    """The error without its context and frames, which would keep objects alive (a loader with workers)."""
    error.__context__ = None
    return error.with_traceback(None)


@contextmanager
def observing(
    demand: Demand = EVERYTHING,
    project: str = TESTS,
    *,
    freeze: bool = True,
    watches: Callable[[int], bool] = lambda step: True,
    quiet_steps: Callable[[int, int], int] | None = None,
    versions: Versions | None = None,
    connect_marks: Connect | None = None,
) -> Iterator[Seen]:
    """Observe this process for `demand`, in the steps for which `watches` is True. `versions` are those of models in
    other processes, and `connect_marks` gets the function that describes marked values.

    The windows are complete after the block.
    """
    gc.collect()
    if freeze:
        gc.freeze()  # TrainCheck looks for existing modules: those of other tests would take their names
    seen = Seen()
    recorder = Recorder(
        CallSites((project,)),
        seen.windows.append,
        lambda source, error: seen.faults.append((source, _without_context(error))),
        is_sampled=watches,
        quiet_steps=quiet_steps,
    )
    seen.recorder = recorder
    seen.sources = build_all(
        recorder, lambda: None, when_imported, versions=versions, connect_marks=connect_marks
    ).sources
    seen.undo, seen.missing = attach(seen.sources, demand, recorder)
    try:
        yield seen
    finally:
        try:
            recorder.finish()
        finally:
            seen.undo.close()
