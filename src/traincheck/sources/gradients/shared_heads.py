"""Finds two networks of a program that are one: two heads with a loss each, or two critics of which the smaller counts.

A program writes `self.second = self.first`, `copy.copy(self.first)`, or `nn.ModuleList([head] * n)`. The parameters of
both names are the same, so both heads predict the same numbers: twin critics are one critic, and two tasks share one
prediction. Parts of a model are also shared on purpose. Note [Heads of their own] says how the two differ.

Note [Heads of their own]
Both names belong to one parent, and methods of its class mention both (a list has to be called as often as it is
long). In the graph of one loss,
* the results are computed by the same operations, from the same parameters and the same input: all tensors that the
  operations keep have the same values, so no dropout, batch or other state makes them differ;
* all parameters that only one of both results went through belong to the module, so the model was called once;
* each result becomes a loss by itself: only operations of one operand and a reduction follow. Shared queries and keys,
  gates, and parts of sums and products are combined with each other, and count as intended.
No operation after a result chooses elements of it: a shared head may serve other samples under each name.

The elementwise minimum or maximum of two such results needs no names: it is that of a number and itself, whoever
computed it twice.

Known limitations: compiled code, checkpoints and custom functions hide their operations. A program that turns two heads
into one by an option, and calls both, gets a finding as well. TrainCheck does not see a minimum without gradients.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from traincheck.sources.gradients.graph_contents import is_absent, unpacked
from traincheck.sources.tensors import autograd_operations as operations
from traincheck.sources.tensors.reading import PLAIN

MAX_NODES = 20_000
"""Larger graphs are not looked at."""
MAX_STEPS = 400
"""Operations of a head, and operations between a head and its loss, that are looked at."""

_OVERLOAD = re.compile(r"\d+$")
_ARRANGE = frozenset((*operations.SAME_FORM, *operations.RESHAPES, operations.UNSQUEEZE, *operations.MOVES))
"""Operations that keep all elements."""
_OF_ONE_NUMBER = frozenset(operations.SCALES)
"""Operations that count only with a number: a product with a tensor may be one with a mask."""
_OF_LOSSES = frozenset(
    (
        *_ARRANGE,
        *_OF_ONE_NUMBER,
        *(operations.SIGMOID, operations.SOFTMAX, operations.LOG_SOFTMAX),
        *("AddBackward", "SubBackward", "RsubBackward", "NegBackward", "PowBackward", "AbsBackward", "ExpBackward"),
        *("LogBackward", "LogSigmoidBackward", "SoftplusBackward", "TanhBackward", "MseLossBackward"),
        *("L1LossBackward", "SmoothL1LossBackward", "HuberLossBackward", "NllLossBackward", "NllLoss2DBackward"),
        *("BinaryCrossEntropyBackward", "BinaryCrossEntropyWithLogitsBackward", "KlDivBackward"),
        *("SoftMarginLossBackward", "MeanBackward", "SumBackward"),
    )
)
"""Operations between a prediction and its loss."""
_INPUTS = {"AddmmBackward": "mat1", "MmBackward": "self", operations.BATCHED: "self", operations.CONVOLUTION: "input"}
"""Operations that keep their input, with its name. Equal inputs need no look at the constants that made them."""
_KEEP_OPERANDS = frozenset((*_INPUTS, "NativeLayerNormBackward", "EmbeddingBackward"))
"""Operations that keep each operand that needs no gradient, so that two calls can be compared."""
_CHOICES = {"MinimumBackward": "smaller", "MaximumBackward": "larger"}


class SharedHead(NamedTuple):
    """A module that `parent` holds by two names."""

    parent: nn.Module
    first: str
    second: str


class Choice(NamedTuple):
    """The smaller or the larger of two equal results, and the parameters that computed both last."""

    kind: str
    parameters: list[torch.Tensor]


class _Alias(NamedTuple):
    head: SharedHead
    parameters: frozenset[int]
    calls: int  # that a loss has to have


def shared_heads(tensors: Any, modules: Iterable[nn.Module]) -> list[SharedHead | Choice]:
    """Return the heads among `modules` that the graph of a loss shows to be one, and choices between equal results.
    `tensors` is what a backward begins with. Call inside `hidden_from_modes()`."""
    losses = tensors if isinstance(tensors, list | tuple) else (tensors,)
    consumers = _consumers([loss.grad_fn for loss in losses if isinstance(loss, torch.Tensor) and loss.grad_fn])
    heads = [alias.head for alias in _aliases(modules) if _are_one(alias, consumers)] if consumers else []
    return [*heads, *_choices(consumers)]


# -- modules with two names ------------------------------------------------------------------------------------------


def _aliases(modules: Iterable[nn.Module]) -> Iterator[_Alias]:
    """The modules with parameters that one parent holds by two names."""
    for parent in modules:
        children = dict(parent.__dict__.get("_modules", {}))
        if len(children) < 2:
            continue
        names_of: dict[tuple[int, int], list[str]] = {}
        for name, child in children.items():
            of_child = {} if child is None else child.__dict__
            if "_parameters" in of_child and "_modules" in of_child:  # a shallow copy has the same dictionaries
                names_of.setdefault((id(of_child["_parameters"]), id(of_child["_modules"])), []).append(name)
        for names in names_of.values():
            if len(names) < 2:
                continue
            parameters = frozenset(map(id, nn.Module.parameters(children[names[0]])))
            calls = _calls_needed(parent, names) if parameters else 0
            if calls:
                yield _Alias(SharedHead(parent, names[0], names[1]), parameters, calls)


def _calls_needed(parent: nn.Module, names: Sequence[str]) -> int:
    """How many results of a module with these names need a loss; 0 if the program does not speak of two modules."""
    if isinstance(parent, nn.ModuleList | nn.ModuleDict):
        return len(names) if len(names) == len(parent._modules) else 0
    from traincheck.sources.modules.unused_layers import mentioned_names  # not before a module has two names

    return 2 if len(names) == 2 and mentioned_names(type(parent)).issuperset(names) else 0


# -- the graph of a loss ---------------------------------------------------------------------------------------------


def _consumers(roots: Sequence[Any]) -> dict[Any, list[Any]]:
    """The operations of a graph, each with those that take its result; none of a graph that is too large."""
    consumers: dict[Any, list[Any]] = {root: [] for root in roots}
    waiting = list(consumers)
    while waiting:
        node = waiting.pop()
        for taken, _ in node.next_functions:
            if taken is None:
                continue
            if taken not in consumers:
                consumers[taken] = []
                waiting.append(taken)
            consumers[taken].append(node)
        if len(consumers) > MAX_NODES:
            return {}
    return consumers


def _are_one(alias: _Alias, consumers: Mapping[Any, list[Any]]) -> bool:
    """Whether as many equal results of a module as needed have a loss each."""
    predictions = [
        node
        for node in consumers
        if _kind(node) not in _ARRANGE
        and any(id(_leaf(taken)) in alias.parameters for taken, _ in node.next_functions)
        and _becomes_loss(node, consumers)
    ]
    for first in predictions:
        equal = [node for node in predictions if node is first or _computes_same(first, node, alias.parameters)]
        if len(equal) >= alias.calls:
            return True
    return False


def _kind(node: Any) -> str:
    return _OVERLOAD.sub("", node.name())


def _leaf(node: Any) -> Any:
    """The parameter that a node stands for, also as a view or in another precision; None for another node."""
    return getattr(_without_arranging(node), "variable", None)


def _without_arranging(node: Any) -> Any:
    """The first operation from `node` on that computes something."""
    while node is not None and _kind(node) in _ARRANGE and node.next_functions:
        node = node.next_functions[0][0]
    return node


def _becomes_loss(prediction: Any, consumers: Mapping[Any, list[Any]]) -> bool:
    """Whether a result is reduced to numbers of a loss, and combined with no other result before."""
    if _size(prediction) < 2:
        return False
    waiting, steps = [prediction], 0
    while waiting:
        node = waiting.pop()
        steps += 1
        if not consumers[node] or steps > MAX_STEPS:
            return False
        for consumer in consumers[node]:
            kind = _kind(consumer)
            if kind not in _OF_LOSSES or sum(taken is not None for taken, _ in consumer.next_functions) != 1:
                return False
            if kind in _OF_ONE_NUMBER and not _is_of_number(consumer):
                return False
            if _size(consumer) > 1:
                waiting.append(consumer)
    return True


def _size(node: Any) -> int:
    """The number of elements of a result; 0 if torch does not say (in releases before 2.5)."""
    metadata = getattr(node, "_input_metadata", ())
    return math.prod(map(int, metadata[0].shape)) if metadata else 0


def _is_of_number(node: Any) -> bool:
    """Whether a product or a quotient is one of a tensor and a number."""
    kept = [getattr(node, f"_raw_saved_{name}", None) for name in ("self", "other")]
    numbers = [tensor for tensor in map(unpacked, kept) if tensor is not None]
    return bool(numbers) and all(tensor.numel() == 1 for tensor in numbers)


def _choices(nodes: Iterable[Any]) -> Iterator[Choice]:
    """The minima and maxima of two results that are the same for certain, each computed by itself."""
    for node in nodes:
        kind = _CHOICES.get(_kind(node))
        if kind is None or len(node.next_functions) != 2:
            continue
        (first, number), (second, other_number) = node.next_functions
        last = _without_arranging(first)
        if last is None or last is _without_arranging(second) or number != other_number or hasattr(last, "variable"):
            continue
        leaves = [leaf for taken, _ in last.next_functions if (leaf := _leaf(taken)) is not None]
        if leaves and _computes_same(first, second, None):
            yield Choice(kind, leaves)


# -- equal results ---------------------------------------------------------------------------------------------------


def _computes_same(first: Any, second: Any, parameters: frozenset[int] | None) -> bool:
    """Whether two operations return the same numbers for certain.

    With `parameters`, all parameters that only one of them went through have to be among these.
    """
    waiting, steps = [(first, second, False)], 0
    while waiting:
        one, other, is_known = waiting.pop()
        steps += 1
        leaf = _leaf(one)
        if leaf is not None:
            if leaf is not _leaf(other) or not (parameters is None or id(leaf) in parameters):
                return False
            continue
        if one is other:
            continue
        if steps > MAX_STEPS or one is None or other is None or not _are_alike(one, other):
            return False
        pairs = list(zip(one.next_functions, other.next_functions, strict=True))
        if any(mine[1] != others[1] for mine, others in pairs):
            return False
        kind, has_constants = _kind(one), any(taken is None for taken, _ in one.next_functions)
        if has_constants and not is_known and kind not in _KEEP_OPERANDS:
            return False  # an operand that may be random
        is_known = is_known or unpacked(getattr(one, f"_raw_saved_{_INPUTS.get(kind)}", None)) is not None
        waiting.extend(
            (mine[0], others[0], is_known) for mine, others in pairs if mine[0] is not None or others[0] is not None
        )
    return True


def _are_alike(one: Any, other: Any) -> bool:
    """Whether two operations are of one kind, and have kept the same values."""
    if type(one) is not type(other) or len(one.next_functions) != len(other.next_functions):
        return False
    if isinstance(one, torch.autograd.function.BackwardCFunction):
        return False
    try:
        return _keep_same(one, other)
    except RuntimeError:
        return False  # freed by an earlier backward


def _keep_same(one: Any, other: Any) -> bool:
    """Whether two operations of one kind have kept the same values."""
    names = dir(type(one))
    for name in names:
        if name.startswith("_raw_saved_"):
            mine, others = getattr(one, name), getattr(other, name)
            if not (is_absent(mine) and is_absent(others)) and not _is_equal(unpacked(mine), unpacked(others)):
                return False
        elif name.startswith("_saved_") and f"_raw{name}" not in names and getattr(one, name) != getattr(other, name):
            return False
    return True


def _is_equal(mine: torch.Tensor | None, others: torch.Tensor | None) -> bool:
    """Whether two tensors that operations have kept are equal."""
    if mine is None or others is None or type(mine) not in PLAIN or type(others) not in PLAIN:
        return False
    if mine.layout is not torch.strided or mine.dtype is not others.dtype or mine.device != others.device:
        return False
    return bool(torch.equal(mine, others))
