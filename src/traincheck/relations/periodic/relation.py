"""Periodic(V): a variable changes every k steps, a counter grows by one, a total equals the announced one.

Source: OSDI '25, section 3.2. Its parts:
* what every step should do (parameter_updates.py and backward_before_step.py, with the weights of micro-batches);
* gradients that are always zero (zero_gradients.py), and the way of each gradient to an update (gradient_use.py);
* the layers of models (model_use.py), their modes (model_modes.py), and what goes into losses (loss_inputs.py);
* errors that a source has decided (reported_errors.py). With the three before, they are here so that the rules which
  are always deployed need one relation;
* counters (counters.py) and regular changes (update_intervals.py);
* passes over data and the end of a schedule (run_totals.py), and whether the two fit together (schedule_length.py).

Expectations about a program come from what this very run has established; see the notes there.
"""

from __future__ import annotations

from typing import ClassVar

from traincheck.relations.parts import Composite, RelationPart
from traincheck.relations.periodic.backward_before_step import BackwardBeforeStep, MicroBatchWeights
from traincheck.relations.periodic.counters import Counters
from traincheck.relations.periodic.gradient_use import GradientUse
from traincheck.relations.periodic.loss_inputs import BroadcastTargets, LossInputs
from traincheck.relations.periodic.model_modes import EvaluationMode, TrainingMode
from traincheck.relations.periodic.model_use import LayerUse
from traincheck.relations.periodic.parameter_updates import ParameterUpdates
from traincheck.relations.periodic.reported_errors import OptimizerSuccession, ReportedErrors
from traincheck.relations.periodic.run_totals import LoaderPasses, ScheduleHorizons
from traincheck.relations.periodic.schedule_length import ScheduleLength
from traincheck.relations.periodic.update_intervals import UpdateIntervals
from traincheck.relations.periodic.zero_gradients import ZeroGradients


class Periodic(Composite):
    """See the module."""

    name: ClassVar[str] = "Periodic"
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
    )
