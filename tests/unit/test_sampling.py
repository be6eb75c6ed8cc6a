"""Sampling as it is changed on the way, and the budget that widens its interval. No test looks at a real clock."""

from __future__ import annotations

import itertools

import pytest

from traincheck.errors import BadOption
from traincheck.runtime.recording.overhead_budget import IN_DEBT, WIDEST, Budget
from traincheck.runtime.recording.sampling import BURST, RARE_EVENTS, Sampling, in_sample
from traincheck.vocab.events import EVAL, SETUP, TRAIN


def test_all_steps_are_watched_by_default() -> None:
    sampling = Sampling()
    assert sampling.interval == 1 and all(map(sampling.watches, range(1, 100)))


def test_a_new_interval_holds_from_the_next_step_on() -> None:
    sampling = Sampling(warm_up=0)
    sampling.set(interval=7)
    assert sampling.interval == 7
    assert [sampling.watches(step) for step in range(1, 50)] == [in_sample(step, 7) for step in range(1, 50)]
    sampling.set(interval=1)
    assert sampling.watches(50)


def test_closer_watches_each_of_the_next_steps() -> None:
    sampling = Sampling(1000, warm_up=0)
    far = next(step for step in range(10, 5000) if not any(in_sample(near, 1000) for near in range(step, step + 12)))
    assert not sampling.watches(far)
    sampling.closer(3)
    assert [sampling.watches(step) for step in range(far + 1, far + 6)] == [True, True, True, False, False]
    sampling.closer(1)
    sampling.closer(2)  # the longer of two holds
    assert [sampling.watches(step) for step in range(far + 6, far + 9)] == [True, True, False]


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"interval": 0}, "interval"),
        ({"budget": 1.0}, "budget"),
        ({"budget": -0.1}, "budget"),
        ({"budget": float("nan")}, "budget"),
    ],
)
def test_meaningless_options_are_refused(given: dict[str, float], named: str) -> None:
    sampling = Sampling(5)
    with pytest.raises(BadOption, match=f"{named} was given"):
        sampling.set(**given)  # type: ignore[arg-type]
    with pytest.raises(BadOption, match=f"{named} was given"):
        Sampling(**given)  # type: ignore[arg-type]
    assert sampling.interval == 5
    with pytest.raises(BadOption, match="steps"):
        sampling.closer(0)
    with pytest.raises(BadOption, match="warm_up"):
        Sampling(warm_up=-1)


# -- the budget --------------------------------------------------------------------------------------------------------


def train(budget: Budget | Sampling, steps: int, plain: float, ours: float, watched: bool = True) -> None:
    for _ in range(steps):
        budget.took(TRAIN, watched, plain + ours * watched, ours * watched)


def test_until_something_was_measured_only_the_first_steps_are_watched() -> None:
    sampling = Sampling(budget=0.01, warm_up=4)
    sampling.took(SETUP, True, 10.0, 1.0)
    assert sampling.interval == WIDEST
    assert [sampling.watches(step) for step in range(1, 8)] == [True] * 4 + [False] * 3


@pytest.mark.parametrize(("share", "expected"), [(0.01, 30), (0.005, 60), (0.1, 3), (0.3, 1), (0.9, 1)])
def test_the_interval_is_the_smallest_that_keeps_to_the_share(share: float, expected: int) -> None:
    budget = Budget(share)
    train(budget, 20, plain=0.1, ours=0.03)
    assert budget.interval == expected


def test_occasional_slow_steps_do_not_count() -> None:
    budget = Budget(0.01)
    for number in range(40):
        slow = 50.0 if number % 4 == 0 else 0.0
        budget.took(TRAIN, True, 0.101 + slow, 0.001 + slow / 10)
    assert budget.interval == 1


@pytest.mark.parametrize("row", [1, 2, 5, 40])
def test_the_background_thread_counts_as_ours_for_batches(row: int) -> None:
    windows = itertools.count(1)

    def background() -> tuple[float, int]:
        done = next(windows) // row * row
        return 0.002 * done, done

    budget = Budget(0.01, background=background)
    train(budget, 20, plain=0.1, ours=0.001)
    assert budget.interval == (3 if row < 20 else 1)  # none of the last is done yet
    train(budget, 40, plain=0.1, ours=0.001)
    assert budget.interval == 3


def test_it_adapts_when_the_program_changes() -> None:
    budget = Budget(0.01)
    train(budget, 20, plain=0.1, ours=0.01)
    assert budget.interval == 10
    train(budget, 20, plain=0.1, ours=0.04)
    assert budget.interval == 40  # at once
    train(budget, 9, plain=0.1, ours=0.01)
    assert 10 < budget.interval <= 40  # and back step by step
    train(budget, 60, plain=0.1, ours=0.01)
    assert budget.interval == 10
    train(budget, 60, plain=1.0, ours=0.0, watched=False)  # steps have become longer
    assert budget.interval == 1


