"""Judge the result of one call against its arguments and circumstances.

Each function judges one group of properties. It yields those that hold and those that fail, and omits those that the
call does not allow to judge. See the notes in relation.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from traincheck.relations.api_arg.call_arguments import FLOATING, flows
from traincheck.relations.comparison import is_result
from traincheck.relations.parts import number
from traincheck.vocab.collectives import WAIT
from traincheck.vocab.events import MODULE, RESULT, Call, TensorSummary
from traincheck.vocab.facts import Facts, value_of
from traincheck.vocab.occasion import Property
from traincheck.vocab.properties import (
    LEAVES_ARGUMENT,
    LEAVES_NORM,
    RETURNS,
    RETURNS_DTYPE,
    RETURNS_LENGTH,
    RETURNS_MORE,
    RETURNS_SIZE,
    RETURNS_WIDTH,
)

OF_AUTOCAST, OF_INPUT, OF_ARGUMENT = "of autocast", "of an input", "of argument "
REQUIRES_GRAD, FINITE = Property(RETURNS, "requires_grad"), Property(RETURNS, "finite")
ROWS, UNIT = Property(RETURNS, "rows that sum to one"), Property(RETURNS, "unit scale")
UNCHANGED, CHANGED = "unchanged", "changed"
BATCH, SHAPE, LENGTH = "batch of ", "shape of ", "length of "
AT_MOST, EQUAL_TO = "at most ", "equal to "
MAX_NORM, SCALED_ALIKE = Property(LEAVES_NORM, "at most max_norm"), Property(LEAVES_NORM, "scaled alike")

NORM_TOLERANCE = 1e-2
"""Norms above the limit by no more than this are rounding: a bfloat16 has 8 bits, so scaling may change each gradient
by 0.4 %."""

UNIT_BAND = (0.5, 2.0)
"""Root mean squares that count as unit scale: training moves the weights of a normalising layer away from one."""

MIN_SCALE = 1e-2
"""Below this, the safety term that a normalising layer adds to the square of its input may outweigh it."""

MAX_TENSORS = 4
"""Tensors that a result is compared with. The important ones come first, and the length stands for a list."""

FEW = 4
"""A tuple of fewer members may be several results rather than a list."""

WHOLE = ("int64", "int32", "bool", "uint8")
"""Dtypes that a result may always have, whatever floating point numbers went in, as indices and masks do."""

Judged = Iterator[tuple[Property, bool]]


class Flow(NamedTuple):
    """A call with its input tensors and its output tensors; `main` is the output that the call is for."""

    call: Call
    arguments: tuple[TensorSummary, ...]
    results: tuple[TensorSummary, ...]
    main: TensorSummary | None

    @classmethod
    def of(cls, call: Call) -> Flow:
        results: list[TensorSummary] = []
        arguments: list[TensorSummary] = []
        for tensor in call.tensors:
            (results if is_result(tensor) else arguments).append(tensor)
        # If a call returns a loss and the tensors behind it, the loss says least.
        main = next((tensor for tensor in results if tensor.shape), results[0] if results else None)
        return cls(call, tuple(arguments), tuple(results), main)

    @property
    def detail(self) -> str:
        """Which of several results the property refers to."""
        return "" if self.main is None or self.main.role == RESULT else self.main.role


# -- data types --------------------------------------------------------------------------------------------------------


def promoted(tensors: tuple[TensorSummary, ...]) -> str | None:
    """The floating type that a sum of these would have: the widest, and float32 for a mix of the two half types.

    None if there is no floating tensor, or one of a type that is not promoted (complex, 8 bits). Numbers of dimension
    zero give way to tensors.
    """
    floating = [tensor for tensor in tensors if "float" in tensor.dtype or "complex" in tensor.dtype]
    kinds = {tensor.dtype for tensor in floating if tensor.shape} or {tensor.dtype for tensor in floating}
    if not kinds or not all(tensor.dtype in FLOATING for tensor in floating):
        return None
    if "float64" in kinds:
        return "float64"
    return kinds.pop() if len(kinds) == 1 else "float32"


def under_autocast(flow: Flow) -> Judged:
    """Whether the result has the dtype of autocast; judged only if no input has it.

    (Most functions keep the type of their input, whether autocast knows them or not. Autocast leaves double precision
    alone.)
    """
    autocast = value_of(flow.call.context, "autocast")
    kinds = {tensor.dtype for tensor in flow.arguments if tensor.dtype in FLOATING}
    to_cast = autocast in FLOATING and bool(kinds) and not kinds & {autocast, "float64"}
    if to_cast and flow.main is not None and flow.main.dtype in FLOATING and not _requested_dtypes(flow.call.args):
        yield Property(RETURNS_DTYPE, OF_AUTOCAST, flow.detail), flow.main.dtype == autocast


def _requested_dtypes(args: Facts) -> list[tuple[str, str]]:
    """Arguments that name a dtype."""
    return [(name, value) for name, value in args if isinstance(value, str) and value in (*FLOATING, *WHOLE)]


def dtypes(flow: Flow) -> Judged:
    """The dtype of the result: that of an argument or of the inputs, or a fixed one for indices and masks."""
    main, kind = flow.main, promoted(flow.arguments)
    if main is None:
        return
    requested = _requested_dtypes(flow.call.args)
    if requested:
        for name, value in requested:
            yield Property(RETURNS_DTYPE, OF_ARGUMENT + name, flow.detail), main.dtype == value
    elif kind is not None and main.dtype in FLOATING:
        yield Property(RETURNS_DTYPE, OF_INPUT, flow.detail), main.dtype == kind
    elif kind is not None and main.dtype not in {tensor.dtype for tensor in flow.arguments}:
        for whole in WHOLE:
            yield Property(RETURNS_DTYPE, whole, flow.detail), main.dtype == whole


# -- gradients and values ----------------------------------------------------------------------------------------------


def requires_grad(flow: Flow) -> Judged:
    """Whether a gradient can flow back through the call, if it can flow up to it."""
    if _may_only_look(flow.call):
        return
    could = value_of(flow.call.context, "grad_mode") == "on" and any(flows(tensor) for tensor in flow.arguments)
    floating = [tensor for tensor in flow.results if tensor.dtype in FLOATING]
    if could and floating:  # masks and counts may be among them
        yield REQUIRES_GRAD, any(tensor.requires_grad for tensor in floating)


def _may_only_look(call: Call) -> bool:
    """Whether the call is of a module without parameters inside a model. Such a module may make positions or masks and
    only use the size of its input."""
    inside = value_of(call.context, "outermost") is not True
    return call.kind == MODULE and inside and value_of(call.result, "parameters") is False


def finite(flow: Flow) -> Judged:
    """Whether all results are finite, if all inputs were."""
    into = [value_of(tensor.facts, "finite") for tensor in flow.arguments if tensor.dtype in FLOATING]
    out = [value_of(tensor.facts, "finite") for tensor in flow.results if tensor.dtype in FLOATING]
    finite_arguments = all(math.isfinite(value) for _, value in flow.call.args if isinstance(value, float))
    if into and out and all(into) and None not in out and finite_arguments:
        yield FINITE, all(out)


def norms(flow: Flow) -> Judged:
    """Whether clipping bounds the norm as requested, and scales all gradients of an optimizer by one factor. Norms that
    are not finite cannot be clipped."""
    limit, after = number(value_of(flow.call.args, "max_norm")), number(value_of(flow.call.result, "norm_after"))
    if limit and after is not None and math.isfinite(after):
        yield MAX_NORM, after <= limit * (1 + NORM_TOLERANCE)
    scaled_alike = value_of(flow.call.result, "alike")
    if isinstance(scaled_alike, bool):
        yield SCALED_ALIKE, scaled_alike


def values(flow: Flow) -> Judged:
    """Whether rows sum to one, and whether a module brings its input, whatever its scale, to unit scale."""
    main = flow.main
    if main is None:
        return
    rows = value_of(main.facts, "rows_sum_to_one")
    if isinstance(rows, bool) and len(main.shape) > 1:
        yield ROWS._replace(detail=flow.detail), rows
    if flow.call.kind != MODULE or not flow.arguments or flow.arguments[0].shape != main.shape:
        return
    before, after = _scale(flow.arguments[0]), _scale(main)
    # An input at unit scale leaves most layers at unit scale, so it proves nothing.
    if before is not None and after is not None and before >= MIN_SCALE and not _is_unit(before):
        yield UNIT._replace(detail=flow.detail), _is_unit(after)


def _scale(tensor: TensorSummary) -> float | None:
    """The root mean square of a tensor with several rows."""
    norm, size = value_of(tensor.facts, "norm"), math.prod(tensor.shape)
    if not isinstance(norm, float) or len(tensor.shape) < 2 or not size:
        return None
    return norm / math.sqrt(size)


def _is_unit(scale: float) -> bool:
    return UNIT_BAND[0] <= scale <= UNIT_BAND[1]


def untouched(flow: Flow) -> Judged:
    """Which arguments stay as they were. A function that is meant to write into an argument returns it, or has a name
    that ends in an underscore."""
    if flow.call.kind == MODULE or flow.call.name.endswith("_"):
        return  # modules seldom change their inputs, and this would require a fingerprint of every input
    returned = {tensor.storage for tensor in flow.results if tensor.storage}
    for tensor in flow.arguments[:MAX_TENSORS]:
        changed = value_of(tensor.facts, "changed")
        if isinstance(changed, bool) and tensor.storage not in returned:
            yield Property(LEAVES_ARGUMENT, tensor.role, UNCHANGED), not changed


def filled(flow: Flow) -> Judged:
    """Whether a function of the project changes the parameters that it is given, see Note [Filled at the start]."""
    for tensor in flow.arguments[:MAX_TENSORS]:
        changed = value_of(tensor.facts, "changed")
        if isinstance(changed, bool) and tensor.storage and not tensor.storage.startswith("~"):
            yield Property(LEAVES_ARGUMENT, tensor.role, CHANGED), changed


def on_its_way(flow: Flow) -> Judged:
    """Whether a tensor that is sent stays as it was until somebody waited for the end of the send."""
    for tensor in flow.arguments:
        changed = value_of(tensor.facts, "changed")
        if flow.call.name == WAIT and isinstance(changed, bool):
            yield Property(LEAVES_ARGUMENT, tensor.role, UNCHANGED), not changed


# -- sizes -------------------------------------------------------------------------------------------------------------


def sizes(flow: Flow) -> Judged:
    """Whether the result keeps the batch or the whole shape of an input, or has an entry for each member of a list.

    An input of a single entry says nothing: one is the size of whatever was reduced or not yet repeated.
    """
    main = flow.main
    if main is not None:
        for tensor in flow.arguments[:MAX_TENSORS]:
            if tensor.shape and tensor.shape[0] > 1:
                yield Property(RETURNS_SIZE, BATCH + tensor.role, flow.detail), main.shape[:1] == tensor.shape[:1]
                yield Property(RETURNS_SIZE, SHAPE + tensor.role, flow.detail), main.shape == tensor.shape
    count, least = _count(flow)
    for name, length in _lengths(flow.call.args):
        if count is not None and length >= least:
            yield Property(RETURNS_SIZE, LENGTH + name, flow.detail), count == length


def lengths(flow: Flow) -> Judged:
    """Whether the length of the result equals a whole number among the arguments, or stays within it.

    See Note [Bounds] in relation.py.
    """
    limits = [(name, value) for name, value in flow.call.args if type(value) is int and not name.startswith("len(")]
    main = flow.main
    measured = [(RETURNS_LENGTH, *_count(flow))]
    if main is not None and len(main.shape) > 1:
        measured.append((RETURNS_WIDTH, main.shape[-1], 2))
    measured.append((RETURNS_MORE, _growth(flow), 1))
    for verb, size, least in measured:
        for name, limit in limits:
            if size is None or limit < least:
                continue  # one is the size of anything
            if size >= limit:
                yield Property(verb, AT_MOST + name, flow.detail), size == limit
            if verb != RETURNS_MORE:
                yield Property(verb, EQUAL_TO + name, flow.detail), size == limit


def _count(flow: Flow) -> tuple[int | None, int]:
    """The number of returned items (the length of a list, the first size of a tensor), and from which number on they
    are surely items of one kind."""
    length = value_of(flow.call.result, "length")
    if type(length) is int and value_of(flow.call.result, "value") is None:
        return length, FEW
    sizes = {tensor.shape[0] for tensor in flow.results if tensor.shape}
    if len(sizes) == 1:  # of several results (the fields of a batch) only where they agree
        return sizes.pop(), 2
    return None, 2


def _growth(flow: Flow) -> int | None:
    """By how much a sequence of whole numbers (tokens) is longer as output than as input."""
    main = flow.main
    if main is not None:
        for tensor in flow.arguments:
            comparable = tensor.dtype == main.dtype and len(tensor.shape) == len(main.shape)
            if comparable and main.dtype in WHOLE and main.shape and tensor.shape[:-1] == main.shape[:-1]:
                return main.shape[-1] - tensor.shape[-1]
        return None
    count, given = _count(flow)[0], [length for _, length in _lengths(flow.call.args)]
    return count - given[0] if count is not None and len(given) == 1 else None


def _lengths(args: Facts) -> list[tuple[str, int]]:
    """The lists among the arguments, with their lengths."""
    return [(name[4:-1], value) for name, value in args if name.startswith("len(") and type(value) is int]
