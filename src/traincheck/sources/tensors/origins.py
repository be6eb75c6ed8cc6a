"""Finds what computed the input of a loss, and follows its classes back to their log-softmax and to their layer.

Between these, a program may move, merge, add and select dimensions. So each dimension is followed back through these
operations in the graph of autograd. Reading their sizes reads no values.

Known limitations: a dimension of size one has no position in a reshaped tensor, and indices may do anything. Where a
dimension was is unknown then.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch

from traincheck.sources.tensors import autograd_operations as operations
from traincheck.vocab.builtin_rules import LOG_SOFTMAX, PRODUCT, SQUASHING
from traincheck.vocab.facts import FactValue

_SQUASHING = (operations.SIGMOID, operations.SOFTMAX)
_FOLLOWED = (*operations.SAME_FORM, *operations.RESHAPES, *operations.MOVES, *operations.PARTS)
"""Operations through which a dimension is followed."""
_VIEWS = (*_FOLLOWED, operations.EXPAND, operations.INDEX)

_MAX_STEPS = 10

NO_DIMENSION = -1
"""Stands for a dimension that a reshaped tensor has no more."""

_NEGATIVE = 1 << 63
"""Attributes of nodes are unsigned: from here on they stand for negative numbers."""


class _Step(NamedTuple):
    """An operation that arranges elements, and the sizes after it and before it."""

    node: Any
    after: tuple[int, ...]
    before: tuple[int, ...]


class _Path(NamedTuple):
    """What computed the elements of a tensor, its sizes, and the operations that have arranged them since."""

    maker: Any
    sizes: tuple[int, ...]
    steps: list[_Step]

    def place_of(self, dimension: int) -> int | None:
        """Where a dimension of the tensor was when its elements were computed; None if unknown."""
        lost, place = self.followed(dimension)
        return place if lost is None else None

    def followed(self, dimension: int) -> tuple[_Step | None, int]:
        """The operation before which a dimension of the tensor is unknown, if any, and its place there."""
        for step in self.steps:
            place = _place_before(step, dimension)
            if place is None:
                return step, dimension
            dimension = place
        return None, dimension


def origin_facts(tensor: torch.Tensor) -> dict[str, FactValue]:
    """The fact `origin` of a result of autograd, and what became of its classes between a layer and a loss."""
    origin = origin_of(tensor)
    added: dict[str, FactValue] = {"origin": origin}
    is_reshaped = origin == PRODUCT and not tensor.grad_fn.name().startswith(operations.PRODUCTS)
    if not is_reshaped and origin != LOG_SOFTMAX:
        return added
    try:
        if mixes_classes(tensor):
            added["mixed_classes"] = True
        normalized = normalized_dimension(tensor) if origin == LOG_SOFTMAX else None
    except (AttributeError, IndexError, RuntimeError, TypeError):
        return {"origin": origin}  # of another release of torch, or of a kind of tensor without plain sizes
    if normalized is not None:
        added["normalized_over"], added["of_layer"] = normalized
    return added


def origin_of(tensor: torch.Tensor) -> str:
    """What computed the tensor: `squashing` (a sigmoid or a softmax), `log-softmax`, `product` (of matrices, or a
    convolution), or `other`. Views and conversions behind it do not matter."""
    node = tensor.grad_fn
    for _ in range(_MAX_STEPS):
        if node is None or not node.name().startswith(_VIEWS):
            break
        node = node.next_functions[0][0] if node.next_functions else None
    name = "" if node is None else node.name()
    if name.startswith(_SQUASHING):
        return SQUASHING
    if name.startswith(operations.LOG_SOFTMAX):
        return LOG_SOFTMAX
    return PRODUCT if name.startswith(operations.PRODUCTS) else "other"


def normalized_dimension(tensor: torch.Tensor) -> tuple[int, bool] | None:
    """The dimension of `tensor` over which its log-softmax ran, and whether a layer computed the scores.

    `NO_DIMENSION` if it is none of the tensor's dimensions (it was merged with others), and the one of the classes is
    known to be another. None if no log-softmax computed the tensor, or if the dimension is unknown. Scores are those of
    a layer if they are a product with one of its parameters, perhaps scaled.
    """
    path = _path_to(tensor.grad_fn, tuple(tensor.shape))
    if path is None or not path.maker.name().startswith(operations.LOG_SOFTMAX):
        return None
    places = [path.place_of(dimension) for dimension in range(tensor.dim())]
    normalized = _signed(path.maker._saved_dim) % len(path.sizes)
    if normalized not in places and places[_classes_of(tensor)] is None:
        return None
    scores = _path_to(path.maker.next_functions[0][0], path.sizes, scaled=True)
    is_of_layer = scores is not None and _features_of(scores) is not None
    return (places.index(normalized) if normalized in places else NO_DIMENSION), is_of_layer


def mixes_classes(tensor: torch.Tensor) -> bool:
    """Whether the classes of scores are as many as the outputs of their layer, but a reshape has mixed those.

    A reshape that only merges whole dimensions mixes nothing: the classes may be the positions of a map.
    """
    classes = _classes_of(tensor)
    path = _path_to(tensor.grad_fn, tuple(tensor.shape), scaled=True, normalized=True)
    features = None if path is None else _features_of(path)
    if path is None or features is None or not tensor.shape[classes] == path.sizes[features] > 1:
        return False
    lost, place = path.followed(classes)
    if lost is None or _merges(lost, place):
        return False
    return features not in [path.place_of(dimension) for dimension in range(tensor.dim())]


def _classes_of(tensor: torch.Tensor) -> int:
    return 1 if tensor.dim() > 1 else 0


def _path_to(node: Any, sizes: tuple[int, ...], *, scaled: bool = False, normalized: bool = False) -> _Path | None:
    """The way from a tensor back to what computed its elements. With `scaled` and `normalized`, factors and a
    log-softmax count as arrangements. None if it is too long."""
    others = (*(operations.SCALES if scaled else ()), *((operations.LOG_SOFTMAX,) if normalized else ()))
    steps: list[_Step] = []
    while node is not None and len(steps) < _MAX_STEPS:
        name = node.name()
        taken = [before for before, _ in node.next_functions if before is not None]
        is_other = name.startswith(others) and len(taken) == 1
        if not is_other and not name.startswith(_FOLLOWED):
            return _Path(node, sizes, steps)
        steps.append(_Step(node, sizes, sizes if is_other else _sizes_before(node, sizes)))
        sizes, node = steps[-1].before, taken[0] if taken else None
    return None


def _sizes_before(node: Any, sizes: tuple[int, ...]) -> tuple[int, ...]:
    name = node.name()
    if name.startswith((*operations.RESHAPES, operations.SELECT, operations.SLICE)):
        return tuple(node._saved_self_sym_sizes)
    if name.startswith(operations.UNSQUEEZE):
        added = _signed(node._saved_dim) % len(sizes)
        return sizes[:added] + sizes[added + 1 :]
    if name.startswith(operations.MOVES):
        order = _order(node, len(sizes))
        return tuple(sizes[order.index(place)] for place in range(len(sizes)))
    return sizes


def _place_before(step: _Step, place: int) -> int | None:
    """The place that a dimension had before an operation; None if unknown."""
    node, after, before = step
    name = node.name()
    if name.startswith(operations.RESHAPES):
        return _in_other_shape(after, place, before)
    if name.startswith(operations.SELECT):
        return place + (_signed(node._saved_dim) % len(before) <= place)
    if name.startswith(operations.UNSQUEEZE):
        added = _signed(node._saved_dim) % len(after)
        return None if place == added else place - (added < place)
    return _order(node, len(after))[place] if name.startswith(operations.MOVES) else place


def _order(node: Any, count: int) -> list[int]:
    """For each dimension after an operation that moves them, its position before."""
    name, order = node.name(), list(range(count))
    if name.startswith(operations.PERMUTE):
        return [_signed(place) % count for place in node._saved_dims]
    if name.startswith(operations.TRANSPOSE):
        first, second = _signed(node._saved_dim0) % count, _signed(node._saved_dim1) % count
        order[first], order[second] = second, first
        return order
    return order[::-1]


def _in_other_shape(after: tuple[int, ...], place: int, before: tuple[int, ...]) -> int | None:
    """Where a dimension is in another shape of the same elements: its size is the same, and so is its stride."""
    if after[place] == 1:
        return None
    wanted = after[place], math.prod(after[place + 1 :])
    places = (other for other, size in enumerate(before) if (size, math.prod(before[other + 1 :])) == wanted)
    return next(places, None)


def _merges(step: _Step, place: int) -> bool:
    """Whether a dimension after a reshape consists of whole dimensions before it. (Others add a dimension.)"""
    after, before = step.after, step.before
    strides = {math.prod(before[other:]) for other in range(len(before) + 1)}
    is_whole = {math.prod(after[place:]), math.prod(after[place + 1 :])} <= strides
    return is_whole or not step.node.name().startswith(operations.RESHAPES)


def _features_of(path: _Path) -> int | None:
    """The dimension of the outputs of a layer, if one computed the elements: a product with a parameter."""
    node = path.maker
    name, operands = node.name(), [operand for operand, _ in node.next_functions]
    if name.startswith(operations.MATRICES):
        first, second = operands[-2:]
        return len(path.sizes) - 1 if _is_parameter(second) else 0 if _is_parameter(first) else None
    if name.startswith(operations.LINEAR) and _is_parameter(operands[1]):
        return len(path.sizes) - 1
    return 1 if name.startswith(operations.CONVOLUTION) and _is_parameter(operands[1]) else None


def _is_parameter(node: Any) -> bool:
    """Whether an operand of a product is a leaf of the graph, perhaps transposed or converted."""
    for _ in range(_MAX_STEPS):
        if node is None or node.name().endswith(operations.ACCUMULATE):
            return node is not None
        if not node.name().startswith((*operations.SAME_FORM, *operations.MOVES)):
            return False
        node = node.next_functions[0][0]
    return False


def _signed(number: int) -> int:
    return number - 2 * _NEGATIVE if number >= _NEGATIVE else number
