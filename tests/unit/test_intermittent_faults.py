"""Intermittent defects: the shares of outcomes, periodic addresses, and inconsistent answers to equal inputs."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn

from traincheck.sdc.faults.bits import ONE_BIT, SEVERAL_BITS, STRIDES
from traincheck.sdc.faults.fault import Fault
from traincheck.sdc.faults.inject import inject

WORD = {2: torch.int16, 4: torch.int32, 8: torch.int64}
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def answers(fault: Fault, executions: int, x: torch.Tensor) -> Iterator[tuple[list[int], torch.Tensor]]:
    """Execute an operation with equal inputs, and yield the wrong elements and the result of each execution."""
    module = nn.Identity()
    before = x.view(WORD[x.element_size()])
    with inject(module, None, fault):
        for _ in range(executions):
            result = module(x)
            yield (result.view(before.dtype) != before).flatten().nonzero().flatten().tolist(), result


def wrong_values(executions: int, x: torch.Tensor, **keys: Any) -> Iterator[tuple[float, float, int]]:
    """Yield the right value, the wrong value and the number of changed bits of each wrong element."""
    for places, result in answers(Fault("intermittent", chance=1, **keys), executions, x):
        for place in places:
            right, wrong = x.flatten()[place : place + 1], result.flatten()[place : place + 1]
            (changed,) = (right.view(WORD[x.element_size()]) ^ wrong.view(WORD[x.element_size()])).tolist()
            yield right.item(), wrong.item(), (changed & ((1 << 8 * x.element_size()) - 1)).bit_count()


def values(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1)).to(dtype)


@pytest.mark.parametrize("chance", [None, 0.1, 0.9])
def test_equal_inputs_get_right_and_wrong_answers(chance: float | None) -> None:
    wrong = [(places, result) for places, result in answers(Fault("intermittent", chance=chance), 1000, values(64, 32))]
    share = sum(bool(places) for places, _ in wrong) / 1000
    assert share == pytest.approx(0.5 if chance is None else chance, abs=0.05)  # three standard deviations
    # Wrong answers differ, too.
    different = {struct.pack(f"{result.numel()}f", *result.flatten().tolist()) for places, result in wrong if places}
    assert len(different) > 0.99 * share * 1000


def test_wrong_elements_lie_at_a_fixed_stride() -> None:
    drawn = set()
    for seed in range(30):
        lanes = set()
        for places, _ in answers(Fault("intermittent", seed=seed, zeros=0, nonfinite=0), 20, values(64, 32)):
            if not places:
                continue
            (stride,) = {second - first for first, second in pairwise(places)}
            assert len(places) == 8
            lanes.add((stride, places[0] % stride))
        assert len(lanes) == 1  # the defective lane stays where it is
        drawn |= {stride for stride, _ in lanes}
    assert drawn == set(STRIDES)


@pytest.mark.parametrize(("keys", "number"), [({"elements": 5}, 5), ({"share": 0.01}, 20), ({"share": 1.0}, 2048 // 7)])
def test_stride_and_number_can_be_set(keys: dict[str, Any], number: int) -> None:
    fault = Fault("intermittent", stride=7, zeros=0, nonfinite=0, chance=1, **keys)
    for places, _ in answers(fault, 10, values(64, 32)):
        assert number <= len(places) <= number + 1 and {place % 7 for place in places} == {places[0] % 7}
        assert places == list(range(places[0], places[-1] + 1, 7))


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_small_tensors_can_be_hit(size: int) -> None:
    for seed in range(20):
        fault = Fault("intermittent", seed=seed, zeros=0, chance=1)
        assert all(places for places, _ in answers(fault, 5, values(size)))


def test_outcomes_have_their_shares() -> None:
    outcomes: Counter[str] = Counter()
    bits: Counter[int] = Counter()
    for _, wrong, changed in wrong_values(2000, values(64, 32)):
        finite = wrong == wrong and abs(wrong) != float("inf")
        outcomes["not finite" if not finite else "zero" if wrong == 0 else "flipped"] += 1
        bits[changed] += finite and wrong != 0
    total, flipped = outcomes.total(), sum(bits.values())
    assert total > 15_000
    assert outcomes["not finite"] / total == pytest.approx(0.01, abs=0.003)
    assert outcomes["zero"] / total == pytest.approx(0.99 * 0.5, abs=0.015)
    assert bits[1] / flipped == pytest.approx(ONE_BIT, abs=0.02) and bits[1] / flipped < 0.4
    assert {number for number, count in bits.items() if count} == {1, *SEVERAL_BITS}


def test_low_bits_flip_more_often() -> None:
    flips: Counter[int] = Counter()
    for _, result in answers(Fault("intermittent", zeros=0, nonfinite=0, flips=1, chance=1), 2000, torch.zeros(64)):
        for word in result.view(torch.int32).tolist():
            flips[(word & 0xFFFFFFFF).bit_length() - 1] += word != 0
    low, high = (sum(flips[bit] for bit in bits) for bits in (range(8), range(24, 32)))
    # The weights of 32 bits fall from 32 to 1.
    assert low / flips.total() == pytest.approx(228 / 528, abs=0.02)
    assert high / flips.total() == pytest.approx(36 / 528, abs=0.01)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("flips", [1, 3, 7])
def test_flips_change_so_many_bits_and_keep_values_finite(dtype: torch.dtype, flips: int) -> None:
    x = values(256, dtype=dtype)
    x[::2] = 1.5  # one more bit in its exponent makes it infinite
    keys = {"zeros": 0, "nonfinite": 0, "flips": flips, "stride": 1, "share": 1.0}
    changed = list(wrong_values(10, x, **keys))
    assert len(changed) == 2560 and all(number == flips for _, _, number in changed)
    assert all(abs(wrong) < float("inf") for _, wrong, _ in changed)


def test_bits_can_be_chosen() -> None:
    for right, wrong, _ in wrong_values(200, values(64), zeros=0, nonfinite=0, bit="mantissa"):
        assert 0.5 <= wrong / right <= 2
    assert all(number == 1 for *_, number in wrong_values(50, values(64), zeros=0, nonfinite=0, bit=3, flips=4))


@pytest.mark.parametrize("zeros", [0.0, 1.0])
def test_shares_of_outcomes_can_be_set(zeros: float) -> None:
    wrong = [wrong for _, wrong, _ in wrong_values(500, values(64, 32), zeros=zeros, nonfinite=0.25)]
    finite = [value for value in wrong if abs(value) < float("inf")]
    assert len(finite) / len(wrong) == pytest.approx(0.75, abs=0.03)
    assert all((value == 0) is bool(zeros) for value in finite)


def test_a_seed_determines_all_draws() -> None:
    def drawn(fault: Fault, repetition: int = 0) -> list[bytes]:
        module, x = nn.Identity(), values(64, 32)
        with inject(module, None, fault, repetition=repetition):
            return [module(x).numpy().tobytes() for _ in range(20)]

    fault = Fault("intermittent", seed=3)
    assert drawn(fault) == drawn(fault) != drawn(Fault("intermittent", seed=4))
    assert drawn(fault, 1) == drawn(fault, 1) != drawn(fault)


def test_the_defect_stays_in_place_in_a_repeated_training() -> None:
    def lanes(repetition: int) -> set[int]:
        module, x = nn.Identity(), values(64, 32)
        with inject(module, None, Fault("intermittent", stride=16, zeros=1, nonfinite=0), repetition=repetition):
            wrong = [(module(x) == 0).flatten().nonzero().flatten().tolist() for _ in range(10)]
        return {place % 16 for places in wrong for place in places}

    assert len(lanes(0)) == 1 and lanes(0) == lanes(1) == lanes(2)


def test_a_burst_is_drawn_anew_in_a_repeated_training() -> None:
    fault = Fault("intermittent", burst=(1, 20))
    assert len({step for step in range(1, 21) for repetition in range(30) if fault.active(step, repetition)}) > 10
