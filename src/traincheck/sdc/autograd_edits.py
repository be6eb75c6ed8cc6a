"""Replace values in the autograd graph: module outputs, and the gradients of module inputs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map


class _Replacement(torch.autograd.Function):  # type: ignore[misc]
    """Returns another value than the computed one; the gradient flows through unchanged."""

    @staticmethod
    def forward(ctx: Any, right: torch.Tensor, other: list[torch.Tensor]) -> torch.Tensor:
        return other.pop()  # in a list: an argument that is returned would be a view, which cannot be changed in place

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient, None


def replace_in_graph(right: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return `other` as the output of the graph node that computed `right`."""
    if right.requires_grad and torch.is_grad_enabled():
        replaced: torch.Tensor = _Replacement.apply(right, [other])
        return replaced
    return other


def with_input_gradients(
    args: tuple[Any, ...], kwargs: dict[str, Any], seen: Callable[[int, torch.Tensor], torch.Tensor | None]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a module call such that their gradients are passed to `seen`, with the input's number.

    Several modules may take one tensor, whose gradient is then the sum over them. So each call receives its own view of
    the tensor. A tensor that `seen` returns replaces the gradient; None keeps it.
    """
    number = 0

    def watched(value: Any) -> Any:
        nonlocal number
        if not (isinstance(value, torch.Tensor) and value.requires_grad and torch.is_grad_enabled()):
            return value
        view = value.view_as(value)
        view.register_hook(functools.partial(seen, number))
        number += 1
        return view

    edited: tuple[tuple[Any, ...], dict[str, Any]] = tree_map(watched, (args, kwargs))
    return edited
