"""The measures of a study, by numbers that can be worked out by hand; and what a plan says."""

from __future__ import annotations

import json
import math

import pytest
import torch

from traincheck.errors import BadOption
from traincheck.sdc.faults.fault import Fault
from traincheck.sdc.study.mismatch import Distance, Mismatch, plain, worst
from traincheck.sdc.study.plan import LEVELS, Plan, launcher_rank, levels_of, read_plan


def test_frequency_and_severity() -> None:
    mismatch = Mismatch()
    assert not mismatch.add(torch.ones(6), torch.ones(6))
    assert mismatch.add(torch.tensor([1.0, 2.0, 4.0, 0.0]), torch.tensor([1.0, 3.0, 3.0, 7.0]))
    assert (mismatch.elements, mismatch.different, mismatch.rated) == (10, 3, 2)
    assert mismatch.frequency == 0.3 and mismatch.severity == pytest.approx((0.5 + 0.25) / 2) and mismatch.worst == 0.5
    assert Mismatch().frequency == 0 == Mismatch().severity


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_one_bit_is_a_difference_in_every_type(dtype: torch.dtype) -> None:
    right = torch.ones(3, dtype=dtype)
    mismatch = Mismatch()
    assert mismatch.add(right, torch.tensor([1, 1 + torch.finfo(dtype).eps, 1], dtype=dtype))
    assert mismatch.different == 1 and mismatch.severity == pytest.approx(torch.finfo(dtype).eps)
    assert Mismatch().add(torch.zeros(1, dtype=dtype), -torch.zeros(1, dtype=dtype))


def test_non_finite_values_are_counted_and_not_averaged() -> None:
    mismatch = Mismatch()
    mismatch.add(torch.tensor([1.0, 1.0, 1.0, math.inf]), torch.tensor([math.nan, math.inf, 1.5, 1.0]))
    assert (mismatch.different, mismatch.broken, mismatch.rated, mismatch.severity) == (4, 2, 1, 0.5)
    same = torch.tensor([math.nan, math.inf])
    assert not Mismatch().add(same, same.clone())


def test_other_types_and_layouts() -> None:
    mismatch = Mismatch()
    assert mismatch.add(torch.arange(6).view(2, 3).T, torch.arange(6).view(2, 3).T + torch.eye(3, 2).long())
    assert (mismatch.elements, mismatch.different, mismatch.severity) == (6, 2, 0)
    assert Mismatch().add(torch.tensor([True, False]), torch.tensor([True, True]))
    assert Mismatch().add(torch.tensor([1 + 1j]), torch.tensor([1 + 2j]))
    assert not Mismatch().add(torch.zeros(0), torch.zeros(0))


def test_noise_to_signal() -> None:
    distance = Distance()
    assert distance.add(torch.tensor([3.0, 4.0]), torch.tensor([3.0, 4.5])) == pytest.approx(0.1)
    assert distance.add(torch.zeros(2), torch.zeros(2)) == 0
    assert distance.absolute == pytest.approx(0.5) and distance.relative == pytest.approx(0.1)
    assert Distance().add(torch.zeros(1), torch.ones(1)) == math.inf
    lost = torch.tensor([math.nan, math.inf, 1.0])
    assert Distance().add(lost, lost.clone()) == 0 and math.isnan(Distance().add(torch.ones(3), lost))
    assert worst([0.5, math.nan, 2.0]) == math.inf and worst([]) == 0 and worst([0.5, 0.25]) == 0.5


def test_json_has_no_numbers_that_are_not_finite() -> None:
    assert json.loads(json.dumps(plain({"a": [1.5, math.nan], "b": (math.inf, "x", 3)}), allow_nan=False)) == {
        "a": [1.5, None],
        "b": [None, "x", 3],
    }


def test_a_plan_travels_as_json() -> None:
    plan = Plan("decoder-tiny", 3, levels=["step"], faults=(Fault("intermittent", stride=4, zeros=0.25, burst=(1, 4)),))
    assert read_plan(json.loads(json.dumps(plan.data()))) == plan


def test_levels_and_launchers() -> None:
    assert levels_of(()) == LEVELS and levels_of(("3", "submodule")) == ("submodule", "period")
    with pytest.raises(BadOption, match="--level was given '4'; expected 1 "):
        levels_of(("4",))
    assert launcher_rank({}) is None and launcher_rank({"RANK": "1", "WORLD_SIZE": "2"}) == 1
    with pytest.raises(BadOption, match="'8 processes'; expected two"):
        launcher_rank({"RANK": "1", "WORLD_SIZE": "8"})
