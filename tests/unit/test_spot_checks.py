"""Tests that samples of large tensors detect scaling, and that other tensors are read as a whole."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from traincheck.sources.tensors.deferred_values import DeferredValue, fetch_values, simulated_accelerator
from traincheck.sources.tensors.reading import hidden_from_modes
from traincheck.sources.tensors.spot_checks import LARGE_BYTES, SAMPLE_ELEMENTS, changed, probe, sample, samples_differ

ROWS, COLUMNS = 512, 256
assert ROWS * COLUMNS * 4 >= LARGE_BYTES


def dense() -> torch.Tensor:
    return torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(0))


def sparse() -> torch.Tensor:
    """A gradient of an embedding: two rows are not zero."""
    matrix = torch.zeros(ROWS, COLUMNS)
    matrix[:2] = 1.0
    return matrix


def test_a_sample_has_few_elements_from_the_whole_tensor() -> None:
    with hidden_from_modes():
        elements = sample(torch.arange(ROWS * COLUMNS, dtype=torch.float32).view(ROWS, COLUMNS))
    assert elements is not None
    assert 0 < len(elements) <= SAMPLE_ELEMENTS
    assert elements[-1] > 0.9 * ROWS * COLUMNS
    assert len({int(element) % COLUMNS for element in elements}) > SAMPLE_ELEMENTS // 2, "of many columns"


@pytest.mark.parametrize(
    "tensor",
    [
        torch.ones(8),
        dense().t(),
        torch.empty(ROWS, COLUMNS, device="meta"),
        torch.ones(ROWS, COLUMNS, dtype=torch.complex128),
        dense().to_sparse(),
    ],
    ids=["small", "not contiguous", "meta", "complex", "sparse"],
)
def test_small_and_noncontiguous_tensors_have_no_sample(tensor: torch.Tensor) -> None:
    with hidden_from_modes():
        assert sample(tensor) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int8])
def test_samples_are_compared_by_their_bits(dtype: torch.dtype) -> None:
    tensor = torch.full((1024, 1024), 3, dtype=dtype)
    with hidden_from_modes():
        original, same = sample(tensor), sample(tensor.clone())
        other = sample(tensor.mul(2))
        assert original is not None and same is not None and other is not None
        assert samples_differ([(original, same), (original, other)]) == [False, True]
    not_numbers = torch.full((4,), float("nan"))
    assert samples_differ([(not_numbers, not_numbers.clone()), (torch.zeros(4), -torch.zeros(4))]) == [False, True]


@pytest.mark.parametrize("make", [dense, sparse, lambda: torch.ones(8), lambda: dense().t()])
@pytest.mark.parametrize("factor", [0.5, 1 - 2.0**-20, 1.0])
def test_scaling_of_a_tensor_is_detected(make: Callable[[], torch.Tensor], factor: float) -> None:
    tensor = make()
    with hidden_from_modes():
        before = probe([tensor])
        tensor.mul_(factor)
        assert changed(before, [tensor]) == [factor != 1]


def test_a_sample_replaces_the_tensor_only_if_it_would_show_scaling() -> None:
    with hidden_from_modes():
        probes = probe([dense(), sparse(), torch.ones(8)])
    assert [isinstance(probe_of_tensor, torch.Tensor) for probe_of_tensor in probes] == [True, False, False]


def test_a_tensor_of_another_kind_counts_as_changed() -> None:
    with hidden_from_modes():
        before = probe([dense(), dense(), dense()])
        assert changed(before, [dense().double(), dense().t(), torch.ones(8)]) == [True, True, True]


@pytest.mark.parametrize("make", [dense, sparse, lambda: torch.ones(8), lambda: dense().bfloat16()])
@pytest.mark.parametrize("factor", [0.5, 1 - 2.0**-7, 1.0])
def test_scaling_of_a_device_tensor_is_detected(make: Callable[[], torch.Tensor], factor: float) -> None:
    tensor = make()
    with hidden_from_modes(), simulated_accelerator():
        before = probe([tensor, tensor.long()])
        tensor.mul_(factor)
        results = changed(before, [tensor, tensor.long()])
        assert isinstance(results[0], DeferredValue)
        assert fetch_values(results)[0] == (factor != 1)


def test_samples_on_a_device_are_compared_on_the_device() -> None:
    tensor, other = dense(), dense().mul(2)
    with hidden_from_modes(), simulated_accelerator():
        first, second = sample(tensor), sample(other)
        assert first is not None and second is not None
        results = samples_differ([(first, first), (first, second)])
        assert all(isinstance(result, DeferredValue) for result in results)
        assert fetch_values(results) == [False, True]
