"""Judge the arguments of one call, see Note [Arguments that mean something] in relation.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from traincheck.relations.base import varies
from traincheck.relations.comparison import is_result
from traincheck.relations.parts import BACKWARD
from traincheck.vocab import demand
from traincheck.vocab.bounded_cache import BoundedCache
from traincheck.vocab.demand import ARGUMENTS, SCALE, TENSORS, ValueKind
from traincheck.vocab.events import FUNCTION, Call, TensorSummary
from traincheck.vocab.facts import Facts, value_of
from traincheck.vocab.occasion import Property
from traincheck.vocab.properties import ARGUMENT_IS_SCALED, ARGUMENT_SIZE, ARGUMENT_VALUES

SCALED = Property(ARGUMENT_IS_SCALED, "loss")

ROWS, NO_ROWS, NOT_ZERO = "rows sum to one", "rows do not sum to one", "not all is zero"
SEVERAL = "more than one element along dim"
MATRIX = 2
"""Dimensions of the scores of one sequence: queries and keys."""

FLOATING = ("float32", "float64", "float16", "bfloat16")


class Judged(NamedTuple):
    """The properties that hold and fail in some circumstances (without the stage)."""

    context: Facts
    held: frozenset[Property]
    failed: frozenset[Property]


_MAX_CACHED = 10_000
"""Cached judgements, of about a kilobyte each."""

_cache: BoundedCache[tuple[object, ...], tuple[Judged, ...]] = BoundedCache(_MAX_CACHED)

_PropertyResults = Iterator[tuple[Property, bool]]


def judge_arguments(call: Call, api: str) -> tuple[Judged, ...]:
    """The judgements on the arguments of `call`, known as `api`. Equal calls share one result."""
    if not _is_judged(call, api):
        return ()
    if varies(call):
        return tuple(_judge(call, api))
    kinds = tuple(type(value) for _, value in call.args)  # 0, 0.0 and False are equal, and here they are not
    key = (api, call.kind, call.levels, call.context, call.args, kinds, call.tensors, call.result)
    cached = _cache.get(key)
    if cached is None:
        cached = _cache.put(key, tuple(_judge(call, api)))
    return cached


def without_gradients(judged: Judged) -> Judged:
    """What a judgement says of a call that no backward follows: text is generated from a single token, for example."""
    held, failed = (
        frozenset(prop for prop in properties if prop.verb != ARGUMENT_SIZE)
        for properties in (judged.held, judged.failed)
    )
    return Judged(judged.context, held, failed)


def argument_data_needed(prop: Property) -> set[ValueKind]:
    """The values that sources must read of the calls to judge a property of `judge_arguments`."""
    if prop == SCALED:
        return {SCALE}
    if prop.verb == ARGUMENT_SIZE:
        return {ARGUMENTS, TENSORS}
    return {TENSORS, demand.NUMBERS if prop.detail == NOT_ZERO else demand.ROWS}


def _is_judged(call: Call, api: str) -> bool:
    """False if `_property_results` has nothing to judge. This test costs less than a look into the cache."""
    if api == BACKWARD or (len(call.tensors) == 2 and call.kind == FUNCTION):
        return True
    return len(call.tensors) > 1 and any(tensor.shape == () for tensor in call.tensors)


def _judge(call: Call, api: str) -> Iterator[Judged]:
    judged = list(_property_results(call, api))
    if judged:
        held = frozenset(prop for prop, holds in judged if holds)
        yield Judged(call.context, held, frozenset(prop for prop, holds in judged if not holds))


def _property_results(call: Call, api: str) -> _PropertyResults:
    """Whether arguments are what the function is for. Values are judged only under the call's own name, because sources
    have to read them in every call."""
    scaled = value_of(call.result, "scaled") if api == BACKWARD else None
    if isinstance(scaled, bool):
        yield SCALED, scaled
    arguments = [tensor for tensor in call.tensors if not is_result(tensor)]
    results = [tensor for tensor in call.tensors if is_result(tensor)]
    if api == call.name and _is_loss(arguments, results):
        for tensor in arguments:
            if flows(tensor) and tensor.shape:
                yield from _values(tensor)
    if call.kind == FUNCTION and len(arguments) == len(results) == 1:
        holds = _several(call, arguments[0], results[0])
        if holds is not None:
            yield Property(ARGUMENT_SIZE, arguments[0].role, SEVERAL), holds


def flows(tensor: TensorSummary) -> bool:
    """Whether a gradient can flow through the tensor."""
    return tensor.requires_grad and tensor.dtype in FLOATING


def _is_loss(arguments: list[TensorSummary], results: list[TensorSummary]) -> bool:
    """Whether a call takes several tensors and returns one number from which gradients flow."""
    return len(arguments) > 1 and len(results) == 1 and results[0].shape == () and flows(results[0])


def _values(tensor: TensorSummary) -> _PropertyResults:
    tensor_facts = dict(tensor.facts)
    rows = tensor_facts.get("rows_sum_to_one")
    if isinstance(rows, bool) and len(tensor.shape) > 1:
        yield Property(ARGUMENT_VALUES, tensor.role, ROWS), rows
        yield Property(ARGUMENT_VALUES, tensor.role, NO_ROWS), not rows
    # Infinite values are allowed: a softmax masks entries with minus infinity.
    if "zero" in tensor_facts:
        yield Property(ARGUMENT_VALUES, tensor.role, NOT_ZERO), tensor_facts["zero"] is False


def _several(call: Call, argument: TensorSummary, result: TensorSummary) -> bool | None:
    """Whether there is more than one element along `dim`; None where it does not matter.

    It matters if a function maps the elements along `dim` to as many (a softmax). For a single element the result is
    constant or equal to the input, and a gradient that should flow through it is lost. In a sequence of one token,
    that attends to itself, there is nothing to choose: both of the last dimensions have one element.
    """
    dim = value_of(call.args, "dim")
    if isinstance(dim, bool) or not isinstance(dim, int) or argument.shape != result.shape or not flows(argument):
        return None
    rank = len(argument.shape)
    if not -rank <= dim < rank or (rank > MATRIX and argument.shape[-2:] == (1, 1)):
        return None
    return argument.shape[dim] > 1
