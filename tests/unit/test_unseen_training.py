"""What we compute is seen by no mode of the program, however often it was asked before, and leaves gradients as they
were."""

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
    """Notes what is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


class Called(TorchFunctionMode):
    """Notes what functions of torch are called."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("make", [Dispatched, Called])
def test_no_mode_sees_it_and_all_is_as_before_behind_it(make: type[Dispatched | Called]) -> None:
    with make() as mode:
        for turn in range(1, ROUNDS + 1):
            with hidden_from_modes(), hidden_from_modes():
                torch.ones(2) + 1
            assert len(mode.seen) == turn - 1
            torch.empty(2)
            assert len(mode.seen) == turn


def test_gradients_are_off_inside_and_as_they_were_behind() -> None:
    for on in (True, False) * ROUNDS:
        with torch.set_grad_enabled(on):
            with pytest.raises(ZeroDivisionError), hidden_from_modes():
                assert not torch.is_grad_enabled()
                1 / 0  # noqa: B018
            assert torch.is_grad_enabled() is on


def test_threads_do_not_see_each_other_in_it() -> None:
    inside, done, told = threading.Event(), threading.Event(), []

    def another() -> None:
        inside.wait(10)
        told.append(torch.is_grad_enabled())
        with hidden_from_modes():
            told.append(torch.is_grad_enabled())
        told.append(torch.is_grad_enabled())
        done.set()

    thread = threading.Thread(target=another)
    thread.start()
    with hidden_from_modes():
        inside.set()
        assert done.wait(10)
    thread.join()
    assert told == [True, False, True]
    assert torch.is_grad_enabled()
