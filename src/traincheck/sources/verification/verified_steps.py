"""Which steps of a run are verified, and how an experiment reports what it found."""

from __future__ import annotations

from traincheck.sources.recording.recorder import Recorder
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import NO_CALL, Reading
from traincheck.vocab.facts import facts
from traincheck.vocab.verification import KIND, UNDECIDED, Experiment

FIRST_STEP = 2
"""This step is always verified: a first step builds optimizer state and compiles. A run of any length has a result."""


class VerifiedSteps:
    """One of `every` steps, the same on all ranks, and the step `FIRST_STEP`."""

    def __init__(self, every: int) -> None:
        self.every = every

    def includes(self, step: int) -> bool:
        """Whether the step of this number is verified."""
        return step == FIRST_STEP or (step > 0 and step % self.every == 0)


def is_requested(demand: Demand) -> bool:
    """Whether rules or recordings ask for experiments."""
    return demand.takes_readings(KIND)


class Reporter:
    """Reports results of one experiment as readings of the current window."""

    def __init__(self, experiment: Experiment, recorder: Recorder) -> None:
        self._experiment = experiment
        self._recorder = recorder
        self._undecided: set[tuple[str, str]] = set()

    def report(self, subject: str, verdict: str, found: str = "", *, first: str = "", site: str = "") -> None:
        """Report the verdict about `subject`, a model or an optimizer.

        `first` names what is wrong, `found` is what was seen, or why the experiment could not decide. The same reason
        is reported once per subject.
        """
        if verdict == UNDECIDED:
            if (subject, found) in self._undecided:
                return
            self._undecided.add((subject, found))
        step = self._recorder.steps.window_step
        context = facts(first=first or subject, found=found, step=step, site=site) if found else ()
        reading = Reading(
            self._recorder.next_seq(), NO_CALL, subject, KIND, self._experiment.name, verdict, context=context
        )
        self._recorder.record_reading(reading)
