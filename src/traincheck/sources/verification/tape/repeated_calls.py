"""Calls a custom function again, as one operation of a tape.

Note [Functions as one operation]
A forward may run kernels that torch does not see: of Triton, CUDA or numpy. The tape has no operations that compute its
results. Then the whole call is one operation: the tape calls the function again, with copies of its arguments in the
types of the program. The derivative of this operation is the backward of the function, which gets a gradient of its
own. Whether that backward is right is decided by finite differences of the function alone (kernel_backward.py).

Only a call that does nothing but compute is made again: its arguments are tensors and plain values, and no other rank
may wait for it.

A forward need not know the node of the graph that its results will have. So a result is matched with its call by the
class of its node and by the nodes and leaves before it. Calls that differ in plain values alone are not told apart.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from types import NoneType
from typing import Any, NamedTuple

import torch

from traincheck.sources.distributed.replica_readings import several_ranks
from traincheck.sources.replay.state_snapshot import RandomStates
from traincheck.sources.tensors.reading import PLAIN
from traincheck.sources.verification.tape.tape import Entry

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
    return not several_ranks() and all(
        type(argument) in PLAIN or isinstance(argument, _VALUES) or _is_list_of_values(argument)
        for argument in arguments
    )


def _is_list_of_values(argument: Any) -> bool:
    return isinstance(argument, tuple | list) and all(isinstance(item, _VALUES) for item in argument)


class RepeatedCall:
    """An operation that calls a custom function again, and returns the results with the numbers in `outputs`."""

    def __init__(self, cls: Any, arguments: Sequence[Any]) -> None:
        self.cls = cls
        self._arguments = [_TENSOR if isinstance(argument, torch.Tensor) else argument for argument in arguments]
        self._dtypes = [argument.dtype for argument in arguments if isinstance(argument, torch.Tensor)]
        self.outputs: list[int] = []

    def __str__(self) -> str:
        return str(self.cls.__name__)

    @property
    def plain(self) -> list[Any]:
        """The arguments that are no tensors."""
        return [argument for argument in self._arguments if argument is not _TENSOR]

    def __call__(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        """Call the function with copies of these tensors. Raises RuntimeError if they have other types than before."""
        if any(tensor.dtype != dtype for tensor, dtype in zip(tensors, self._dtypes, strict=True)):
            raise RuntimeError(f"{self} computes in the types of the program")
        copies = iter([tensor.clone() for tensor in tensors])
        arguments = [next(copies) if argument is _TENSOR else argument for argument in self._arguments]
        states = RandomStates()
        try:
            results = self.cls.apply(*arguments)
        finally:
            states.restore()
        results = results if isinstance(results, tuple) else (results,)
        return [_with_a_gradient_of_its_own(results[index]) for index in self.outputs]


def _with_a_gradient_of_its_own(result: torch.Tensor) -> torch.Tensor:
    """The same values; the backward behind them may overwrite the gradient that it gets."""
    return result * 1 if result.requires_grad else result


class KeptCall(NamedTuple):
    """A call that can be made again: its entry on the tape, its operation, the number of its region, and what its node
    of the graph has before it."""

    entry: Entry
    operation: RepeatedCall
    region: int
    before: tuple[object, ...]


class KeptCalls:
    """The calls of custom functions that are on a tape, by the nodes of their results."""

    def __init__(self) -> None:
        self._waiting: list[KeptCall] = []
        self._by_node: dict[int, KeptCall] = {}

    def add(self, entry: Entry, operation: RepeatedCall, region: int, tensors: Sequence[torch.Tensor]) -> None:
        """Keep a call; `tensors` are its arguments."""
        before = tuple(
            id(tensor) if tensor.grad_fn is None else _number(tensor.grad_fn)
            for tensor in tensors
            if tensor.requires_grad
        )
        self._waiting.append(KeptCall(entry, operation, region, before))

    def of_node(self, node: Any) -> KeptCall | None:
        """The call that made a node of the graph; None if it is not known."""
        if node is None:
            return None
        if (kept := self._by_node.get(_number(node)[1])) is not None:
            return kept
        before = tuple(
            _number(earlier) if (leaf := getattr(earlier, "variable", None)) is None else id(leaf)
            for earlier, _ in node.next_functions
            if earlier is not None
        )
        fitting = [
            kept
            for kept in self._waiting
            if kept.before == before and type(node) is getattr(kept.operation.cls, "_backward_cls", None)
        ]
        if not fitting or any(kept.operation.plain != fitting[0].operation.plain for kept in fitting):
            return None
        self._waiting.remove(fitting[0])
        self._by_node[_number(node)[1]] = fitting[0]
        return fitting[0]

    def keep_only(self, entries: Sequence[Entry | None]) -> None:
        """Drop the calls whose entries are not among these."""
        left = {id(entry) for entry in entries}
        self._waiting = [kept for kept in self._waiting if id(kept.entry) in left]
        self._by_node = {number: kept for number, kept in self._by_node.items() if id(kept.entry) in left}

    def clear(self) -> None:
        """Drop all calls."""
        self.keep_only(())


def _number(node: Any) -> tuple[str, int]:
    """What identifies a node of the graph: objects of Python that stand for it are made when they are asked for."""
    return node.name(), node._sequence_nr()
