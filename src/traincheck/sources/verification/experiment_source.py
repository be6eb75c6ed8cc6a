"""The base class of the sources that perform experiments, and how an experiment reports what it found."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import ExitStack
from typing import ClassVar

from traincheck.sources.recording.patches import UndoStack
from traincheck.sources.recording.recorder import Recorder
from traincheck.sources.verification.verified_steps import Turn, VerifiedSteps
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import NO_CALL, Reading
from traincheck.vocab.facts import facts
from traincheck.vocab.verification import KIND, UNDECIDED, Experiment


class ExperimentSource(ABC):
    """A source that performs `experiments` in verified steps.

    A subclass observes the program in `_observe`, and forgets everything about it in `_on_detach`.
    """

    name: str
    experiments: ClassVar[tuple[Experiment, ...]]
    turn: ClassVar[Turn] = Turn.OTHERS

    def __init__(self, steps: VerifiedSteps) -> None:
        self._steps = steps

    def offers(self) -> str | None:
        """None: experiments are possible wherever torch is."""
        return None

    def attach(self, demand: Demand, recorder: Recorder) -> ExitStack:
        """Start observing, if rules or recordings ask for experiments."""
        undo = UndoStack()
        if demand.takes_readings(KIND):
            self._recorder = recorder
            self._reporters = {experiment.name: Reporter(experiment, recorder) for experiment in self.experiments}
            recorder.on_detach(undo, self._on_detach)
            self._observe(undo, recorder)
        return undo

    @abstractmethod
    def _observe(self, undo: UndoStack, recorder: Recorder) -> None:
        """Attach to the program; closing `undo` removes everything."""

    @abstractmethod
    def _on_detach(self) -> None:
        """Forget the objects of the program."""

    @property
    def _reporter(self) -> Reporter:
        """The reporter of a source with one experiment."""
        return self._reporters[self.experiments[0].name]

    def _verifies(self, step: int) -> bool:
        """Whether the experiments of this source verify the step."""
        return self._steps.includes(step, self.turn)


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
