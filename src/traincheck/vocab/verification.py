"""Verification: the experiments on a live step, their verdicts, and the results that a run keeps.

In an experiment, TrainCheck computes a part of the step in a second way, whose result mathematics knows. Its readings
have the kind `KIND`, the experiment as attribute and the verdict as value. The facts of a reading say more: `first`
names what is wrong, the smallest that is known (a parameter, a module, a function), `found` is what was seen in words,
or why the experiment could not decide, `step` and `site` say where.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from traincheck.vocab.demand import COMPUTATION

KIND = COMPUTATION

AGREES, DISAGREES, UNDECIDED = "agrees", "disagrees", "undecided"


class Experiment(NamedTuple):
    """An experiment: the attribute of its readings, what it asserts, and what else a program may mean.

    Where a program may mean something else, the assertion is a rule only if good runs showed it: some models look at
    later tokens.
    """

    name: str
    sentence: str
    otherwise: str = ""

    @property
    def universal(self) -> bool:
        """Whether the assertion holds for every program."""
        return not self.otherwise


ALGORITHM = Experiment("algorithm", "an optimizer writes what its documented algorithm computes")
DERIVATIVE = Experiment("derivative", "a gradient is the derivative of what was computed")
ACCUMULATION = Experiment(
    "accumulation",
    "all elements of accumulated micro-batches weigh the same",
    "elements of some micro-batches weigh more",
)
RECOMPUTATION = Experiment("recomputation", "a recomputation under activation checkpointing gives the first results")
ROUND_TRIP = Experiment("round_trip", "a checkpoint that is loaded into a copy gives the same outputs and update")
SAMPLES = Experiment(
    "samples",
    "the output of a sample does not depend on other samples",
    "outputs depend on other samples, which some models mean",
)
MIXED_SAMPLES = Experiment("mixed_samples", "a sample does not change the outputs of all others")
PADDING = Experiment("padding", "masked padding does not change outputs", "masked padding changes outputs")
PADDING_LOSS = Experiment(
    "padding_loss", "masked padding does not contribute to the loss", "masked padding contributes to the loss"
)
PADDED = Experiment("padded", "padding that one computation leaves out does not change outputs for other tokens")
LATER_TOKENS = Experiment(
    "later_tokens",
    "a later token does not change an earlier output",
    "outputs depend on later tokens, which encoders mean",
)
NEXT_TOKEN = Experiment("next_token", "the target of an output is the token after the last one that it depends on")

EXPERIMENTS = {
    experiment.name: experiment
    for experiment in (
        ALGORITHM, DERIVATIVE, ACCUMULATION, RECOMPUTATION, ROUND_TRIP, SAMPLES, PADDING, PADDING_LOSS, LATER_TOKENS,
        MIXED_SAMPLES, NEXT_TOKEN, PADDED,
    )
}  # fmt: skip
"""All experiments, by name."""

WRONG = "wrong"
"""The verdict where an experiment disagreed whose assertion holds for every program."""
NOT_TRUE_HERE = "does not hold"
"""The verdict where an experiment disagreed whose assertion does not hold for every program."""


@dataclass(frozen=True, slots=True)
class VerifiedComputation:
    """The results of one experiment (or of one part of replayed steps) about one subject, a model or an optimizer.

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
        return AGREES if self.agreed else UNDECIDED
