"""Call arguments: what one call says of its arguments, see Note [Arguments that mean something] in api_arg.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from traincheck.relations.comparison import TRAINING, is_mode, is_result
from traincheck.vocab.events import FUNCTION, MODULE, Call, TensorSummary
from traincheck.vocab.facts import Facts, value_of
from traincheck.vocab.occasion import Property

IS, AGREES, VALUES_OF, SIZE = "argument is", "argument agrees", "argument values", "argument size"

ROWS, NO_ROWS, NOT_ZERO = "rows sum to one", "rows do not sum to one", "not all is zero"
SEVERAL = "more than one element along dim"

FLOATING = ("float32", "float64", "float16", "bfloat16")


REASONS = ("training", "grad_mode")
"""The circumstances that switch flags and figures on and off. Among others, a correlation would be chance: programs
differ in what they smooth or keep, and in whether they use autocast."""


class Judged(NamedTuple):
    """The properties that hold in some circumstances (told without the stage), and those that do not."""

    context: Facts
    held: frozenset[Property]
    failed: frozenset[Property]


_MOST_KEPT = 50_000
"""The cache is emptied beyond this: arguments that are new in each call would fill it."""

_kept: dict[tuple[object, ...], tuple[Judged, ...]] = {}

_Fates = Iterator[tuple[Property, bool]]


def judge_arguments(call: Call, api: str) -> tuple[Judged, ...]:
    """What can be said of the arguments of `call`, known as `api`; it is worked out once for equal ones."""
    if any(tensor.facts for tensor in call.tensors):
        return tuple(_judge(call, api))
    kinds = tuple(type(value) for _, value in call.args)  # 0, 0.0 and False are equal, and here they are not
    key = (api, call.kind, call.levels, call.context, call.args, kinds, call.tensors)
    found = _kept.get(key)
    if found is None:
        if len(_kept) > _MOST_KEPT:
            _kept.clear()
        found = _kept[key] = tuple(_judge(call, api))
    return found


def _judge(call: Call, api: str) -> Iterator[Judged]:
    reasons = tuple(pair for pair in call.context if pair[0] in REASONS)
    for context, fates in ((reasons, _fixed(call, api)), (call.context, _meant(call, api))):
        told = list(fates)
        if told:
            held = frozenset(prop for prop, so in told if so)
            yield Judged(context, held, frozenset(prop for prop, so in told if not so))


def _fixed(call: Call, api: str) -> _Fates:
    """Flags and figures that have a value of their own."""
    for name, value in call.args:
        if isinstance(value, bool) and not _is_mode(name, call):
            for flag in (False, True):
                yield Property(IS, api, f"{name}={flag}"), value is flag
        elif isinstance(value, float):
            yield Property(IS, api, f"{name}=0"), value == 0


def _is_mode(name: str, call: Call) -> bool:
    """Whether a flag is the mode of the module that is called, or is to be that of the module around the call."""
    return is_mode(name, call) or (name == TRAINING and isinstance(value_of(call.context, TRAINING), bool))


def _meant(call: Call, api: str) -> _Fates:
    """What arguments are for. Values are told under the call's own name only: they have to be read in every call."""
    mode, given = value_of(call.context, TRAINING), value_of(call.args, TRAINING)
    if call.kind != MODULE and isinstance(mode, bool) and isinstance(given, bool):
        yield Property(AGREES, TRAINING), given is mode
    arguments = [tensor for tensor in call.tensors if not is_result(tensor)]
    results = [tensor for tensor in call.tensors if is_result(tensor)]
    if api == call.name and _is_loss(arguments, results):
        for tensor in arguments:
            if flows(tensor) and tensor.shape:
                yield from _values(tensor)
    if call.kind == FUNCTION and len(arguments) == len(results) == 1:
        several = _several(call, arguments[0], results[0])
        if several is not None:
            yield Property(SIZE, arguments[0].role, SEVERAL), several


def flows(tensor: TensorSummary) -> bool:
    """Whether a gradient is to flow through the tensor."""
    return tensor.requires_grad and tensor.dtype in FLOATING


def _is_loss(arguments: list[TensorSummary], results: list[TensorSummary]) -> bool:
    """Whether a call compares tensors and returns one number from which gradients flow."""
    return len(arguments) > 1 and len(results) == 1 and results[0].shape == () and flows(results[0])


def _values(tensor: TensorSummary) -> _Fates:
    told = dict(tensor.facts)
    rows = told.get("rows_sum_to_one")
    if isinstance(rows, bool) and len(tensor.shape) > 1:
        yield Property(VALUES_OF, tensor.role, ROWS), rows
        yield Property(VALUES_OF, tensor.role, NO_ROWS), not rows
    # That it is finite is not asked: what is to be left out of a softmax is minus infinity on purpose.
    if "zero" in told:
        yield Property(VALUES_OF, tensor.role, NOT_ZERO), told["zero"] is False


def _several(call: Call, argument: TensorSummary, result: TensorSummary) -> bool | None:
    """Whether there is more than one element along `dim`; None where it does not matter.

    It does where a function maps what lies along `dim` to as much (a softmax): of a single element it makes a constant,
    or nothing new, and a gradient that was to flow through it is lost.
    """
    dim = value_of(call.args, "dim")
    if isinstance(dim, bool) or not isinstance(dim, int) or argument.shape != result.shape or not flows(argument):
        return None
    rank = len(argument.shape)
    return argument.shape[dim] > 1 if -rank <= dim < rank else None