def test_it_is_bounded() -> None:
    budget = Budget(0.001)
    train(budget, 5, plain=0.0, ours=1.0)
    assert budget.interval == WIDEST
    train(budget, 40, plain=1e-9, ours=1.0)
    assert budget.interval == WIDEST


def test_waiting_for_an_accelerator_is_not_all_overhead() -> None:
    """TrainCheck's work takes 80 ms of a step, nearly all of it waiting for the program's computation."""
    budget = Budget(0.01, waits=True)
    for _ in range(10):
        budget.took(TRAIN, True, 0.105, 0.080)
    assert budget.interval == 320  # nothing to compare with yet
    for _ in range(80):
        budget.took(TRAIN, False, 0.100, 0.0)
        budget.took(TRAIN, True, 0.105, 0.010)
    assert budget.interval == 5


def test_a_difference_that_the_meter_misses_counts() -> None:
    """Observed steps are 50 ms longer, of which the meter sees 10."""
    budget = Budget(0.01)
    train(budget, 20, plain=0.1, ours=0.01)
    assert budget.interval == 10
    for number in range(60):
        budget.took(TRAIN, False, 0.1 + number % 3 * 1e-4, 0.0)
        budget.took(TRAIN, True, 0.15, 0.01)
    assert 49 <= budget.interval <= 50


def test_a_difference_within_the_noise_does_not_count() -> None:
    budget = Budget(0.01)
    for number in range(60):
        budget.took(TRAIN, False, 0.08 + number % 5 * 0.01, 0.0)
        budget.took(TRAIN, True, 0.112, 0.01)
    assert budget.interval == 10


def test_steps_after_a_gap_replace_the_first_steps() -> None:
    budget = Budget(0.01)
    train(budget, 20, plain=0.1, ours=0.01)
    train(budget, 5, plain=0.1, ours=0.0, watched=False)
    train(budget, 2, plain=0.1, ours=0.05)
    assert budget.interval == 50


@pytest.mark.parametrize("counted", [1, 50])
def test_the_share_holds_with_the_first_steps(counted: int) -> None:
    """2,000 steps of 1 ms, in which observing one takes 3 ms: the share is that of some six steps."""
    sampling = Sampling(budget=0.01, warm_up=20)
    watched, step = 0, 1
    while step <= 8000:
        observes = sampling.watches(step)
        windows = 1 if observes else max(1, min(counted, sampling.quiet_steps(step, counted)))
        sampling.took(TRAIN, observes, 0.001 + 0.003 * observes, 0.003 * observes, windows)
        watched += observes
        step += windows
        if step <= 6000 - counted:  # the first steps are not paid for yet
            assert watched <= 20 + step / (IN_DEBT * 300) + 2 * BURST
    assert 22 < watched <= 8000 / 300 + 4


def test_a_run_is_looked_at_before_its_first_steps_are_paid_for() -> None:
    """The first 200 steps cost as much as 100 steps, which is the share of 2,000: no gap is half as long."""
    sampling, last, widest = Sampling(budget=0.05, warm_up=200), 0, 0
    for step in range(1, 2000):
        observes = sampling.watches(step)
        sampling.took(TRAIN, observes, 0.01 + 0.005 * observes, 0.005 * observes)
        last, widest = (step, max(widest, step - last)) if observes else (last, widest)
    assert widest <= 2 * BURST * IN_DEBT * 10


def test_the_first_rare_events_of_each_kind_are_observed() -> None:
    sampling = Sampling(interval=10_000, warm_up=0)
    for start in range(100, 100 + 10 * RARE_EVENTS, 10):
        assert not sampling.watches(start - 1)
        assert sampling.observes_rare_event("a pass ends")
        assert [sampling.watches(start + step) for step in range(3)] == [True, True, False]
    assert not sampling.observes_rare_event("a pass ends") and not sampling.watches(500)
    assert sampling.observes_rare_event("a checkpoint") and sampling.watches(501)


def test_quiet_steps_are_not_observed() -> None:
    sampling = Sampling(interval=50, warm_up=4)
    for first in range(1, 2000):
        quiet = sampling.quiet_steps(first, 30)
        assert not any(map(sampling.watches, range(first, first + quiet)))
        assert quiet == 30 or sampling.watches(first + quiet)
    sampling.closer(2)
    assert sampling.quiet_steps(2000, 30) == 0
    assert sampling.watches(2000) and sampling.watches(2001)


def test_evaluations_have_a_cost_of_their_own() -> None:
    budget = Budget(0.01)
    train(budget, 20, plain=0.1, ours=0.001)
    assert budget.interval == 1
    budget.took(EVAL, True, 2.0, 1.0)
    assert budget.interval == 100


def test_the_larger_of_interval_and_budget_is_in_force() -> None:
    sampling = Sampling(interval=10, budget=0.01)
    train(sampling, 20, plain=0.1, ours=0.03)
    assert sampling.interval == 30
    sampling.set(interval=50)
    assert sampling.interval == 50
    sampling.set(interval=1, budget=0.1)  # what was measured is kept
    assert sampling.interval == 3
    sampling.set(budget=0)
    assert sampling.interval == 1
