"""Periodic(V): a variable changes every k steps, a counter grows by one, a total equals the announced one.

Source: OSDI '25, section 3.2. Its parts:
* what every step should do (parameter_updates.py and backward_before_step.py, with the weights of micro-batches);
* gradients that are always zero (zero_gradients.py), and the way of each gradient to an update (gradient_use.py);
* the layers of models (model_use.py), their modes (model_modes.py), and what goes into losses (loss_inputs.py);
* errors that a source has decided (reported_errors.py), and clipping over ranks (shard_clipping.py). With the three
  before, they are here so that the rules which are always deployed need one relation;
* counters (counters.py) and regular changes (update_intervals.py);
* passes over data and the end of a schedule (run_totals.py), and whether the two fit together (schedule_length.py).

Expectations about a program come from what this very run has established; see the notes there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from traincheck.relations.parts import Composite, RelationPart
from traincheck.relations.periodic.backward_before_step import BackwardBeforeStep, MicroBatchWeights
from traincheck.relations.periodic.counters import Counters
from traincheck.relations.periodic.gradient_use import GradientUse
from traincheck.relations.periodic.loss_inputs import BroadcastTargets, LossInputs
from traincheck.relations.periodic.model_modes import EvaluationMode, TrainingMode
from traincheck.relations.periodic.model_use import LayerUse
from traincheck.relations.periodic.parameter_updates import ParameterUpdates
from traincheck.relations.periodic.reported_errors import ClippedShards, OptimizerSuccession, ReportedErrors
from traincheck.relations.periodic.run_totals import LoaderPasses, ScheduleHorizons
from traincheck.relations.periodic.schedule_length import ScheduleLength
from traincheck.relations.periodic.update_intervals import UpdateIntervals
from traincheck.relations.periodic.zero_gradients import ZeroGradients
from traincheck.vocab.events import Window
from traincheck.vocab.occasion import Occasion


class Periodic(Composite):
    """See the module."""

    name: ClassVar[str] = "Periodic"
    compares_ranks: ClassVar[bool] = True
    parts: ClassVar[tuple[type[RelationPart], ...]] = (
        ParameterUpdates,
        BackwardBeforeStep,
        MicroBatchWeights,
        ZeroGradients,
        GradientUse,
        LayerUse,
        TrainingMode,
        EvaluationMode,
        LossInputs,
        BroadcastTargets,
        ReportedErrors,
        OptimizerSuccession,
        Counters,
        UpdateIntervals,
        LoaderPasses,
        ScheduleHorizons,
        ScheduleLength,
        ClippedShards,
    )

    def across(self, windows: Sequence[Window]) -> Iterator[Occasion]:
        """Yield the occasions in windows of several ranks at the same step."""
        if len(windows) > 1:
            from traincheck.relations.periodic.shard_clipping import compare_clipping  # not in a job of one process

            yield from (occasion for occasion in compare_clipping(windows) if self._is_requested(occasion.subject))
