"""The sources that ship with TrainCheck, put together around one recorder."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import NamedTuple

from traincheck.sources.attachment import Attachment
from traincheck.sources.base import Source
from traincheck.sources.checkpoints.checkpoints import CheckpointSource
from traincheck.sources.compile.compiled_calls import CompiledSource, WhenImported, never
from traincheck.sources.data.loaders import LoaderSource
from traincheck.sources.distributed.collectives import CollectiveSource
from traincheck.sources.functions.context_managers import RegionSource
from traincheck.sources.functions.lifecycle import LifecycleSource
from traincheck.sources.functions.project_functions import ProjectSource
from traincheck.sources.functions.torch_functions import FunctionSource
from traincheck.sources.gradients.autograd import AutogradSource
from traincheck.sources.gradients.clipping import ClippingSource
from traincheck.sources.gradients.custom_clipping import OwnClipping
from traincheck.sources.gradients.gradients import Gradients
from traincheck.sources.modules.buffers import BufferSource
from traincheck.sources.modules.module_calls import ModuleCalls
from traincheck.sources.modules.module_state import ModuleStateSource
from traincheck.sources.modules.modules import ModuleSource
from traincheck.sources.modules.variables import Catalog
from traincheck.sources.optimizers.optimizers import OptimizerSource
from traincheck.sources.recording.call_sites import Sites
from traincheck.sources.recording.context_facts import Surroundings
from traincheck.sources.recording.recorder import Recorder
from traincheck.sources.recording.run_totals import RunSource
from traincheck.sources.tensors.call_summaries import Summaries
from traincheck.vocab.demand import Demand


class Offer(NamedTuple):
    """Whether a source can observe here, and why not."""

    source: str
    available: bool
    reason: str


class Built(NamedTuple):
    """All sources, in the order in which they attach, and what they share."""

    sources: list[Source]
    catalog: Catalog
    surroundings: Surroundings


def build(recorder: Recorder, may_step: Callable[[], None], when_imported: WhenImported = never) -> list[Source]:
    """All sources, in the order in which they attach. `may_step` is called before each update and may raise;
    `when_imported` calls a function once a module has been imported."""
    return build_all(recorder, may_step, when_imported).sources


def build_all(
    recorder: Recorder, may_step: Callable[[], None], when_imported: WhenImported = never, replay_every: int = 0
) -> Built:
    """As `build`, with the catalog of variables and what the sources know of calls under way; one of `replay_every`
    steps is executed again, none with 0."""
    catalog, calls = Catalog(), ModuleCalls()
    gradients = Gradients(catalog, recorder)
    summaries, surroundings = Summaries(catalog, recorder), Surroundings()
    sources: list[Source] = [
        RegionSource(surroundings),
        OptimizerSource(catalog, gradients, may_step),
        ModuleSource(calls, catalog, gradients, summaries, surroundings),
        ModuleStateSource(calls, catalog),
        BufferSource(calls, catalog),
        AutogradSource(gradients, summaries, surroundings, may_step),
        LifecycleSource(catalog, gradients),
        ClippingSource(gradients),
        CheckpointSource(catalog),
        LoaderSource(),
        CollectiveSource(summaries, surroundings),
        FunctionSource(summaries, surroundings),
        RunSource(),
        CompiledSource(catalog, gradients, surroundings, may_step, when_imported),
        ProjectSource(recorder.sites, summaries, surroundings, OwnClipping(gradients)),
    ]
    if replay_every:
        from traincheck.sources.replay.replays import ReplaySource  # few want it, and it is many modules

        sources.append(ReplaySource(calls, catalog, replay_every))
    return Built(sources, catalog, surroundings)


def attach(sources: list[Source], demand: Demand, recorder: Recorder) -> tuple[ExitStack, list[str]]:
    """Attach what can be attached; returns the undo stack and, for each source that could not, its name and reason."""
    attachment = Attachment(sources, demand, recorder)
    return attachment.undo, attachment.missing


def offers() -> list[Offer]:
    """What each source says of this process."""
    recorder = Recorder(Sites(()), lambda window: None, lambda source, error: None)
    found = []
    for source in build(recorder, lambda: None):
        reason = source.offers()
        found.append(Offer(source.name, reason is None, reason or ""))
    return found
