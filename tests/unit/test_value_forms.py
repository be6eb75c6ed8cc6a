"""What the values of a function's tensors have in common: sums, masks, equal tensors, before and after an update."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from observed_process import observing
from traincheck.relations.consistent.value_forms import QUANTITY, ValueForms
from traincheck.sources.tensors.deferred_values import simulated_accelerator
from traincheck.vocab.demand import FAILS, HOLDS, Demand
from traincheck.vocab.events import TRAIN, Reading, Window
from traincheck.vocab.occasion import Property, Subject
from traincheck.vocab.properties import VALUES_ARE

REWARDS = torch.tensor([1.0, 0.0, 3.0, 2.0, 5.0, 5.0, 0.0, 1.0, 2.0, 2.0, 7.0, 0.0])


def judge(first: Any, second: Any = None) -> Any:
    return second


DEMAND = Demand.of_calls(f"{__name__}.judge") | Demand.of_readings(QUANTITY)


def descriptions(calls: Callable[[], object]) -> list[list[str]]:
    """The lines about each call of `judge`, the function first."""
    with observing(DEMAND) as seen:
        calls()
    assert seen.faults == []
    return [str(reading.value).split("\n") for reading in seen.readings if reading.kind == "values"]


def lines(first: Any, second: Any = None) -> set[str]:
    """The lines about one call."""
    described = descriptions(lambda: judge(first, second))
    return set(described[0][1:]) if described else set()


def groups(rewards: torch.Tensor, size: int) -> torch.Tensor:
    return (rewards.view(-1, size) - rewards.view(-1, size).mean(1, keepdim=True)).reshape(-1)


def test_advantages_sum_to_zero_in_groups() -> None:
    assert f"{HOLDS}first sums to zero in groups" in lines(groups(REWARDS, 4))
    whole = lines(groups(REWARDS, 12))
    assert {f"{HOLDS}first sums to zero", f"{FAILS}first sums to zero in groups"} <= whole
    assert {f"{FAILS}first sums to zero", f"{FAILS}first sums to zero in groups"} <= lines(REWARDS)
    rows = lines(groups(REWARDS, 4).view(3, 4))
    assert f"{HOLDS}first sums to zero in groups" in rows


@pytest.mark.parametrize("values", [torch.zeros(12), torch.full((12,), torch.nan), torch.ones(3)])
def test_values_without_a_form_say_nothing(values: torch.Tensor) -> None:
    assert not any("sums to zero" in line for line in lines(values))


def test_equal_tensors_differ_by_rounding_only() -> None:
    noise = torch.linspace(0, 1e-6, 12)
    assert f"{HOLDS}first equals second" in lines(REWARDS, REWARDS + noise)
    apart = lines(REWARDS, REWARDS + 1e4 * noise)
    assert {f"{FAILS}first equals second", f"{HOLDS}first differs from second"} <= apart
    assert not any("equals" in line or "differs" in line for line in lines(REWARDS, REWARDS + 2e3 * noise))
    assert not any("equals" in line for line in lines(REWARDS.sign(), REWARDS.sign()))  # masks may be equal by chance


def test_a_mask_has_as_many_ones_as_there_are_samples() -> None:
    mask = torch.tensor([[0, 0, 1, 1, 1], [0, 0, 1, 0, 0]])
    sampled = torch.tensor([[-1.0, -2.0, -1.5], [-0.5, 0.0, 0.0]])
    line = "first has as many nonzero elements in each row as second"
    assert {f"{HOLDS}first is zero or one"} <= lines(mask)
    assert not any("as many" in line for line in lines(mask, sampled))  # fewer than eight elements
    assert f"{HOLDS}{line}" in lines(mask.repeat(3, 1), sampled.repeat(3, 1))
    assert f"{FAILS}{line}" in lines((mask | mask.roll(-1, 1)).repeat(3, 1), sampled.repeat(3, 1))


def test_a_number_is_the_sum_of_a_mask() -> None:
    mask = torch.tensor([0.0, 1, 1, 0, 1, 0, 0, 0])
    assert f"{HOLDS}first is the sum of second" in lines(mask.sum(), mask)
    assert f"{FAILS}first is the sum of second" in lines(mask.sum() + 1, mask)
    assert not any("sum of" in line for line in lines(REWARDS.sum(), REWARDS))


def test_values_on_an_accelerator_have_the_same_lines() -> None:
    arguments = groups(REWARDS, 4), REWARDS.sign()
    expected = lines(*arguments)
    with simulated_accelerator():
        assert lines(*arguments) == expected


def test_calls_before_an_update_are_described_separately() -> None:
    def train() -> None:
        policy = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
        inputs = torch.arange(24.0).view(8, 3)
        for _ in range(2):
            with torch.no_grad():
                old = policy(inputs)
            for _ in range(2):
                new = policy(inputs)
                judge(new, old)
                optimizer.zero_grad()
                new.square().mean().backward()
                optimizer.step()

    described = descriptions(train)
    assert [each[0].removeprefix(f"{__name__}.") for each in described] == ["judge, before an update", "judge"] * 2
    for before, after in (described[:2], described[2:]):
        assert f"{HOLDS}first equals second" in before
        assert f"{HOLDS}first differs from second" in after


def test_a_marked_tensor_is_described() -> None:
    take: list[Any] = []
    with observing(Demand.of_readings(QUANTITY), connect_marks=take.append) as seen:
        take[0]("advantages", groups(REWARDS, 4), False)
        take[0]("reward", 1.5, False)
    assert seen.faults == [] and take[1:] == [None]
    (description,) = [str(reading.value).split("\n") for reading in seen.readings if reading.kind == "values"]
    assert description[0] == "mark advantages"
    assert f"{HOLDS}advantages sums to zero in groups" in description
    subject = Subject(QUANTITY, description[0])
    prop = Property(VALUES_ARE, "advantages", "sums to zero")
    assert ValueForms.describe(subject, prop) == "in the mark advantages, advantages sums to zero"
    assert ValueForms.needs(subject, prop) == Demand.of_readings(QUANTITY)


def test_an_occasion_judges_only_the_lines_of_its_description() -> None:
    text = f"rl.loss, before an update\n{HOLDS}ratio is one everywhere\n{FAILS}advantages sums to zero"
    reading = Reading(3, 2, "rl.loss", "values", "form", text)
    (occasion,) = ValueForms().occasions(Window(0, 1, TRAIN, readings=(reading,)))
    assert occasion.subject == Subject(QUANTITY, "rl.loss, before an update")
    assert occasion.held == {Property(VALUES_ARE, "ratio", "is one everywhere")}
    assert occasion.failed == {Property(VALUES_ARE, "advantages", "sums to zero")}
    (held,) = occasion.held
    assert ValueForms.describe(occasion.subject, held) == (
        "in calls of rl.loss after a rollout and before an update, ratio is one everywhere"
    )
    assert ValueForms.needs(occasion.subject, held).records_call(("rl.loss",))
