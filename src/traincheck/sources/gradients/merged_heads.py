"""Finds attention that merges its heads with a reshape, and without the transposition that has to come before.

Attention with heads moves the dimension of the heads in front of the positions, computes (heads, positions, features),
and has to move it back. A reshape to (positions, heads x features) without that puts elements of several positions
into one row. It runs, because the sizes fit, and the model trains.

The graph of a loss shows the three signs together: the queries were transposed, only operations that keep the order of
dimensions follow the attention, and a reshape divides the elements into rows of the other dimension. Attention that
reshapes its queries in the same way has no transposed queries, and is left out.

Known limitations: kernels that autograd does not know and compiled code hide their operations. As many heads as
positions fit both ways.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from traincheck.sources.tensors import autograd_operations as operations
from traincheck.sources.tensors.reading import hidden_from_modes

MAX_NODES = 20_000
"""Operations of a graph that are looked at."""
MAX_STEPS = 40
"""Operations between two products that are looked at."""

_KEEP_ORDER = (
    *operations.VIEWS,
    operations.CLONE,
    operations.CAST,
    operations.DROPOUT,
    operations.MULTIPLICATION,
    operations.EXPAND,
)
"""Operations that leave the dimensions of their input in order. Dropout is a product with a mask."""


class MergedHeads(NamedTuple):
    """The sizes before and after a reshape, and the parameters nearest to the queries, nearest first."""

    before: tuple[int, ...]
    after: tuple[int, ...]
    parameters: list[torch.Tensor]


def merged_heads(tensors: Any) -> list[MergedHeads]:
    """Return the attention of a graph that merges heads across positions. `tensors` is what a backward begins with."""
    losses = tensors if isinstance(tensors, list | tuple) else (tensors,)
    with hidden_from_modes():
        roots = [loss.grad_fn for loss in losses if isinstance(loss, torch.Tensor) and loss.grad_fn is not None]
        return [merged for node in _nodes(roots) if (merged := _merged_at(node)) is not None]


def _nodes(roots: list[Any], until: tuple[str, ...] = (), limit: int = MAX_NODES) -> Iterator[Any]:
    """Yield the operations of a graph, the nearest first; none behind those whose names begin with `until`."""
    waiting, seen = deque(roots), set(roots)
    while waiting and len(seen) < limit:
        node = waiting.popleft()
        yield node
        if until and node.name().startswith(until):
            continue
        for before, _ in node.next_functions:
            if before is not None and before not in seen:
                seen.add(before)
                waiting.append(before)


def _merged_at(node: Any) -> MergedHeads | None:
    if not node.name().startswith(operations.VIEWS) or not node.next_functions:
        return None
    try:
        before, after = tuple(node._saved_self_sym_sizes), tuple(node._input_metadata[0].shape)
    except (AttributeError, IndexError, RuntimeError):
        return None  # of another release of torch, or of a tensor without plain sizes
    if not mixes_positions(before, after):
        return None
    attention = _first_other(node.next_functions[0][0], _KEEP_ORDER)
    queries = _queries_of(attention)
    if queries is None or not _are_transposed(queries):
        return None
    leaves = (getattr(inner, "variable", None) for inner in _nodes([queries], limit=MAX_STEPS))
    return MergedHeads(before, after, [leaf for leaf in leaves if leaf is not None])


def mixes_positions(before: tuple[int, ...], after: tuple[int, ...]) -> bool:
    """Whether a reshape turns (heads, positions, features) into (positions, heads x features), after any dimensions.

    The dimensions before these may be merged with the positions.
    """
    if len(before) < 3:
        return False
    *outer, heads, positions, features = before
    if heads == positions or min(heads, positions) < 2:
        return False
    width = heads * features
    return after in ((*outer, positions, width), (math.prod(outer) * positions, width))


def _queries_of(node: Any) -> Any | None:
    """The operation that computed the queries of an attention; None if the operation is no attention."""
    name = "" if node is None else node.name()
    if name.startswith(operations.FUSED_ATTENTION):
        return node.next_functions[0][0]
    if not name.startswith(operations.BATCHED):
        return None
    weights = _first_other(node.next_functions[0][0], _KEEP_ORDER)
    if weights is None or not weights.name().startswith((operations.SOFTMAX, operations.SAFE_SOFTMAX)):
        return None
    scores = weights.next_functions[0][0]
    if scores is None:
        return None
    products = _nodes([scores], operations.PRODUCTS, MAX_STEPS)
    product = next((inner for inner in products if inner.name().startswith(operations.BATCHED)), None)
    return None if product is None else product.next_functions[0][0]


def _are_transposed(queries: Any) -> bool:
    """Whether dimensions were moved between the last product and the queries."""
    moves = operations.PERMUTE, operations.TRANSPOSE
    return any(node.name().startswith(moves) for node in _nodes([queries], operations.PRODUCTS, MAX_STEPS))


def _first_other(node: Any, names: tuple[str, ...]) -> Any | None:
    """The first operation whose name does not begin with one of `names`, on the way of the first operands."""
    for _ in range(MAX_STEPS):
        if node is None or not node.name().startswith(names):
            return node
        node = node.next_functions[0][0] if node.next_functions else None
    return None
