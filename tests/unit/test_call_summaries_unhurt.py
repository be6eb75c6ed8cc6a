"""Tests that call summaries handle unusual tensors, and that the program does not notice them."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from observed_process import Seen, observing
from traincheck.vocab.events import Call

LINEAR = "torch.nn.functional.linear"


def only(seen: Seen, name: str) -> Call:
    (call,) = seen.named(name)
    return call


def read(call: Call) -> bool:
    return any(tensor.facts for tensor in call.tensors)


# -- the program is not hurt -----------------------------------------------------------------------------------------


def wrapper_subclass() -> torch.Tensor:
    class Wrapper(torch.Tensor):
        @staticmethod
        def __new__(cls, inner: torch.Tensor) -> Wrapper:
            return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

        def __init__(self, inner: torch.Tensor) -> None:
            self.inner = inner

        @classmethod
        def __torch_dispatch__(
            cls,
            function: Callable[..., object],
            types: object,
            args: tuple[torch.Tensor, ...] = (),
            kwargs: object = None,
        ) -> object:
            return function(*(arg.inner if isinstance(arg, cls) else arg for arg in args))

    return Wrapper(torch.ones(3))


def fake() -> torch.Tensor:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return torch.ones(3)


class Plain(torch.Tensor):
    """A subclass with its own memory."""


AWKWARD: dict[str, Callable[[], torch.Tensor]] = {
    "sparse": lambda: torch.eye(3).to_sparse(),
    "compressed": lambda: torch.eye(3).to_sparse_csr(),
    "meta": lambda: torch.ones(3, device="meta"),
    "empty": lambda: torch.ones(0, 3),
    "scalar": lambda: torch.tensor(2.0),
    "half": lambda: torch.ones(3, dtype=torch.float16),
    "bfloat16": lambda: torch.ones(2, 3, dtype=torch.bfloat16),
    "float8": lambda: torch.ones(2, 3).to(torch.float8_e4m3fn),
    "complex": lambda: torch.ones(2, 3, dtype=torch.complex64).conj(),
    "bool": lambda: torch.ones(3, dtype=torch.bool),
    "int8": lambda: torch.ones(3, dtype=torch.int8),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
    "strided nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "subclass": lambda: torch.ones(3).as_subclass(Plain),
    "wrapper": wrapper_subclass,
    "fake": fake,
    "expanded": lambda: torch.ones(1).expand(2, 4),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", AWKWARD)
def test_every_kind_of_tensor_is_summarized_without_a_fault(name: str) -> None:
    tensor = AWKWARD[name]()
    with observing(freeze=False) as seen:
        passes(tensor)
        tensor.clone()
        torch.ones(2).exp()
    assert seen.faults == []
    assert only(seen, "test_call_summaries_unhurt.passes").end >= 0 and read(only(seen, "torch.Tensor.exp"))


def passes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def test_inside_transforms_no_value_is_read_and_results_are_unchanged() -> None:
    def loss(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return (torch.tanh(x * w) ** 2).sum()

    w, x = torch.randn(3), torch.randn(5, 3)
    transformed = torch.vmap(torch.func.grad(loss), in_dims=(None, 0))
    expected = transformed(w, x)
    with observing() as seen:
        assert torch.equal(transformed(w, x), expected)
    assert seen.faults == []


@pytest.mark.filterwarnings(
    "error", "ignore::DeprecationWarning", "ignore:.torch.jit.trace(_method)?. is deprecated:FutureWarning"
)  # the last one since torch 2.14
def test_a_traced_graph_is_the_same() -> None:
    def graph() -> str:
        model = nn.Sequential(nn.Linear(3, 3), nn.Softmax(-1))
        return re.sub(r"___torch_mangle_\d+\.|#.*", "", str(torch.jit.trace(model, torch.ones(2, 3)).inlined_graph))

    expected = graph()
    with observing() as seen:
        assert graph() == expected
    assert seen.faults == []


class Spy(torch.overrides.TorchFunctionMode):
    """A mode of the program's own."""

    def __init__(self) -> None:
        super().__init__()
        self.saw: list[object] = []

    def __torch_function__(self, function: object, types: object, args: object = (), kwargs: object = None) -> object:
        self.saw.append(function)
        return function(*args, **(kwargs or {}))  # type: ignore[operator]


def test_a_mode_of_the_program_sees_no_operation_of_traincheck() -> None:
    def work() -> None:
        F.softmax(torch.randn(2, 3), -1).sum()

    with Spy() as plain:
        work()
    with Spy() as spied, observing() as seen:
        work()
    assert spied.saw[-len(plain.saw) :] == plain.saw and len(spied.saw) == len(plain.saw)
    assert read(only(seen, "torch.nn.functional.softmax"))


def test_a_broken_summary_is_reported_once_and_recording_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    with observing() as seen:
        monkeypatch.setattr("traincheck.sources.tensors.call_summaries.value_facts", lambda tensors, read: 1 / 0)
        for _ in range(3):
            assert F.linear(torch.ones(1, 2), torch.ones(1, 2)).item() == 2.0
            seen.recorder.steps.explicit_step(seen.recorder.next_seq())
    assert [(source, type(error)) for source, error in seen.faults] == [("summaries", ZeroDivisionError)]
    assert [dict(call.result) for call in seen.named(LINEAR)] == [{"dtype": "float32", "requires_grad": False}] * 2
    assert [list(window.off) for window in seen.windows if window.calls] == [["summaries"]] * 2
