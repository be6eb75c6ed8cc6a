"""What a program does in every good run: the order of its calls, the course of the rate, and whether batches repeat."""

from __future__ import annotations

import json
import math

import pytest

from traincheck.relations.consistent.call_order import CallOrder
from traincheck.relations.consistent.rate_course import RateCourse
from traincheck.relations.consistent.repeated_batches import RepeatedBatches
from traincheck.relations.consistent.repeated_keys import RepeatedKeys
from traincheck.testing.readable_traces import from_text
from traincheck.vocab.events import END, NO_CALL, Reading, Window
from traincheck.vocab.occasion import Subject

CLEAR = "lifecycle torch.optim.Adam.zero_grad < torch.optim.Optimizer.zero_grad receiver=Adam"
BACKWARD = "lifecycle torch.autograd.backward"
STEP = "lifecycle torch.optim.Adam.step < torch.optim.Optimizer.step receiver=Adam"


def windows(*lines_of_windows: str) -> list[Window]:
    """Windows of consecutive training steps, each with these calls."""
    return from_text("\n".join(f"window train step={step}\n{lines}" for step, lines in enumerate(lines_of_windows, 1)))


def pairs(part: CallOrder, window: Window) -> list[str]:
    return [prop.detail for occasion in part.occasions(window) for prop in occasion.held]


def test_pairs_go_on_from_window_to_window() -> None:
    part = CallOrder()
    step = f"  {CLEAR}\n  {BACKWARD}\n  {STEP}\n"
    first, second = windows(step, step)
    inside = ["Optimizer.zero_grad, then backward", "backward, then Optimizer.step"]
    assert pairs(part, first) == ["the start, then Optimizer.zero_grad", *inside]
    between = ["Optimizer.step, then Optimizer.zero_grad", "Optimizer.step after one backward"]
    assert pairs(part, second) == [*between, *inside]


def test_after_a_gap_no_pair_is_made_up() -> None:
    part = CallOrder()
    first, second = windows(f"  {BACKWARD}\n", f"  {STEP}\n  {CLEAR}\n")
    pairs(part, first)
    part.forget()
    assert pairs(part, second) == ["Optimizer.step, then Optimizer.zero_grad"]


def test_an_update_says_whether_it_follows_several_backwards() -> None:
    part = CallOrder()
    several, one, end = windows(
        f"  {BACKWARD}\n  {BACKWARD}\n  {STEP}\n", f"  {BACKWARD}\n  {STEP}\n", f"  {BACKWARD}\n"
    )
    assert not [line for line in pairs(part, several) if "after" in line]
    assert "Optimizer.step after several backwards" in pairs(part, one)
    assert "Optimizer.step after one backward" in pairs(part, end)


def test_nothing_is_said_of_the_last_call_before_a_pass() -> None:
    """Where the end of a pass is, in an accumulation or after it, depends on the batch size."""
    part = CallOrder()
    iterate = "lifecycle torch.utils.data.DataLoader.__iter__ receiver=DataLoader#1"
    whole, ragged = windows(f"  {BACKWARD}\n  {BACKWARD}\n  {STEP}\n", f"  {iterate}\n  {BACKWARD}\n  {iterate}\n")
    pairs(part, whole)
    assert pairs(part, ragged) == ["DataLoader.__iter__, then backward"]


def test_calls_inside_another_one_are_left_out() -> None:
    (window,) = windows(f"  {STEP}\n    {CLEAR}\n    {BACKWARD}\n  {CLEAR}\n")
    assert pairs(CallOrder(), window) == [
        "the start, then Optimizer.step",
        "Optimizer.step, then Optimizer.zero_grad",
    ]


def test_compiled_code_may_have_made_any_call() -> None:
    (window,) = windows(f"  {BACKWARD}\n  region torch.compile\n  {CLEAR}\n  {BACKWARD}\n")
    assert pairs(CallOrder(), window) == ["the start, then backward", "Optimizer.zero_grad, then backward"]


def test_forwards_count_in_training_mode_only() -> None:
    forward = "module Net.forward < torch.nn.Module.forward receiver=Net#2 context="
    modes = [("on", True), ("off", True), ("on", False)]
    contexts = [{"grad_mode": mode, "outermost": True, "parametric": True, "training": flag} for mode, flag in modes]
    lines = [forward + json.dumps(context) for context in contexts]
    (window,) = windows("".join(f"  {line}\n" for line in lines))
    assert pairs(CallOrder(), window) == [
        "the start, then forward",
        "forward, then forward without gradients",
    ]


def test_a_rate_rises_falls_stays_or_is_zero() -> None:
    part = RateCourse()
    rates = (0.1, 0.2, None, 0.1, 0.1 + 1e-17, 0.0)
    lines = [
        f"  {STEP}\n" + ("" if rate is None else f"    reading hyperparameter.lr Adam.param_groups[0] {rate}\n")
        for rate in rates
    ]
    found = [[prop.detail for o in part.occasions(window) for prop in o.held] for window in windows(*lines)]
    assert found == [
        [],
        ["the rate rises"],
        ["the rate stays"],
        ["the rate falls"],
        ["the rate stays"],
        ["the rate is zero"],
    ]
    part.forget()
    assert list(part.occasions(windows(lines[0])[0])) == []


