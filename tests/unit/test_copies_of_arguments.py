"""Copies of the arguments and gradients of a replayed call lie in memory as the originals do."""

from __future__ import annotations

import pytest
import torch

from traincheck.sources.replay import restorable_call
from traincheck.sources.replay.restorable_call import copy_of

VIEWS = {
    "whole": torch.randn(4, 6),
    "transposed": torch.randn(4, 6).t(),
    "with gaps": torch.randn(4, 6).narrow(1, 2, 3),
    "every second row": torch.randn(4, 6)[::2],
    "expanded": torch.randn(4, 1).expand(4, 6),
    "one number": torch.randn(()),
    "expanded number": torch.randn(()).expand(3, 2),
    "empty": torch.randn(0, 3),
    "integers with gaps": torch.arange(24).reshape(4, 6)[:, 1:3],
    "sparse": torch.eye(3).to_sparse(),
}


@pytest.mark.parametrize("tensor", VIEWS.values(), ids=VIEWS)
def test_values_and_strides_are_those_of_the_original(tensor: torch.Tensor) -> None:
    copy = copy_of(tensor)
    assert torch.equal(copy.to_dense(), tensor.to_dense()) and not copy.requires_grad
    if tensor.layout is torch.strided:
        assert copy.stride() == tensor.stride()
        assert not tensor.numel() or copy.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr()


def test_a_small_part_of_a_large_memory_is_copied_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restorable_call, "MAX_GAPS", 100)
    column = torch.randn(50, 20)[:, :1]
    copy = copy_of(column)
    assert torch.equal(copy, column) and copy.untyped_storage().nbytes() == 200
