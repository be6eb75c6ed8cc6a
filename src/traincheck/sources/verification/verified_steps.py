"""Which steps of a run are verified, and by which experiments.

Note [Turns]
A step with all experiments costs as much as ten or more plain ones. Whoever verifies one step of a few wants thorough
results soon, and gets them all in each such step. One of many is a guard on a long run, which has to cost little: there
the experiments take turns, so that a verified step costs as much as about four, and each experiment has `TURNS` times
the interval.
"""

from __future__ import annotations

from enum import IntEnum

FIRST_STEP = 2
"""This step is always verified: a first step builds optimizer state and compiles. A run of any length has a result."""

TURNS_FROM = 20
"""From this interval on, experiments take turns."""


class Turn(IntEnum):
    """The experiments that verify the same steps where they take turns."""

    REPLAY = 0
    DERIVATIVE = 1
    OTHERS = 2


TURNS = len(Turn)


class VerifiedSteps:
    """One of `every` steps, the same on all ranks, and the step `FIRST_STEP`. See Note [Turns]."""

    def __init__(self, every: int) -> None:
        self.every = every

    def includes(self, step: int, turn: Turn | None = None) -> bool:
        """Whether the step of this number is verified, by the experiments of `turn` if given."""
        if step == FIRST_STEP:
            return True
        number, rest = divmod(step, self.every)
        if rest or number < 1:
            return False
        return turn is None or self.every < TURNS_FROM or (number - 1) % TURNS == turn
