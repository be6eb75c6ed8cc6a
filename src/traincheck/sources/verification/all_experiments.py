"""Builds the sources of all experiments. This module is imported only in runs that verify steps."""

from __future__ import annotations

from traincheck.sources.base import Source
from traincheck.sources.modules.module_calls import ModuleCalls
from traincheck.sources.modules.variables import VariableCatalog
from traincheck.sources.replay.replays import ReplaySource
from traincheck.sources.verification.accumulation.accumulation_source import AccumulationSource
from traincheck.sources.verification.derivatives.derivatives import DerivativeSource
from traincheck.sources.verification.inputs.input_source import InputSource
from traincheck.sources.verification.recomputation.recomputation_source import RecomputationSource
from traincheck.sources.verification.round_trips.round_trip_source import RoundTripSource
from traincheck.sources.verification.updates.update_source import UpdateSource
from traincheck.sources.verification.verified_steps import VerifiedSteps


def experiments(steps: VerifiedSteps, calls: ModuleCalls, catalog: VariableCatalog) -> list[Source]:
    """The sources that verify these steps, in the order in which they attach."""
    return [
        ReplaySource(calls, catalog, steps),
        DerivativeSource(calls, catalog, steps),
        UpdateSource(catalog, steps),
        RoundTripSource(calls, catalog, steps),
        InputSource(calls, catalog, steps),
        RecomputationSource(calls, catalog, steps),
        AccumulationSource(catalog, steps),
    ]
