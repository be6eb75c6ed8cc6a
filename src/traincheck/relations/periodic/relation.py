"""Periodic(V): a variable changes every k steps, a counter grows by one, a total is what was announced.

Source: OSDI '25, section 3.2. Its parts: parameter_updates.py and backward_before_step.py for what every step should
do,
zero_gradients.py and unused_gradients.py for gradients that say nothing or are not used, uninitialized.py for memory
that nothing wrote (here, so that the rules which are always deployed need one relation), counters.py,
update_intervals.py,
run_totals.py for passes over data and the horizon of a schedule, and schedule_length.py for whether the two fit
together. What is expected of a program is what this very run has established; see the notes there.
"""

from __future__ import annotations

from typing import ClassVar

from traincheck.relations.parts import Composite, RelationPart
from traincheck.relations.periodic.backward_before_step import BackwardBeforeStep
from traincheck.relations.periodic.counters import Counters
from traincheck.relations.periodic.parameter_updates import ParameterUpdates
from traincheck.relations.periodic.run_totals import LoaderPasses, ScheduleHorizons
from traincheck.relations.periodic.schedule_length import ScheduleLength
from traincheck.relations.periodic.uninitialized import Uninitialized
from traincheck.relations.periodic.unused_gradients import UnusedGradients
from traincheck.relations.periodic.update_intervals import UpdateIntervals
from traincheck.relations.periodic.zero_gradients import ZeroGradients


class Periodic(Composite):
    """See the module's docstring."""

    name: ClassVar[str] = "Periodic"
    parts: ClassVar[tuple[type[RelationPart], ...]] = (
        ParameterUpdates,
        BackwardBeforeStep,
        ZeroGradients,
        UnusedGradients,
        Uninitialized,
        Counters,
        UpdateIntervals,
        LoaderPasses,
        ScheduleHorizons,
        ScheduleLength,
    )
