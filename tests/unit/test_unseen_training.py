"""No mode of the program sees what TrainCheck computes under `hidden_from_modes`, and the gradient mode is restored."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from traincheck.sources.tensors.reading import hidden_from_modes

ROUNDS = 4


class Dispatched(TorchDispatchMode):
    """Records the operations that torch dispatches."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


class Called(TorchFunctionMode):
    """Records the functions of torch that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("make", [Dispatched, Called])
def test_no_mode_sees_hidden_calls_and_all_modes_see_later_calls(make: type[Dispatched | Called]) -> None:
    with make() as mode:
        for turn in range(1, ROUNDS + 1):
            with hidden_from_modes(), hidden_from_modes():
                torch.ones(2) + 1
            assert len(mode.seen) == turn - 1
            torch.empty(2)
            assert len(mode.seen) == turn


def test_gradients_are_off_inside_and_restored_behind() -> None:
    for on in (True, False) * ROUNDS:
        with torch.set_grad_enabled(on):
            with pytest.raises(ZeroDivisionError), hidden_from_modes():
                assert not torch.is_grad_enabled()
                1 / 0  # noqa: B018
            assert torch.is_grad_enabled() is on


def test_other_threads_are_not_affected() -> None:
    inside, done, grad_modes = threading.Event(), threading.Event(), []

    def another() -> None:
        inside.wait(10)
        grad_modes.append(torch.is_grad_enabled())
        with hidden_from_modes():
            grad_modes.append(torch.is_grad_enabled())
        grad_modes.append(torch.is_grad_enabled())
        done.set()

    thread = threading.Thread(target=another)
    thread.start()
    with hidden_from_modes():
        inside.set()
        assert done.wait(10)
    thread.join()
    assert grad_modes == [True, False, True]
    assert torch.is_grad_enabled()
