"""Builds all sources around one recorder: those of TrainCheck, and those that installed packages add."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple

from traincheck import plugins
from traincheck.sources.attachment import Attachment
from traincheck.sources.base import Source
from traincheck.sources.checkpoints.checkpoints import CheckpointSource
from traincheck.sources.compile.compiled_calls import CompiledCallSource, WhenImported, ignore_imports
from traincheck.sources.data.loaders import LoaderSource
from traincheck.sources.distributed.collectives import CollectiveSource
from traincheck.sources.distributed.replica_readings import HandAveraging
from traincheck.sources.functions.context_managers import ContextManagerSource
from traincheck.sources.functions.lifecycle import LifecycleSource
from traincheck.sources.functions.project_functions import ProjectFunctionSource
from traincheck.sources.functions.torch_functions import TorchFunctionSource
from traincheck.sources.gradients.autograd import AutogradSource
from traincheck.sources.gradients.clipping import ClippingSource
from traincheck.sources.gradients.custom_clipping import CustomClipping
from traincheck.sources.gradients.gradients import Gradients
from traincheck.sources.gradients.graph_source import GraphSource
from traincheck.sources.jax.jax_source import JaxSource
from traincheck.sources.modules.buffers import BufferSource
from traincheck.sources.modules.evaluation_changes import EvaluationSource
from traincheck.sources.modules.module_calls import ModuleCalls
from traincheck.sources.modules.module_state import ModuleStateSource
from traincheck.sources.modules.modules import ModuleSource
from traincheck.sources.modules.variables import VariableCatalog
from traincheck.sources.optimizers.optimizers import OptimizerSource
from traincheck.sources.recording.call_sites import CallSites
from traincheck.sources.recording.context_facts import CallContext
from traincheck.sources.recording.recorder import Recorder
from traincheck.sources.recording.run_totals import RunSource
from traincheck.sources.tensors.call_summaries import CallSummaries
from traincheck.vocab.demand import Demand
from traincheck.vocab.source_declaration import SourceDeclaration

if TYPE_CHECKING:
    from traincheck.sources.functions.value_forms import Connect, ValueForms
    from traincheck.sources.modules.model_copies import Versions
    from traincheck.sources.operations.marks import MarkSink
    from traincheck.sources.operations.whole_values import WholeValues
    from traincheck.vocab.operations import StepOperations


class Offer(NamedTuple):
    """Whether a source can observe in this process, and the reason if it cannot."""

    source: str
    available: bool
    reason: str


class Built(NamedTuple):
    """All sources in the order in which they attach, and the objects that they share."""

    sources: list[Source]
    catalog: VariableCatalog
    call_context: CallContext


def build(
    recorder: Recorder, may_step: Callable[[], None], when_imported: WhenImported = ignore_imports
) -> list[Source]:
    """All sources in the order in which they attach.

    Sources call `may_step` before each update, and it may raise. `when_imported` calls a function once a module has
    been imported.
    """
    return build_all(recorder, may_step, when_imported).sources


def build_all(
    recorder: Recorder,
    may_step: Callable[[], None],
    when_imported: WhenImported = ignore_imports,
    verify_every: int = 0,
    *,
    operations: Callable[[StepOperations], object] | None = None,
    whole_values: WholeValues | None = None,
    marks: MarkSink | None = None,
    versions: Versions | None = None,
    connect_marks: Connect | None = None,
    initial_state: Callable[[VariableCatalog], Source] | None = None,
    installed: bool = True,
    extra: Sequence[SourceDeclaration] = (),
) -> Built:
    """As `build`, with the catalog of variables and the context of running calls.

    One of `verify_every` steps is verified, none with 0. The operations of watched steps are
    sketched and passed to `operations`, those of a module are kept whole by `whole_values`, and the values that the
    program marks go to `marks`. `versions` connects copies of a model with other processes of the run; without it,
    copies are not compared. `connect_marks` gets the function that describes marked values. `initial_state` makes the
    source of that name.
    `installed` says whether to look for sources of installed packages. `extra` sources are built without being
    installed.
    """
    catalog, calls = VariableCatalog(), ModuleCalls()
    gradients = Gradients(catalog, recorder)
    graphs, averaging = GraphSource(calls, catalog), HandAveraging(gradients)
    summaries, call_context = CallSummaries(catalog, recorder), CallContext()
    sources: list[Source] = [
        *([initial_state(catalog)] if initial_state is not None else []),  # its hook runs first
        ContextManagerSource(call_context),
        OptimizerSource(catalog, gradients, may_step, averaging),
        ModuleSource(calls, catalog, gradients, summaries, call_context),
        ModuleStateSource(calls, catalog),
        BufferSource(calls, catalog),
        EvaluationSource(calls, catalog),
        AutogradSource(gradients, summaries, call_context, graphs, may_step),
        graphs,
        LifecycleSource(catalog, gradients),
        ClippingSource(gradients, when_imported),
        CheckpointSource(catalog),
        LoaderSource(averaging.epoch_begins),
        CollectiveSource(summaries, call_context, averaging),
        TorchFunctionSource(summaries, call_context, catalog, calls),
        RunSource(),
        CompiledCallSource(catalog, gradients, call_context, may_step, when_imported),
        JaxSource(may_step, when_imported),
        ProjectFunctionSource(
            recorder.sites,
            summaries,
            call_context,
            CustomClipping(gradients),
            functools.partial(_value_forms, calls, catalog, connect_marks),
        ),
    ]
    if verify_every:
        from traincheck.sources.verification.all_experiments import experiments  # seldom used, and slow to import
        from traincheck.sources.verification.verified_steps import VerifiedSteps

        sources += experiments(VerifiedSteps(verify_every), calls, catalog)
    sources += _on_request(calls, catalog, operations, whole_values, marks, versions)
    if extra or (installed and plugins.added(plugins.SOURCE_GROUP)):
        from traincheck.sources.installed_sources import InstalledSource, installed_sources
        from traincheck.sources.toolkit import SourceToolkit

        toolkit = SourceToolkit(catalog, gradients, may_step, when_imported)
        sources += installed_sources(toolkit) if installed else []
        sources += [InstalledSource(declaration, plugins.source_class(declaration)(toolkit)) for declaration in extra]
    return Built(sources, catalog, call_context)


def _on_request(
    calls: ModuleCalls,
    catalog: VariableCatalog,
    operations: Callable[[StepOperations], object] | None,
    whole_values: WholeValues | None,
    marks: MarkSink | None,
    versions: Versions | None,
) -> list[Source]:
    """The sources that few runs need, and that are imported for these alone."""
    sources: list[Source] = []
    if operations is not None:
        from traincheck.sources.operations.operation_source import OperationSource

        sources.append(OperationSource(calls, catalog, operations, whole_values))
    if marks is not None:
        from traincheck.sources.operations.marks import MarkSource

        sources.append(MarkSource(calls, marks))
    if versions is not None:
        from traincheck.sources.modules.model_copies import ModelCopies

        sources.append(ModelCopies(calls, catalog, versions))
    return sources


def _value_forms(
    calls: ModuleCalls, catalog: VariableCatalog, connect_marks: Connect | None, recorder: Recorder
) -> ValueForms:
    """What describes the values of calls; seldom needed, and so imported late."""
    from traincheck.sources.functions.value_forms import ValueForms

    return ValueForms(recorder, catalog, calls, connect_marks)


def attach(sources: list[Source], demand: Demand, recorder: Recorder) -> tuple[ExitStack, list[str]]:
    """Attach the sources; the undo stack, and a line for each source that could not observe with its reason."""
    attachment = Attachment(sources, demand, recorder)
    return attachment.undo, attachment.missing


def offers() -> list[Offer]:
    """Whether each source can observe in this process."""
    recorder = Recorder(CallSites(()), lambda window: None, lambda source, error: None)
    results = []
    for source in build(recorder, lambda: None):
        reason = source.offers()
        results.append(Offer(source.name, reason is None, reason or ""))
    return results
