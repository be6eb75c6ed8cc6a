"""Tests that a rule of one program about calls counts if it fails twice in a row, and at once in the first windows."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sample_windows import Script
from traincheck.checking.engine import Engine
from traincheck.relations.event_contain.relation import WITHIN
from traincheck.vocab.invariant import GENERAL, PIPELINE, Invariant
from traincheck.vocab.occasion import Property, Subject

MASKS = Property("contains call", "torch.Tensor.expand")
FORWARD = Subject("model.Net.forward", WITHIN)


def steps_of_violations(new_invariant: Callable[..., Invariant], scope: str, without: set[int]) -> list[int]:
    """The steps that a check reports, and reports last, if the forward makes no mask in some of 20 steps."""
    script = Script()
    for step in range(1, 21):
        call = script.window().call("model.Net.forward")
        script.call("torch.Tensor.ones" if step in without else "torch.Tensor.expand", inside=call)
    rule = new_invariant(MASKS, subject=FORWARD, scope=scope)
    engine = Engine((rule,))
    found = [violation.step for window in script.windows for violation in engine.feed(window)]
    assert engine.outcome.tried[rule.id].failed == len(found)
    return found


@pytest.mark.parametrize(
    ("scope", "without", "found"),
    [
        (PIPELINE, {15}, []),
        (PIPELINE, {15, 17}, []),
        (PIPELINE, {15, 16}, [15, 16]),
        (PIPELINE, {20}, []),
        (PIPELINE, {3}, [3]),
        (GENERAL, {15}, [15]),
    ],
)
def test_a_failure_that_passes_does_not_count(
    new_invariant: Callable[..., Invariant], scope: str, without: set[int], found: list[int]
) -> None:
    assert steps_of_violations(new_invariant, scope, without) == found
