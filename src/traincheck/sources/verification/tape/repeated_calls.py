"""Calls a custom function again, as one operation of a tape.

Note [Functions as one operation]
A forward may run kernels that torch does not see: of Triton, CUDA or numpy. The tape has no operations that compute its
results. Then the whole call is one operation: the tape calls the function again, with copies of its arguments in the
types of the program. The derivative of this operation is the backward of the function, which gets a gradient of its
own. Whether that backward is right is decided by finite differences of the function alone (kernel_backward.py).

Only a call that does nothing but compute is made again: its arguments are tensors and plain values, and no other rank
may wait for it.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from types import NoneType
from typing import Any

import torch
import torch.distributed

from traincheck.sources.replay.state_snapshot import RandomStates
from traincheck.sources.tensors.reading import PLAIN

_VALUES = (
    NoneType,
    bool,
    int,
    float,
    complex,
    str,
    enum.Enum,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
)
_TENSOR = object()


def can_be_repeated(arguments: Sequence[Any]) -> bool:
    """Whether a custom function with these arguments can be called again."""
    return not _has_other_ranks() and all(
        type(argument) in PLAIN or isinstance(argument, _VALUES) or _is_list_of_values(argument)
        for argument in arguments
    )


def _is_list_of_values(argument: Any) -> bool:
    return isinstance(argument, tuple | list) and all(isinstance(item, _VALUES) for item in argument)


def _has_other_ranks() -> bool:
    distributed = torch.distributed
    return bool(distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1)


class RepeatedCall:
    """An operation that calls a custom function again, and returns the results with the numbers in `outputs`."""

    def __init__(self, cls: Any, arguments: Sequence[Any]) -> None:
        self._cls = cls
        self._arguments = [_TENSOR if isinstance(argument, torch.Tensor) else argument for argument in arguments]
        self._dtypes = [argument.dtype for argument in arguments if isinstance(argument, torch.Tensor)]
        self.outputs: list[int] = []

    def __str__(self) -> str:
        return str(self._cls.__name__)

    def __call__(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        """Call the function with copies of these tensors. Raises RuntimeError if they have other types than before."""
        if any(tensor.dtype != dtype for tensor, dtype in zip(tensors, self._dtypes, strict=True)):
            raise RuntimeError(f"{self} computes in the types of the program")
        copies = iter([tensor.clone() for tensor in tensors])
        arguments = [next(copies) if argument is _TENSOR else argument for argument in self._arguments]
        states = RandomStates()
        try:
            results = self._cls.apply(*arguments)
        finally:
            states.restore()
        results = results if isinstance(results, tuple) else (results,)
        return [_with_a_gradient_of_its_own(results[index]) for index in self.outputs]


def _with_a_gradient_of_its_own(result: torch.Tensor) -> torch.Tensor:
    """The same values; the backward behind them may overwrite the gradient that it gets."""
    return result * 1 if result.requires_grad else result
