"""Sketches show how far two tensors are apart, and whether an element moved."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from traincheck.comparison.distance import distance, rounding, unit
from traincheck.sources.operations.sketches import WIDTH, sketches
from traincheck.sources.tensors.reading import hidden_from_modes
from traincheck.vocab.operations import Sketch


def sketch(tensor: torch.Tensor) -> Sketch:
    with hidden_from_modes():
        (made,) = sketches([tensor])
    return made


def apart(a: torch.Tensor, b: torch.Tensor) -> float:
    return distance(sketch(a), sketch(b))


@given(st.integers(2, 3 * WIDTH), st.floats(1e-5, 1.0), st.integers(0, 1000))
def test_the_distance_is_right_within_a_small_factor(size: int, scale: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    a = torch.randn(size, generator=generator)
    b = a + scale * torch.randn(size, generator=generator)
    real = float((a - b).norm() / max(a.norm(), b.norm()))
    assert 0.05 * real <= apart(a, b) <= 4 * real


def test_equal_bits_have_no_distance() -> None:
    a = torch.randn(5, 7)
    assert apart(a, a.clone()) == 0.0
    assert apart(torch.full((3,), math.nan), torch.full((3,), math.nan)) == 0.0


@pytest.mark.parametrize("size", [1, 2, 7, 3 * WIDTH + 5])
def test_the_memory_of_a_tensor_does_not_matter(size: int) -> None:
    """A part of a larger tensor and an expanded one have the sketch of a copy."""
    for tensor in (torch.randn(2 * size)[::2], torch.randn(size, 3)[:, 1], torch.ones(1).expand(size)):
        own, copied = sketch(tensor), sketch(tensor.clone(memory_format=torch.contiguous_format))
        assert (own.fingerprint, own.elements) == (copied.fingerprint, copied.elements)
        assert own.norm == pytest.approx(copied.norm) and own.projections == pytest.approx(copied.projections, abs=1e-3)


def test_a_permutation_is_seen() -> None:
    a = torch.randn(4096)
    assert apart(a, a.flip(0)) > 0.5
    assert apart(a, a.roll(WIDTH)) > 0.5


def test_shards_add_up() -> None:
    whole = torch.randn(6, 8)
    parts = [sketch(part.contiguous()) for part in whole.chunk(2)]
    of_whole = sketch(whole)
    assert of_whole.total == pytest.approx(sum(part.total for part in parts), rel=1e-5)
    assert of_whole.norm**2 == pytest.approx(sum(part.norm**2 for part in parts), rel=1e-5)


DTYPES = (torch.float64, torch.bfloat16, torch.float16, torch.complex64, torch.int64, torch.bool)


@pytest.mark.parametrize("dtype", DTYPES)
def test_other_dtypes(dtype: torch.dtype) -> None:
    a = (torch.randn(40) * 3).to(dtype)
    b = a.clone()
    b[7] = 1 if not b[7] else 0
    assert apart(a, a.clone()) == 0.0
    assert apart(a, b) > 0.001


def test_another_size_and_other_infinities_are_infinitely_far() -> None:
    assert math.isinf(apart(torch.ones(3), torch.ones(4)))
    assert math.isinf(apart(torch.ones(3), torch.tensor([1.0, math.inf, 1.0])))
    assert apart(torch.zeros(3), -torch.zeros(3)) == 0.0


def test_empty_and_unreadable_tensors() -> None:
    assert apart(torch.ones(0), torch.ones(0)) == 0.0
    assert sketch(torch.ones(3, device="meta")).fingerprint is None


def test_rounding_grows_with_the_accumulation_and_the_unit() -> None:
    single = sketch(torch.ones(2, 2))
    short = rounding([single], [sketch(torch.ones(2, 4)), sketch(torch.ones(4, 2))])
    long = rounding([single], [sketch(torch.ones(2, 400)), sketch(torch.ones(400, 2))])
    low = rounding([sketch(torch.ones(2, 2, dtype=torch.bfloat16))], [])
    assert unit("float32") < short < long < low < 0.05
    assert rounding([sketch(torch.ones(3, dtype=torch.int64))], []) == 0.0


@pytest.mark.parametrize("seed", range(5))
def test_rounding_explains_another_order_of_addition(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    a, b = torch.randn(64, 512, generator=generator), torch.randn(512, 64, generator=generator)
    order = torch.randperm(512, generator=generator)
    first, second = sketch(a @ b), sketch(a[:, order] @ b[order])
    assert 0 < distance(first, second) <= rounding([first], [sketch(a), sketch(b)])


def test_the_random_streams_of_the_program_stay_as_they_are() -> None:
    before = torch.get_rng_state()
    sketch(torch.ones(10_000))
    assert torch.equal(before, torch.get_rng_state())
