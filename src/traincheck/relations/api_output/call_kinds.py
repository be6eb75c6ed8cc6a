"""Judge the results of calls by their kind, whatever the program calls them.

Note [Kinds of results]
Each program names its own functions and classes, so rules about them say nothing about other programs. The purpose of
some calls is visible:
* a function with an argument named as a bound (`max_new_tokens`) that takes and returns whole numbers: the tokens that
  it adds to the sequence (or returns without it) are no more than the argument, apart from a first token;
* a normalising layer: whatever its input, the root mean square of the result is about that of the layer's own weight
  (or of one plus the weight, where layers begin at zero);
* a batch of a data loader: its largest tensor has several rows where others have, and does not hold all samples in a
  single row (a whole batch that was taken for a sample). Samples that were packed one behind the other into one row of
  tokens are meant to be one row, see `_are_packed`;
* a model called under autocast: most of its matrix products return the dtype of autocast. (A few, such as those of a
  router, are kept in full precision on purpose; of a partly compiled model, not all are seen.)
* a constructor that takes a number of layers: the module has as many modules of some class, or a multiple of it (so
  many in each stage), or one more (where only those between the first and the last are counted).

These expectations hold in all circumstances, so the context is empty.

Known limitation: if a function returns no part of a short prompt, more tokens than the bound may pass for the prompt
and the added tokens.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence, Set
from operator import attrgetter

from traincheck.relations.api_arg.call_arguments import FLOATING
from traincheck.relations.api_output.call_results import WHOLE, Flow
from traincheck.relations.base import ended, outcome_of, short
from traincheck.relations.parts import FORWARD, NEXT, number
from traincheck.vocab.call_kinds import LAYERED, NORMALISATION, argument_of_kind, is_layer_count, taking
from traincheck.vocab.demand import ARGUMENTS, NUMBERS, TENSORS, Demand, ValueKind
from traincheck.vocab.events import FUNCTION, MODULE, PROJECT, Call, TensorSummary, Window
from traincheck.vocab.facts import FactValue, value_of
from traincheck.vocab.occasion import Occasion, Property, Subject
from traincheck.vocab.properties import GIVES_BACK

GRAIN = "kind"
WITHIN_BOUND = Property(GIVES_BACK, "no more than is asked for")
SCALED = Property(GIVES_BACK, "the scale of its weight")
SEVERAL_ROWS = Property(GIVES_BACK, "several rows")
IN_LOW_PRECISION = Property(GIVES_BACK, "matrix products of autocast")
AS_MANY_LAYERS = Property(GIVES_BACK, "as many layers")

_FUNCTIONAL_PRODUCTS = ("linear", "conv1d", "conv2d", "conv3d", "scaled_dot_product_attention")
_TORCH_PRODUCTS = ("matmul", "mm", "bmm", "addmm", "baddbmm", "conv1d", "conv2d", "conv3d")
_TENSOR_PRODUCTS = ("matmul", "__matmul__", "mm", "bmm", "addmm")
PRODUCTS = frozenset(
    f"torch.{home}{name}"
    for home, names in (("nn.functional.", _FUNCTIONAL_PRODUCTS), ("", _TORCH_PRODUCTS), ("Tensor.", _TENSOR_PRODUCTS))
    for name in names
)
"""Functions that every autocast runs in low precision: matrix products and those that consist of them."""

SCALE_BAND = 3.0
"""Allowed factor between the root mean squares. Correlated weights, padding and the safety term change it by less than
a half as a rule. A norm in place of a root mean square is off by the root of the width, which is four at a width of 16.
"""

MIN_SCALE = 1e-2
"""Below this size or deviation, the safety term that a normalising layer adds to the square of its input may outweigh
it."""

CONSTANT = 1e-3
"""Below this share of the weight's scale, the input was the same everywhere, as in a first call with zeros, so there is
no deviation to divide by. (A norm in place of a root mean square falls that low at a width of 1e6.)"""

_VALUES_NEEDED: dict[str, tuple[ValueKind, ...]] = {NORMALISATION: (TENSORS, NUMBERS), NEXT: (TENSORS,)}
"""The values that sources read of the calls of a kind; for other kinds, `ARGUMENTS` and `TENSORS`."""


class CallKinds:
    """Looks at one window at a time."""

    grain = GRAIN

    def __init__(self, interest: Set[Subject] | None = None) -> None:
        requested = None if interest is None else {subject.api for subject in interest if subject.grain == GRAIN}
        self._of_modules = requested is None or NORMALISATION in requested
        self._of_batches = requested is None or NEXT in requested
        self._of_products = requested is None or FORWARD in requested
        self._of_functions = requested is None or not requested <= {NORMALISATION, NEXT, FORWARD}

    def occasions(self, window: Window) -> Iterator[Occasion]:
        """Yield one occasion for each call of a kind that can be judged."""
        calls = [
            call
            for (kind, levels), same_calls in window.calls_like.items()
            if self._is_requested(kind, levels[0])
            for call in same_calls
            if kind != MODULE or value_of(call.result, "scale") is not None
        ]
        calls.sort(key=_SEQ)
        for call in calls:
            if call.kind == PROJECT:
                yield from _judge_function(call)
            elif call.kind == MODULE:
                yield from _as_occasion(NORMALISATION, SCALED, _keeps_scale(call), call)
            else:
                yield from _as_occasion(NEXT, SEVERAL_ROWS, _has_several_rows(call), call)
        if self._of_products:
            yield from _judge_products(window)

    def _is_requested(self, kind: str, name: str) -> bool:
        """Whether the interest includes such calls."""
        if kind == PROJECT:
            return self._of_functions
        return self._of_modules if kind == MODULE else self._of_batches and name == NEXT

    @staticmethod
    def needs(subject: Subject, prop: Property) -> Demand:
        """The demand of a rule with this subject and property."""
        if prop == IN_LOW_PRECISION:
            return Demand.of_calls(*PRODUCTS, values=(TENSORS,)) | Demand.of_calls(FORWARD)
        return Demand.of_calls(subject.api, values=_VALUES_NEEDED.get(subject.api, (ARGUMENTS, TENSORS)))

    @staticmethod
    def argument_of(subject: Subject) -> tuple[str, str] | None:
        """See `Relation.argument_of`."""
        name = argument_of_kind(subject.api)
        return (subject.api, name) if name else None

    @staticmethod
    def describe(subject: Subject, prop: Property) -> str:
        """The rule as a sentence."""
        bound = argument_of_kind(subject.api)
        sentences = {
            WITHIN_BOUND: f"a function that is given {bound} returns a sequence no longer than that, or adds no more",
            SCALED: "a normalising layer returns values with about the root mean square of its weight",
            SEVERAL_ROWS: f"the largest tensor of a batch from {short(NEXT)} has a row for each of several samples",
            IN_LOW_PRECISION: "in a call of a model under autocast, most matrix products (linear, matmul, "
            "convolutions) return the dtype of autocast",
            AS_MANY_LAYERS: "a module that is given a number of layers is built with as many modules of some class",
        }
        return sentences[prop]


_SEQ = attrgetter("seq")


def _as_occasion(kind: str, prop: Property, holds: bool | None, call: Call) -> Iterator[Occasion]:
    if holds is not None:
        yield Occasion(Subject(kind, GRAIN), (), *outcome_of(prop, holds), call.seq)


# -- functions of the program's ----------------------------------------------------------------------------------------


def _judge_function(call: Call) -> Iterator[Occasion]:
    layers = value_of(call.result, "layers")
    if isinstance(layers, str):
        yield from _as_occasion(LAYERED, AS_MANY_LAYERS, _has_layers(call, layers), call)
        return
    added, first = _added_tokens(Flow.of(call)) if call.tensors else (0, 0)
    for name, limit in call.args:
        # Below the bound, the argument may be any other number.
        if type(limit) is int and 1 < limit <= added and not name.startswith("len("):
            yield from _as_occasion(taking(name), WITHIN_BOUND, added <= limit + first, call)


def _added_tokens(flow: Flow) -> tuple[int, int]:
    """The number of tokens that a call added to the sequence (or returned without it), and how many of them may be
    first tokens; zero for other calls."""
    main = flow.main
    if main is None or main.dtype not in WHOLE or main.dtype == "bool" or not main.shape:
        return 0, 0
    for tensor in flow.arguments:
        if tensor.dtype == main.dtype and tensor.shape and tensor.shape[:-1] == main.shape[:-1]:
            longer = main.shape[-1] - tensor.shape[-1]
            return (longer, 0) if longer > 0 else (main.shape[-1], 1)
    return 0, 0


def _has_layers(call: Call, counts: str) -> bool | None:
    """Whether each requested number of layers is that of the modules of some class, see the note above.

    The number may be meant for each of several stages, so a multiple is accepted.
    """
    requested = [value for name, value in call.args if is_layer_count(name) and type(value) is int and value > 1]
    built_counts = {int(count) for count in counts.split("+") if count}
    if not requested or not built_counts:
        return None
    return all(
        count + 1 in built_counts or any(module_count % count == 0 for module_count in built_counts)
        for count in requested
    )


# -- modules and batches -----------------------------------------------------------------------------------------------


def _keeps_scale(call: Call) -> bool | None:
    """Whether a normalising layer brings its input to the scale of its weight; None if that is unknown.

    In evaluation, some layers use the statistics of training, which are poor at first.
    """
    scale, shifted, deviation = (
        number(value_of(call.result, name)) for name in ("scale", "shifted_scale", "deviation")
    )
    if scale is None or shifted is None or value_of(call.context, "training") is not True:
        return None
    if deviation is not None and deviation < MIN_SCALE:
        return None
    flow = Flow.of(call)
    if flow.main is None or not flow.arguments or flow.arguments[0].shape != flow.main.shape:
        return None
    smaller, larger = min(scale, shifted), max(scale, shifted)
    before, after = _scale(flow.arguments[0]), _scale(flow.main)
    if before is None or after is None or before < MIN_SCALE or after < CONSTANT * smaller:
        return None
    return smaller / SCALE_BAND <= after <= larger * SCALE_BAND


def _scale(tensor: TensorSummary) -> float | None:
    """The root mean square of a tensor whose values were read."""
    norm, size = value_of(tensor.facts, "norm"), math.prod(tensor.shape)
    return norm / math.sqrt(size) if isinstance(norm, float) and size else None


def _has_several_rows(call: Call) -> bool | None:
    """Whether the largest tensor of a batch has several rows, where others have or its one row holds all samples."""
    tensors = sorted((tensor for tensor in call.tensors if tensor.shape), key=lambda tensor: math.prod(tensor.shape))
    if not tensors:
        return None
    *others, largest = tensors
    size = value_of(call.args, "batch_size")
    if _are_packed(tensors, size):
        return None
    all_in_one = largest.shape[0] == 1 and len(largest.shape) > 2 and largest.shape[1] == size and size != 1
    if all_in_one or any(tensor.shape[0] > 1 for tensor in others):
        return largest.shape[0] > 1
    return None


def _are_packed(tensors: Sequence[TensorSummary], size: FactValue) -> bool:
    """Whether a batch holds its samples one behind the other: several tensors have one row each, all of the same
    length, which exceeds the number of samples. (Nesting puts a dimension of exactly that number behind the row.)

    If the number of samples is unknown, the length has to exceed the number of rows of every other tensor.
    """
    rows = [tensor for tensor in tensors if tensor.shape[0] == 1 and len(tensor.shape) > 1]
    if len(rows) < 2:
        return False
    length = min(rows, key=lambda tensor: len(tensor.shape)).shape[1]
    samples = size if type(size) is int else max(tensor.shape[0] for tensor in tensors)
    return length > samples and all(length in tensor.shape[1:] for tensor in rows)


def _judge_products(window: Window) -> Iterator[Occasion]:
    """Yield one occasion for each call of a model under autocast that multiplies matrices."""
    if not any(call.kind == MODULE and value_of(call.context, "autocast") in FLOATING for call in window.calls):
        return
    low_precision: dict[int, list[bool]] = {}
    models: dict[int, Call] = {}
    for call in window.calls:
        if call.kind != FUNCTION or call.name not in PRODUCTS or not ended(call):
            continue
        model = next((ancestor for ancestor in reversed(window.ancestors(call)) if ancestor.kind == MODULE), None)
        fully_observed = model is not None and ended(model) and model.seq not in window.hidden
        kind = value_of(model.context, "autocast") if model is not None and fully_observed else None
        result = Flow.of(call).main
        if model is not None and kind in FLOATING and result is not None and result.dtype in FLOATING:
            models[model.seq] = model
            low_precision.setdefault(model.seq, []).append(result.dtype == kind)
    for seq, in_low in low_precision.items():
        yield from _as_occasion(FORWARD, IN_LOW_PRECISION, 2 * sum(in_low) > len(in_low), models[seq])
