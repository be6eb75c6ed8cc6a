"""Readings about a step that was executed again: their kind is `KIND`, their attribute a part of the step, their value
the result.
"""

from __future__ import annotations

from traincheck.vocab.demand import COMPUTATION

KIND = COMPUTATION

FORWARD, BACKWARD, UPDATE = PARTS = ("forward", "backward", "update")
ELSEWHERE = "elsewhere"
"""In place of a part: another rank executed the step. The value is `SAME` or `DIFFERS`."""

SAME, TRANSIENT, PERSISTENT, UNDECIDED = "same", "transient", "persistent", "undecided"
DIFFERS = "differs"
