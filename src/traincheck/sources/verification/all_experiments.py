"""Builds the sources of all experiments. This module is imported only in runs that verify steps."""

from __future__ import annotations

from traincheck.sources.base import Source
from traincheck.sources.gradients.gradients import Gradients
from traincheck.sources.modules.module_calls import ModuleCalls
from traincheck.sources.modules.variables import VariableCatalog
from traincheck.sources.replay.replays import ReplaySource
from traincheck.sources.verification.accumulation.accumulation_source import AccumulationSource
from traincheck.sources.verification.derivatives.derivatives import DerivativeSource
from traincheck.sources.verification.inputs.input_source import InputSource
from traincheck.sources.verification.recomputation.recomputation_source import RecomputationSource
from traincheck.sources.verification.round_trips.round_trip_source import RoundTripSource
from traincheck.sources.verification.updates.update_source import UpdateSource


def experiments(every: int, calls: ModuleCalls, catalog: VariableCatalog, gradients: Gradients) -> list[Source]:
    """The sources that verify one of `every` steps, in the order in which they attach."""
    return [
        ReplaySource(calls, catalog, every),
        DerivativeSource(calls, catalog, every),
        UpdateSource(catalog, every),
        RoundTripSource(calls, catalog, every),
        InputSource(calls, catalog, every),
        RecomputationSource(calls, catalog, every),
        AccumulationSource(catalog, every),
    ]
