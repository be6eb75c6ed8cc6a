"""The results of verification in a run: for each computation, how often it was verified and what was found.

The names of experiments are the attributes of readings: those of `EXPERIMENTS`, and the parts of a replayed step.
"""

from __future__ import annotations

from dataclasses import dataclass

from traincheck.vocab.experiments import EXPERIMENTS

WRONG, VERIFIED, UNDECIDED = "wrong", "agrees", "undecided"
NOT_TRUE_HERE = "does not hold"
"""The verdict where an experiment disagreed whose assertion does not hold for every program."""


@dataclass(frozen=True, slots=True)
class VerifiedComputation:
    """The results of one experiment about one subject, a model or an optimizer.

    `agreed` and `disagreed` count results. `reasons` say why the experiment could not decide in some steps or for some
    parts.
    """

    experiment: str
    subject: str
    agreed: int = 0
    disagreed: int = 0
    reasons: tuple[str, ...] = ()

    @property
    def times(self) -> int:
        """How often the computation was verified with a result."""
        return self.agreed + self.disagreed

    @property
    def verdict(self) -> str:
        """`wrong` or `does not hold` if any result disagreed, else `agrees` if any agreed, else `undecided`."""
        if self.disagreed:
            experiment = EXPERIMENTS.get(self.experiment)
            return WRONG if experiment is None or experiment.universal else NOT_TRUE_HERE
        return VERIFIED if self.agreed else UNDECIDED
