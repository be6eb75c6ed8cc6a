"""The sources that ship with TrainCheck, put together around one recorder."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import NamedTuple

from traincheck.sources.autograd import AutogradSource
from traincheck.sources.base import Source
from traincheck.sources.buffers import BufferSource
from traincheck.sources.checkpoints import CheckpointSource
from traincheck.sources.circumstances import Surroundings
from traincheck.sources.clipping import ClippingSource
from traincheck.sources.collectives import CollectiveSource
from traincheck.sources.gradients import Gradients
from traincheck.sources.lifecycle import LifecycleSource
from traincheck.sources.loaders import LoaderSource
from traincheck.sources.module_state import ModuleStateSource
from traincheck.sources.modules import ModuleSource
from traincheck.sources.optimizers import OptimizerSource
from traincheck.sources.own_clipping import OwnClipping
from traincheck.sources.project import ProjectSource
from traincheck.sources.recorder import Recorder
from traincheck.sources.regions import RegionSource
from traincheck.sources.run import RunSource
from traincheck.sources.sites import Sites
from traincheck.sources.summaries import Summaries
from traincheck.sources.torch_functions import FunctionSource
from traincheck.sources.variables import Catalog
from traincheck.vocab.demand import Demand


class Offer(NamedTuple):
    """Whether a source can observe here, and why not."""

    source: str
    available: bool
    reason: str


def build(recorder: Recorder, may_step: Callable[[], None]) -> list[Source]:
    """All sources, in the order in which they attach. `may_step` is called before each optimizer step and may raise."""
    catalog = Catalog()
    gradients = Gradients(catalog, recorder)
    summaries, surroundings = Summaries(catalog, recorder), Surroundings()
    return [
        RegionSource(surroundings),
        OptimizerSource(catalog, gradients, may_step),
        ModuleSource(catalog, gradients, summaries, surroundings),
        ModuleStateSource(catalog),
        BufferSource(catalog),
        AutogradSource(gradients, summaries, surroundings),
        LifecycleSource(catalog, gradients),
        ClippingSource(gradients),
        CheckpointSource(catalog),
        LoaderSource(),
        CollectiveSource(summaries, surroundings),
        FunctionSource(summaries, surroundings),
        RunSource(),
        ProjectSource(recorder.sites, summaries, surroundings, OwnClipping(gradients)),
    ]


def attach(sources: list[Source], demand: Demand, recorder: Recorder) -> tuple[ExitStack, list[str]]:
    """Attach what can be attached; returns the undo stack and, for each source that could not, its name and reason."""
    undo = ExitStack()
    missing = []
    for source in sources:
        reason = source.offers()
        if reason is None:
            try:
                undo.enter_context(source.attach(demand, recorder))
            except Exception as error:
                recorder.fault(source.name, error)
                reason = f"{type(error).__name__}: {error}"
        if reason is not None:
            missing.append(f"{source.name}: {reason}")
    return undo, missing


def offers() -> list[Offer]:
    """What each source says of this process."""
    recorder = Recorder(Sites(()), lambda window: None, lambda source, error: None)
    found = []
    for source in build(recorder, lambda: None):
        reason = source.offers()
        found.append(Offer(source.name, reason is None, reason or ""))
    return found
