"""Tests that a fingerprint covers the whole tensor, its order, dtype and shape, and that zero tensors are detected."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from traincheck.sources.tensors.deferred_values import fetches, simulated_accelerator
from traincheck.sources.tensors.device_fingerprints import CHUNK_WORDS, SMALL_WORDS
from traincheck.sources.tensors.reading import fingerprints, hidden_from_modes, local_tensor, states

DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.complex64,
    torch.complex128,
)


def on_cpu(tensor: torch.Tensor) -> object:
    with hidden_from_modes():
        return fingerprints([tensor])[0]


def on_device(tensor: torch.Tensor) -> object:
    with hidden_from_modes(), simulated_accelerator():
        return fingerprints([tensor])[0]


def in_a_row(tensor: torch.Tensor) -> object:
    """Fingerprint the tensor in a batch with others, as on a device."""
    others = [torch.ones(3, dtype=tensor.dtype), torch.zeros(0, dtype=tensor.dtype)]
    with hidden_from_modes(), simulated_accelerator():
        return fingerprints([*others, tensor, *others])[2]


Digest = Callable[[torch.Tensor], object]
both = pytest.mark.parametrize("digest", [on_cpu, on_device, in_a_row])


def some(dtype: torch.dtype, size: int = 1001) -> torch.Tensor:
    return (torch.arange(size) % 2).to(dtype)


def state(tensor: torch.Tensor | None) -> str:
    with hidden_from_modes():
        word = states([tensor])[0]
        with simulated_accelerator():
            assert states([tensor])[0] == word
    return word


@both
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("index", [0, 1, 500, 999, 1000])
def test_every_element_counts(digest: Digest, dtype: torch.dtype, index: int) -> None:
    tensor = some(dtype)
    other = tensor.clone()
    assert digest(other) == digest(tensor)
    other[index] = not bool(tensor[index])
    assert digest(other) != digest(tensor)


@both
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_order_counts(digest: Digest, dtype: torch.dtype) -> None:
    tensor = some(dtype, 64)
    assert digest(tensor) != digest(tensor.flip(0))
    assert digest(tensor) != digest(tensor.roll(1))


@both
def test_dtype_counts_even_where_the_bytes_are_equal(digest: Digest) -> None:
    zeros = [torch.zeros(8, dtype=dtype) for dtype in DTYPES]
    assert len({digest(tensor) for tensor in zeros}) == len(DTYPES)
    bits = torch.arange(8, dtype=torch.int32)
    assert digest(bits) != digest(bits.view(torch.float32))


@both
def test_shape_counts(digest: Digest) -> None:
    tensor = torch.arange(12.0)
    shapes = [(12,), (3, 4), (4, 3), (1, 12), (12, 1), (2, 2, 3)]
    assert len({digest(tensor.reshape(shape)) for shape in shapes}) == len(shapes)


@both
def test_a_view_has_the_fingerprint_of_its_values(digest: Digest) -> None:
    tensor = torch.arange(24.0).reshape(4, 6)
    views = [
        tensor.T,
        tensor[:, 1::2],
        tensor[2],
        tensor[1:3, 2:4],
        tensor[0].expand(3, 6),
        tensor.as_strided((3,), (7,)),
    ]
    for view in views:
        assert digest(view) == digest(view.clone(memory_format=torch.contiguous_format))
    assert digest(tensor.T) != digest(tensor.reshape(6, 4))
    values = torch.view_as_complex(tensor.view(4, 3, 2))
    assert digest(values.conj()) == digest(values.conj().resolve_conj()) != digest(values)
    assert digest(values.conj().imag) == digest(values.conj().imag.resolve_neg()) != digest(values.imag)


@both
def test_tensors_of_one_element_and_of_none(digest: Digest) -> None:
    assert digest(torch.tensor(1.0)) != digest(torch.tensor(2.0))
    assert digest(torch.tensor(1.0)) != digest(torch.tensor([1.0]))
    assert digest(torch.empty(0)) == digest(torch.empty(0))
    assert digest(torch.empty(0)) != digest(torch.empty(0, 3))


@both
def test_bits_count_and_not_values(digest: Digest) -> None:
    assert digest(torch.tensor([0.0])) != digest(torch.tensor([-0.0]))
    nan = torch.tensor([float("nan")])
    assert digest(nan) == digest(nan.clone())


def test_unreadable_tensors_have_no_fingerprint() -> None:
    dense = torch.ones(3)
    with hidden_from_modes():
        values = fingerprints([torch.empty(3, device="meta"), dense, torch.eye(3).to_sparse(), dense])
    assert values[0] is values[2] is None
    assert values[1] == values[3] is not None
    assert local_tensor(torch.eye(3).to_sparse()) is None


def test_reading_parameters_does_not_change_them() -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    version = parameter._version
    assert on_cpu(parameter) == on_cpu(torch.ones(3)) is not None
    assert on_device(parameter) == on_device(torch.ones(3))
    assert parameter._version == version
    assert parameter.requires_grad and parameter.grad is None


def test_hidden_from_modes_hides_operations_and_restores_modes() -> None:
    seen = []

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: object, types: object, args: object = (), kwargs: object = None) -> object:
            seen.append(func)
            return func(*args, **(kwargs or {}))  # type: ignore[operator]

    with Mode():
        with hidden_from_modes():
            assert not torch.is_grad_enabled()
            fingerprints([torch.ones(3)])
        assert seen == []
        torch.ones(3)
    assert len(seen) == 1
    assert torch.is_grad_enabled()
    with torch.no_grad(), pytest.raises(ZeroDivisionError), hidden_from_modes():
        raise ZeroDivisionError
    assert torch.is_grad_enabled()


# -- states ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_zeros_are_zero_and_one_value_is_some(dtype: torch.dtype, size: int) -> None:
    zeros = torch.zeros(size, dtype=dtype)
    assert state(zeros) == "zero"
    for index in {0, size // 2, size - 1}:
        other = zeros.clone()
        other[index] = 1
        assert state(other) == "some"


def test_a_missing_gradient_is_none_and_an_unreadable_one_is_some() -> None:
    assert state(None) == "none"
    assert state(torch.empty(0)) == "zero"
    assert state(torch.zeros(3, device="meta")) == "some"
    assert state(torch.zeros(3, 3).to_sparse()) == "some"


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64], ids=str
)
@pytest.mark.parametrize("size", [1, 1000])
def test_zeros_of_either_sign_are_zero(dtype: torch.dtype, size: int) -> None:
    zeros = torch.zeros(size, dtype=dtype)
    zeros[size // 2] = -0.0
    assert state(zeros) == "zero"
    assert state(-torch.zeros(size, dtype=dtype)) == "zero"


def test_nan_and_the_smallest_number_are_some() -> None:
    for value in (float("nan"), float("inf"), 5e-324):
        tensor = torch.zeros(1000, dtype=torch.float64)
        tensor[777] = value
        assert state(tensor) == "some"


def test_numbers_made_of_the_bytes_of_zeros_are_some() -> None:
    bits = torch.full((1000,), 0x00008000, dtype=torch.int32)
    assert state(bits) == "some"
    assert state(bits.view(torch.float32)) == "some"
    assert state(torch.full((1000,), -128, dtype=torch.int8)) == "some"
    assert state(torch.full((1000,), 0x80, dtype=torch.uint8)) == "some"


def test_views_and_huge_zeros() -> None:
    huge = torch.zeros(4_000_000)
    assert state(huge) == "zero"
    huge[-1] = 1e-30
    assert state(huge) == "some"
    strided = torch.zeros(100, 100)
    strided[:, 1] = 1
    assert state(strided[:, ::2]) == "zero"
    assert state(strided[:, 1::2]) == "some"


def test_many_tensors_of_several_kinds_at_once() -> None:
    zero, ones = torch.zeros(100), torch.ones(100)
    mixed = [
        None,
        zero,
        ones,
        -zero,
        zero.double(),
        zero.long(),
        ones.bfloat16(),
        -zero.bfloat16(),
        torch.zeros(2, 2).T,
    ]
    with hidden_from_modes():
        assert states(mixed) == ["none", "zero", "some", "zero", "zero", "zero", "some", "zero", "zero"]
        assert states([]) == []


def test_temporarily_freed_memory_is_not_read() -> None:
    """Sharded parameters are kept without memory between their uses."""
    tensor = torch.ones(1000)
    kept = tensor.untyped_storage().nbytes()
    tensor.untyped_storage().resize_(0)
    read = on_cpu(tensor), state(tensor)  # not within an assertion: pytest would show the tensor, and read it
    assert read == (None, "some")
    tensor.untyped_storage().resize_(kept)
    assert on_cpu(tensor) is not None
    assert on_cpu(torch.empty(0)) is not None


# -- on a device ----------------------------------------------------------------------------------------------------


def test_a_tensor_has_one_fingerprint_in_a_row_and_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    tensors = [
        torch.randn(size, generator=generator).to(dtype)
        for size in (0, 1, 5, SMALL_WORDS, SMALL_WORDS + 1, CHUNK_WORDS + 3)
        for dtype in (torch.float32, torch.bfloat16, torch.uint8)
    ]
    with hidden_from_modes(), simulated_accelerator():
        together = fingerprints(tensors)
        assert together == [fingerprints([tensor])[0] for tensor in tensors]
        assert fingerprints([tensor.clone() for tensor in reversed(tensors)]) == together[::-1]
        many = [torch.full((SMALL_WORDS,), float(number)) for number in range(2 * CHUNK_WORDS // SMALL_WORDS + 3)]
        assert len(set(fingerprints(many))) == len(many)


def test_many_tensors_of_a_device_take_one_transfer() -> None:
    before = fetches.count
    with hidden_from_modes(), simulated_accelerator():
        fingerprints([torch.ones(3), torch.ones(100_000), torch.ones(2, dtype=torch.int64)])
        states([torch.zeros(3), None, torch.ones(3, dtype=torch.bool)])
    assert fetches.count == before + 2


def test_a_negated_view_has_the_fingerprint_of_its_values() -> None:
    view = torch.tensor([1 + 2j, 3 - 4j]).conj().imag
    assert view.is_neg()
    assert on_cpu(view) == on_cpu(torch.tensor([-2.0, 4.0]))


def test_memory_of_which_a_part_is_freed_is_not_read() -> None:
    tensor = torch.rand(1024)
    tensor.untyped_storage().resize_(8)
    with hidden_from_modes():
        assert fingerprints([tensor, torch.rand(2)])[0] is None
        assert states([tensor]) == ["some"]


def test_wrappers_of_function_transforms_are_not_read() -> None:
    read: list[object] = []

    def function(tensor: torch.Tensor) -> torch.Tensor:
        with hidden_from_modes():
            read.extend(fingerprints([tensor]))
        return tensor.sum()

    torch.vmap(function)(torch.rand(2, 3))
    torch.func.grad(function)(torch.rand(3))
    torch.func.functionalize(function)(torch.rand(3))
    assert read == [None] * 3
