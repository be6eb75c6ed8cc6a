"""Kinds of differences between two runs, and verdicts on the operations that both have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from traincheck.vocab.operations import Operation, Sketch

DATA, RANDOM, INITIALISATION, CODE, GRADIENTS, NUMBERS = KINDS = (
    "data",
    "random state",
    "initial weights",
    "other operations",
    "gradients",
    "numbers",
)
"""Kinds of origins. *Other operations*: the runs execute different operations, or with different settings. *Gradients*:
the backwards are equal, and the gradients that an optimizer gets are not. *Numbers*: all else."""

SAME, ROUNDING, ORIGIN, VICTIM = "same", "rounding", "origin", "victim"
"""Verdicts on an operation that both runs have. A comparison is *same* or *rounding* as well."""

DIFFERENT = "different"
"""The result of a comparison with an origin."""

ROUNDED = 1e-4
"""Explained differences up to this one count as rounding, others as victims."""

ANOTHER = 0.1
"""Inputs that are farther apart than this are other values, and not the same with rounding."""


class Judged(NamedTuple):
    """The verdict on a pair of operations, and the relative distances of their inputs and results."""

    verdict: str
    inputs: float
    results: float


@dataclass(frozen=True)
class Difference:
    """An operation (or the begin of a stretch of different operations) with other results in the two runs.

    `inputs` and `results` are relative distances. `a` and `b` are the operation in each run, None where a run lacks it;
    `others_a` and `others_b` are all operations of a stretch.
    """

    step: int
    kind: str
    inputs: float
    results: float
    a: Operation | None
    b: Operation | None
    values: tuple[Sketch, Sketch] | None = None
    others_a: tuple[Operation, ...] = ()
    others_b: tuple[Operation, ...] = ()

    @property
    def operation(self) -> Operation:
        """The operation in the first run that has it."""
        found = self.a or self.b
        assert found is not None
        return found
