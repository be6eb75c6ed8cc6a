"""Finds what gets gradients in a backward from outside a call of a model.

Note [Gradients from outside]
A call that is executed again gets the gradients that its results got from outside. A result may also be an input of
another one: of a loss and the logits that it is computed from, only the loss gets a gradient from outside, mostly. But
a program may add a term for the inner one as well (the mean of a variational autoencoder), in some steps only. And it
may add terms for parameters (a penalty), or for values inside that it kept. So the graph is followed from what the
backward starts from. Where it first arrives at a result or at a parameter, that one gets a gradient from outside.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

MAX_NODES = 200_000
"""A larger graph is not followed (half a second of work)."""

Edge = tuple[Any, int]
"""A function of the graph, and which of its outputs."""


def edge_of(tensor: torch.Tensor) -> Edge:
    """Where the gradient of a result arrives."""
    return tensor.grad_fn, tensor.output_nr


def edges_inside(edges: Iterable[Edge]) -> set[Edge]:
    """The edges of the graph behind these edges."""
    functions = [function for function, _ in edges]
    inside, seen = set[Edge](), set(functions)
    while functions:
        for function, number in functions.pop().next_functions:
            inside.add((function, number))
            if function is not None and function not in seen:
                seen.add(function)
                functions.append(function)
    return inside


def edges_from_outside(starts: Any, results: Iterable[Edge]) -> set[Edge] | None:
    """The edges to results, and to leaves, that a backward from `starts` follows without passing a result.

    None if the graph is too large.
    """
    ends = set(results)
    tensors = starts if isinstance(starts, (list, tuple)) else (starts,)
    edges = [edge_of(tensor) for tensor in tensors if isinstance(tensor, torch.Tensor) and tensor.grad_fn is not None]
    reached = {edge for edge in edges if edge in ends}
    open_functions = [edge[0] for edge in edges if edge not in ends]
    seen = set(open_functions)
    while open_functions:
        for function, number in open_functions.pop().next_functions:
            if function is None:
                continue
            if (function, number) in ends or not function.next_functions:
                reached.add((function, number))
            elif function not in seen:
                seen.add(function)
                open_functions.append(function)
        if len(seen) > MAX_NODES:
            return None
    return reached
