"""Tests which tensors are read: every tensor with memory for each element, and no other."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from traincheck.sources.tensors.reading import (
    PLAIN,
    fingerprints,
    hidden_from_modes,
    is_copyable,
    local_tensor,
    shape_of,
    states,
)

PROGRAM = Path(__file__).resolve().parents[1] / "e2e" / "programs" / "tensor_kinds.py"
_spec = importlib.util.spec_from_file_location("tensor_kinds", PROGRAM)
assert _spec is not None and _spec.loader is not None
program: Any = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(program)

READABLE = {"with_memory", "functions", "expanded", "overlapping", "conjugated", "negated", "eight_bits", "empty"}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", sorted(program.KINDS))
def test_only_tensors_with_memory_are_read(kind: str) -> None:
    torch.manual_seed(0)
    tensor = program.KINDS[kind]()
    with hidden_from_modes():
        dense = local_tensor(tensor)
        assert (dense is not None) == (kind in READABLE)
        assert (fingerprints([tensor])[0] is not None) == (kind in READABLE)
        assert states([tensor])[0] in ("some", "zero")
        assert not is_copyable(tensor) or type(tensor) in PLAIN
    if dense is not None:
        assert type(dense).__torch_dispatch__ is torch._C._disabled_torch_dispatch_impl


@pytest.mark.filterwarnings("ignore")
def test_a_tensor_without_sizes_has_no_shape() -> None:
    assert shape_of(program.KINDS["nested"]()) is None
    assert shape_of(torch.ones(2, 3)) == (2, 3)


def test_reading_a_subclass_with_memory_does_not_call_its_dispatch() -> None:
    tensor = program.KINDS["with_memory"]()
    program.WithMemory.dispatches = 0
    with hidden_from_modes():
        assert fingerprints([tensor]) == fingerprints([torch.ones(4)])
    assert program.WithMemory.dispatches == 0


def test_an_operation_on_a_wrapper_reaches_its_method_even_with_dispatch_disabled() -> None:
    wrapper = program.KINDS["wrapper"]()
    for hidden in (False, True):
        with torch._C._DisableTorchDispatch() if hidden else torch.no_grad(), hidden_from_modes():
            assert wrapper.abs().inner.tolist() == [1.0] * 4, "the memory that is not there was not read"
    with torch._C._DisableTorchDispatch():
        with hidden_from_modes():
            pass
        for key in (torch._C.DispatchKey.Python, torch._C.DispatchKey.PythonTLSSnapshot):
            assert torch._C._dispatch_tls_is_dispatch_key_excluded(key)


def test_modes_see_only_the_operations_of_the_program() -> None:
    class Mode(TorchDispatchMode):
        seen = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.seen += 1
            return func(*args, **(kwargs or {}))

    with Mode() as outer, Mode() as inner:
        with hidden_from_modes():
            torch.ones(2).abs().detach()
        assert (outer.seen, inner.seen) == (0, 0)
        torch.ones(2)
        assert (outer.seen, inner.seen) == (1, 1)
