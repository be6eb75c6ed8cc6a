"""`traincheck.mark`: names a value, so that `traincheck compare` finds it in another program.

This file imports nothing, because it runs at the start of each process, and in programs that TrainCheck does not
observe.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as in typing, whose import would take longer than all the rest
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

# A process has one session at a time, and a program marks values wherever it computes them.
_take: Callable[[Any, Any, Any], object] | None = None


def mark(name: str, tensor: Any, *, gradient: bool = False) -> None:
    """Record a value under a name, so that `traincheck compare` compares it with the value of this name in another run.

    `tensor` is a tensor of torch, an array of NumPy or JAX, a number, or a list of numbers. With `gradient`, the
    gradient of a torch tensor is marked as `NAME.grad`, when the next backward reaches the tensor. Marks align by name
    and order: the k-th value with a name in one run is compared with the k-th in the other.

    In a checked run, TrainCheck learns and checks the form of a marked tensor, such as a sum of zero in groups. To
    compare programs, run them with `--record operations`; a mark then waits for the accelerator. It never changes the
    value, its gradient or a random state, and raises nothing: TrainCheck reports a value that it cannot read on stderr,
    once. In a program that does not import torch, the first mark imports it.
    Known limitations: TrainCheck records the first 10,000 marks of a process. Marks in code that `torch.compile` or
    `jax.jit` compiles, under a transformation of `torch.func`, and in a recomputed forward are not recorded.
    """
    if _take is not None:
        _take(name, tensor, gradient)


def receive(take: Callable[[Any, Any, Any], object] | None) -> None:
    """Pass marks to this function from now on; with None, ignore them."""
    global _take
    _take = take
