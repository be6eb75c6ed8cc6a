"""The facts of a tensor's values agree with what numpy says in double precision, for any numbers and dtype."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from traincheck.sources.tensors.deferred_values import fetch_values
from traincheck.sources.tensors.reading import hidden_from_modes, local_tensor
from traincheck.sources.tensors.value_facts import ValueRequest, value_facts
from traincheck.vocab.facts import FactValue

ALL = ValueRequest(numbers=True, rows=True, contents=True)


def facts_of(tensors: Sequence[torch.Tensor]) -> list[dict[str, FactValue]]:
    """Return the recorded facts about the values of tensors."""
    return fetch_values(value_facts([local_tensor(tensor) for tensor in tensors], ALL))


FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
SHAPES = arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5)


@given(
    arrays.arrays(np.float64, SHAPES, elements=st.floats(allow_subnormal=False, width=64)),
    st.sampled_from(FLOATS),
)
def test_any_floating_point_numbers(numbers: np.ndarray, dtype: torch.dtype) -> None:
    tensor = torch.from_numpy(numbers).to(dtype)
    with hidden_from_modes():
        (known_facts,) = facts_of([tensor])
    exact = tensor.double().numpy()
    assert known_facts["finite"] is bool(np.isfinite(exact).all())
    assert known_facts["zero"] is bool((exact == 0).all())
    if not known_facts["finite"]:
        assert "norm" not in known_facts
        return
    with np.errstate(over="ignore"):
        norm = float(np.linalg.norm(exact.ravel()))
    if math.isfinite(norm) and (norm == 0 or norm > 1e-19):  # below, squares vanish in single precision
        assert known_facts["norm"] == pytest.approx(norm, rel=1e-3)
    if exact.ndim and exact.shape[-1] > 1 and exact.size:
        off = abs(exact.sum(-1) - 1).max()
        if off > 0.02 or (exact < 0).any():
            assert known_facts["rows_sum_to_one"] is False


@given(
    arrays.arrays(
        np.float32,
        arrays.array_shapes(min_dims=2, max_dims=3, min_side=2, max_side=9),
        elements=st.floats(-20, 20, width=32),
    ),
    st.sampled_from(FLOATS),
)
def test_probabilities_are_known_in_any_precision(logits: np.ndarray, dtype: torch.dtype) -> None:
    probabilities = torch.from_numpy(logits).softmax(-1)
    with hidden_from_modes():
        facts = facts_of([probabilities.to(dtype), probabilities.to(dtype) * 2, probabilities.log().to(dtype)])
    assert [known_facts["rows_sum_to_one"] for known_facts in facts] == [True, False, False]


@given(arrays.arrays(np.int64, SHAPES), st.sampled_from((torch.int64, torch.uint8, torch.bool)))
def test_whole_numbers_have_only_the_fact_of_being_zero(numbers: np.ndarray, dtype: torch.dtype) -> None:
    tensor = torch.from_numpy(numbers).to(dtype)
    with hidden_from_modes():
        assert facts_of([tensor]) == [{"zero": not bool(tensor.numpy().any())}]


def test_batches_match_single_values_and_skip_unreadable_ones() -> None:
    tensors = [torch.ones(4), torch.ones(2, device="meta"), torch.full((2,), 1e-30), torch.full((3,), 3e38)]
    with hidden_from_modes():
        ones, meta, tiny, huge = facts_of(tensors)
    assert ones["norm"] == 2.0 and meta == {}
    assert tiny["zero"] is False and tiny["finite"] is True
    assert huge["finite"] is True and huge["norm"] == pytest.approx(3e38 * math.sqrt(3), rel=1e-5)


def test_complex_numbers() -> None:
    with hidden_from_modes():
        (known_facts,) = facts_of([torch.tensor([3 + 4j, 0])])
    assert known_facts == {"finite": True, "zero": False, "norm": 5.0}
