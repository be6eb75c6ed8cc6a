"""Whatever its parameters, an intermittent defect hits elements at one stride and changes nothing else."""

from __future__ import annotations

import random
from itertools import pairwise

import torch
from hypothesis import given
from hypothesis import strategies as st

from traincheck.sdc.faults.bits import MANTISSAS, corrupted
from traincheck.sdc.faults.fault import Fault, parse_fault
from traincheck.sources.tensors.reading import INTEGER_TYPES

SHARES = st.floats(0, 1)
FAULTS = st.builds(
    Fault,
    st.just("intermittent"),
    bit=st.sampled_from(["any", "sign", "exponent", "mantissa", 0, 5, 63]),
    elements=st.integers(1, 300) | st.none(),
    stride=st.integers(1, 300) | st.none(),
    flips=st.integers(1, 64) | st.none(),
    nonfinite=SHARES,
    zeros=SHARES,
    chance=SHARES | st.none(),
    seed=st.integers(0, 100),
)


@given(fault=FAULTS, size=st.integers(1, 400), dtype=st.sampled_from([*MANTISSAS]), occasion=st.integers(0, 100))
def test_wrong_elements_are_periodic(fault: Fault, size: int, dtype: torch.dtype, occasion: int) -> None:
    x = torch.randn(size, generator=torch.Generator().manual_seed(size)).to(dtype)

    def hit() -> tuple[torch.Tensor, int]:
        return corrupted(x, fault, random.Random(occasion), random.Random(fault.seed))

    (result, count), words = hit(), INTEGER_TYPES[x.element_size()]
    wrong = (result.view(words) != x.view(words)).nonzero().flatten().tolist()
    assert 1 <= count <= (fault.elements or 8)
    assert len(wrong) == count  # no drawn value is zero, so each hit element differs
    steps = {second - first for first, second in pairwise(wrong)}
    assert len(steps) <= 1 and (fault.stride is None or steps <= {fault.stride})
    assert torch.equal(result.view(words), hit()[0].view(words))
    assert result.shape == x.shape and result.data_ptr() != x.data_ptr()


@given(fault=FAULTS)
def test_text_and_fault_are_the_same(fault: Fault) -> None:
    assert parse_fault(fault.text) == fault
