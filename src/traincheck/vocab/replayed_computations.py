"""Computations: what is told of a step that was executed again, as a reading of the kind `KIND`. Its attribute is the
part of the step, its value what came of it."""

from __future__ import annotations

from traincheck.vocab.demand import COMPUTATION

KIND = COMPUTATION

FORWARD, BACKWARD, UPDATE = PARTS = ("forward", "backward", "update")
ELSEWHERE = "elsewhere"
"""In place of a part: executed by another rank. The value is `SAME` or `DIFFERS`."""

SAME, TRANSIENT, PERSISTENT, UNDECIDED = "same", "transient", "persistent", "undecided"
DIFFERS = "differs"
