"""Which steps of a run are verified by which experiments."""

from __future__ import annotations

import pytest

from traincheck.sources.verification.verified_steps import FIRST_STEP, TURNS, TURNS_FROM, Turn, VerifiedSteps


@pytest.mark.parametrize("every", [1, 2, 5, TURNS_FROM - 1])
def test_short_intervals_have_all_experiments_in_each_verified_step(every: int) -> None:
    steps = VerifiedSteps(every)
    for step in range(3 * every + 3):
        expected = step == FIRST_STEP or (step > 0 and step % every == 0)
        assert [steps.includes(step, turn) for turn in (None, *Turn)] == [expected] * (TURNS + 1)


@pytest.mark.parametrize("every", [TURNS_FROM, 100, 201])
def test_experiments_take_turns_at_long_intervals(every: int) -> None:
    steps = VerifiedSteps(every)
    assert all(steps.includes(FIRST_STEP, turn) for turn in Turn)
    verified = [step for step in range(1, 7 * every) if steps.includes(step) and step != FIRST_STEP]
    assert verified == [every * number for number in range(1, 7)]
    turns = [[turn for turn in Turn if steps.includes(step, turn)] for step in verified]
    assert turns == [[turn] for turn in Turn] * 2
