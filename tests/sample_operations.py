"""Operations of a small network as a run of one rank records them, without torch."""

from __future__ import annotations

import math
from collections.abc import Sequence

from traincheck.comparison.run_comparison import CommonStep, Comparison, compare_steps, in_one_layout
from traincheck.vocab.operations import (
    BACKWARD,
    BEFORE,
    FORWARD,
    GRADIENT,
    INPUT,
    PARAMETER,
    ROOTS,
    SUM,
    UPDATE,
    Operation,
    Sketch,
    StepOperations,
    packed,
)

SITE = "train.py:7:Block.forward"


class Step:
    """Collects the values and operations of a step. `error` is the relative error of the next values."""

    def __init__(self) -> None:
        self.values: list[Sketch] = []
        self.operations: list[Operation] = []
        self.error = 0.0

    def add(
        self,
        phase: str,
        name: str,
        module: str = "",
        inputs: tuple[int, ...] = (),
        *,
        settings: str = "",
        shape: tuple[int, ...] = (4, 8),
        site: str = SITE,
        norm: float = 2.0,
    ) -> int:
        """Add an operation with one result, and return the number of its value."""
        number = len(self.values)
        size = math.prod(shape)
        scale = norm * (1 + self.error)
        projections = packed([scale if each % 2 else -scale for each in range(8)])
        self.values.append(
            Sketch(
                "float32", shape, hash((number, self.error)), scale, scale, projections, packed([scale] * min(size, 3))
            )
        )
        self.operations.append(Operation(phase, name, module, site, settings, inputs, (number,)))
        return number

    def recorded(self, step: int) -> StepOperations:
        """The step."""
        return StepOperations(step, tuple(self.values), tuple(self.operations))


def network_step(
    number: int = 1,
    *,
    blocks: int = 3,
    each: int = 4,
    error: float = 0.0,
    begins_in: int = 0,
    settings: str = "1.0",
    site: str = SITE,
    root: str = "Net",
) -> StepOperations:
    """A step of blocks with `each` multiplications, a loss, its backward and an update.

    From the first operation of block `begins_in` on, all results have this relative error.
    """
    step = Step()
    x = step.add(BEFORE, INPUT, "input 1", settings="float32", site=site)
    weights = [step.add(BEFORE, PARAMETER, f"{root}.blocks.{block}.weight", site="") for block in range(blocks)]
    forward = []
    for block in range(blocks):
        for index in range(each):
            if block == begins_in and not index:
                step.error = error
            own = settings if block == begins_in and not index else "1.0"
            x = step.add(FORWARD, "mul", f"{root}.blocks.{block}", (x, weights[block]), settings=own, site=site)
            forward.append(x)
    loss = step.add(FORWARD, "mean", "", (x,), shape=(), site=site)
    step.operations.append(Operation(BACKWARD, ROOTS, "", site, "", (loss,)))
    gradient = step.add(BACKWARD, SUM, shape=(), site="")
    gradient = step.add(BACKWARD, "MeanBackward0", "", (gradient, x, loss), site=site)
    for block in reversed(range(blocks)):
        inputs = (gradient, forward[block * each])
        gradient = step.add(BACKWARD, "MulBackward0", f"{root}.blocks.{block}", inputs, site=site)
    for phase, name in ((GRADIENT, "gradient"), (UPDATE, "SGD.step")):
        for block in range(blocks):
            step.add(phase, name, f"{root}.blocks.{block}.weight", (gradient,), settings="lr=0.1", site="")
    return step.recorded(number)


def compared(a: Sequence[StepOperations], b: Sequence[StepOperations]) -> tuple[Comparison, list[CommonStep]]:
    """Compare two runs of one rank; the comparison, and their common steps."""
    ranks = [(step,) for step in a], [(step,) for step in b]
    return compare_steps(*ranks), list(in_one_layout(zip(*ranks, strict=True)))
