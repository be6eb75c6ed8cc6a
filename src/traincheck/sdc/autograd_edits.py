"""Graph: other values for what modules return, and for the gradients of what they are given, while autograd records."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map


class _InPlace(torch.autograd.Function):  # type: ignore[misc]
    """Another value in place of the one that was computed; the gradient flows as if nothing had happened."""

    @staticmethod
    def forward(ctx: Any, right: torch.Tensor, other: list[torch.Tensor]) -> torch.Tensor:
        return other.pop()  # in a list: an argument that is returned would be a view, which cannot be changed in place

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient, None


def put_in_place(right: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """`other` in the place of `right` in the graph."""
    if right.requires_grad and torch.is_grad_enabled():
        replaced: torch.Tensor = _InPlace.apply(right, [other])
        return replaced
    return other


def with_input_gradients(
    args: tuple[Any, ...], kwargs: dict[str, Any], seen: Callable[[int, torch.Tensor], torch.Tensor | None]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of a module whose gradients, as this very call brings them about, come to `seen` with their number.

    A tensor that several modules take has one gradient that is the sum of theirs; so each call is given a view of its
    own. What `seen` returns takes the place of the gradient, None leaves it.
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