def ends_of(rates: list[float], *, role: str = "live", gap: bool = False) -> dict[str, str]:
    """How the course of a rate ends in a run with these updates, by the grain of the subject."""
    part = RateCourse()
    for window in windows(
        *(f"  {STEP}\n    reading hyperparameter.lr Adam.param_groups[0] {rate}\n" for rate in rates)
    ):
        list(part.occasions(window))
    if gap:
        part.forget()
    end = Reading(0, NO_CALL, "run", "run", "steps", len(rates), role)
    occasions = part.occasions(Window(len(rates), len(rates), END, readings=(end,)))
    return {occasion.subject.grain: prop.detail for occasion in occasions for prop in occasion.held}


@pytest.mark.parametrize(
    ("rates", "changes"),
    [
        ([0.0, 0.1, 0.2, 0.2], "rises"),
        ([0.2, 0.2, 0.2, 0.2], "never changes"),
        ([0.1, 0.2, 0.1, 0.0], "falls and rises"),
        ([0.2, 0.1, 0.1 - 1e-17, 0.1], "falls"),
    ],
)
def test_what_a_rate_does_at_some_time_of_the_run(rates: list[float], changes: str) -> None:
    assert ends_of(rates)["whole course of param_groups[0] over 4 updates"] == f"the rate {changes}"


LINEAR = [0.1 * (1 - step / 10) for step in range(10)]
COSINE = [0.1 * (1 + math.cos(math.pi * step / 10)) / 2 for step in range(10)]


def test_which_share_of_the_highest_rate_is_left_at_the_end() -> None:
    ends = ends_of([0.1, 0.2, 0.2, 0.1, 0.05])
    assert ends["end of the course of param_groups[0] after 5 updates"] == "the rate ends at 0.25 of its highest value"
    assert RateCourse.speaks_of(Subject("hyperparameter.lr", next(iter(ends))))


@pytest.mark.parametrize(
    ("rates", "reaches"),
    [
        (LINEAR, True),
        (COSINE, True),
        (LINEAR[:-2], True),  # the program computed a length that is off by two updates
        ([*COSINE, *COSINE[:-4:-1]], True),
        (LINEAR[:5], False),
        (COSINE[:4], False),
        ([0.1] * 10, False),
        ([0.1 * 0.9**step for step in range(100)], False),
        ([0.1 * 0.1 ** (step // 3) for step in range(9)], False),
        ([0.1, 0.05], False),
    ],
)
def test_whether_a_rate_falls_to_zero(rates: list[float], reaches: bool) -> None:
    how = {text for grain, text in ends_of(rates).items() if " in runs of " in grain}
    assert how == {f"the rate {'falls' if reaches else 'does not fall'} to about zero"}


def test_a_run_that_was_interrupted_or_seen_in_part_has_no_end() -> None:
    assert ends_of(LINEAR, role="partial") == {}
    assert ends_of(LINEAR, gap=True) == {}


def test_batches_repeat_within_a_pass_or_from_pass_to_pass() -> None:
    part = RepeatedBatches()
    iterate = "  lifecycle torch.utils.data.DataLoader.__iter__ receiver=DataLoader#1\n"
    forward = "  module Net.forward < torch.nn.Module.forward receiver=Net\n    reading module.content Net {}\n"
    steps = [iterate + forward.format(1), forward.format(2), forward.format(2), forward.format(1)]
    steps += [iterate + forward.format(2), forward.format(9)]
    found = [(o.subject.grain, prop.detail) for w in windows(*steps) for o in part.occasions(w) for prop in o.held]
    first, later = "batches of the first pass of Net", "batches of later passes of Net"
    assert found == [
        (first, "the batch is new"),
        (first, "the batch is new"),
        (first, "the batch is the last one again"),
        (first, "the batch is an earlier one again"),
        (later, "the batch is one of the last pass"),
        (later, "the batch is new"),
    ]
    part.forget()
    assert list(part.occasions(windows(*steps)[0])) == []  # a batch may have come in the gap


def test_random_keys_repeat_or_not() -> None:
    part = RepeatedKeys()
    update = "  lifecycle jax.update < torch.optim.Optimizer.step receiver=step\n    reading random.key step({}) {}\n"
    steps = [update.format(*key) for key in (("key", 1), ("key", 2), ("key", 2), ("rngs", 2), ("key", 1))]
    found = [(o.subject.grain, prop.detail) for w in windows(*steps) for o in part.occasions(w) for prop in o.held]
    assert found == [
        ("keys of step(key)", "the key is new"),
        ("keys of step(key)", "the key is new"),
        ("keys of step(key)", "the key is the last one again"),
        ("keys of step(rngs)", "the key is new"),
        ("keys of step(key)", "the key is an earlier one again"),
    ]
    part.forget()
    assert list(part.occasions(windows(*steps)[0])) == []  # a key may have been used in the gap
