"""Periodic(V): a variable changes every k steps, a counter grows by one, a total is what was announced.

Source: OSDI '25, section 3.2. Its parts: progress.py and lessons.py for what every step should do,
zero_gradients.py and unused_gradients.py for gradients that say nothing or are not used, uninitialised.py for memory
that nothing wrote (here, so that the rules which are always deployed need one relation), counters.py, rhythms.py,
totals.py for passes over data and the horizon of a schedule, and spans.py for whether the two fit together.
What is expected of a program is what this very run has established; see the notes there.
"""

from __future__ import annotations

from typing import ClassVar

from traincheck.relations.counters import Counters
from traincheck.relations.lessons import Lessons
from traincheck.relations.parts import Composite, Part
from traincheck.relations.progress import Progress
from traincheck.relations.rhythms import Rhythms
from traincheck.relations.spans import Spans
from traincheck.relations.totals import Horizons, Passes
from traincheck.relations.uninitialised import Uninitialised
from traincheck.relations.unused_gradients import UnusedGradients
from traincheck.relations.zero_gradients import ZeroGradients


class Periodic(Composite):
    """See the module's docstring."""

    name: ClassVar[str] = "Periodic"
    parts: ClassVar[tuple[type[Part], ...]] = (
        Progress,
        Lessons,
        ZeroGradients,
        UnusedGradients,
        Uninitialised,
        Counters,
        Rhythms,
        Passes,
        Horizons,
        Spans,
    )
