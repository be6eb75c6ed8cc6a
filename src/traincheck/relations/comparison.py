"""Comparison of several calls of one API: whether their arguments and results are all equal or all distinct.

Values, dtypes and shapes matter where they are all equal, and where each rank or thread has its own value. Memory and
contents matter also where each call has its own.

Note [Contents of a sample]
A full recording reads the contents of the first calls only; a run that checks rules about contents reads those of every
call. A function of the project behaves the same in every run. So the first calls may refute that calls are all equal or
all distinct, but only the contents of all calls can confirm it. (Rules about other calls rest on several programs.)
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence, Set
from typing import NamedTuple

from traincheck.relations.base import context_of
from traincheck.vocab.collectives import COLLECTIVES, DEALS, RECEIVES, SENDS, WAIT, fills
from traincheck.vocab.demand import ARGUMENTS, CONTENTS, TENSORS, ValueKind
from traincheck.vocab.events import LIFECYCLE, MODULE, PROJECT, RESULT, Call, TensorSummary
from traincheck.vocab.facts import Facts
from traincheck.vocab.occasion import Property
from traincheck.vocab.properties import COMPARES_CALLS, DISTINCT, EQUAL

VALUE, DTYPE, SHAPE, STORAGE, DATA = "value of ", "dtype of ", "shape of ", "storage of ", "data of "

FIRST = 2
"""Number of consecutive calls whose contents are compared. A full recording reads no more of them in a step
(`MAX_READ_CALLS` in sources/tensors/call_summaries.py), and a check must judge a rule on the same calls."""

MIN_ELEMENTS = 8
"""Tensors with fewer elements may be equal by chance, such as two losses of zero, so distinct ones prove nothing."""

_BETWEEN_RANKS = COLLECTIVES | SENDS | RECEIVES | {WAIT}

Ways = Mapping[str, tuple[str, ...]]
"""The relations to test for each aspect; aspects that are missing are not compared."""

_EITHER = (EQUAL, DISTINCT)

OF_MODULES: Ways = {VALUE: (EQUAL,)}
"""For consecutive calls of one class of modules, which mostly go from layer to layer."""
OF_PROGRAM: Ways = {VALUE: (EQUAL,), DTYPE: (EQUAL,), DATA: _EITHER}
"""For calls of functions of the project. Sizes and whole numbers, which may count what is in a batch, are left out: the
last of several batches may be smaller."""
OF_LIFECYCLE: Ways = {DATA: (DISTINCT,), STORAGE: (DISTINCT,)}
"""For consecutive calls that drive training. To fetch the same batch or to start a backward from the same loss again is
a waste. How they are called depends on the program."""
AT_ONCE: Ways = {VALUE: _EITHER, DTYPE: (EQUAL,), SHAPE: (EQUAL,), DATA: _EITHER}
"""For calls at the same point of several ranks or threads. Memory has other names in each of them."""
OF_COLLECTIVES: Ways = {VALUE: (EQUAL,), DTYPE: (EQUAL,), SHAPE: (EQUAL,), DATA: (EQUAL,)}
"""For the same collective on several ranks. Ranks may bring equal contents to it."""
OF_OTHERS: Ways = {DATA: _EITHER}
"""For calls that drive training on several ranks, which need not do the same."""
OF_EXCHANGES: Ways = {}
"""For consecutive messages between ranks. Programs reuse buffers, and gradients may be zero. messages.py checks that a
message arrives intact."""


def ways_of(call: Call) -> Ways:
    """The relations to test for consecutive calls of this API."""
    if call.name in _BETWEEN_RANKS:
        return OF_EXCHANGES
    if call.kind == LIFECYCLE:
        return OF_LIFECYCLE
    return OF_MODULES if call.kind == MODULE else OF_PROGRAM


class Verdict(NamedTuple):
    """The properties that hold for several calls, and those that do not."""

    held: frozenset[Property]
    failed: frozenset[Property]


def compare(
    calls: Sequence[Call], ways: Ways, partly_read: Set[str] = frozenset(), *, in_a_row: bool = False
) -> Verdict:
    """Whether the values that the calls were given are all equal or all distinct.

    A value that fewer than two calls recorded is not judged. `partly_read` (see `sampled`) names contents that were not
    read for every call: these can refute a property, but not confirm it. Calls `in_a_row` are of one rank and thread;
    only the contents of the `FIRST` ones count.
    """
    values_by_name: dict[str, list[Hashable]] = {}
    for index, call in enumerate(calls):
        for name, value in _values_of(call):
            aspect = _aspect_of(name)
            if aspect in ways and not (in_a_row and index >= FIRST and aspect == DATA):
                values_by_name.setdefault(name, []).append(value)
    held: set[Property] = set()
    failed: set[Property] = set()
    for name, values in values_by_name.items():
        if len(values) < 2:
            continue
        different = len(set(values))
        for relation in ways[_aspect_of(name)]:
            if relation == DISTINCT and (_is_small(name, calls) or any(isinstance(value, bool) for value in values)):
                continue
            if ways is OF_PROGRAM and any(type(value) is int for value in values):
                continue
            holds = different == (1 if relation == EQUAL else len(values))
            if not (holds and name in partly_read):
                (held if holds else failed).add(Property(COMPARES_CALLS, name, relation))
    return Verdict(frozenset(held), frozenset(failed))


def _aspect_of(name: str) -> str:
    """The aspect that `name` starts with: `value of ` for `value of capacity`."""
    return name[: name.index(" of ") + 4]


def _is_small(name: str, calls: Sequence[Call]) -> bool:
    """Whether `name` refers to contents of so few elements that they may be equal by chance."""
    role = name.removeprefix(DATA)
    if role == name:
        return False
    sizes = (
        sum(
            math.prod(tensor.shape)
            for tensor in call.tensors
            if role in (tensor.role, RESULT if is_result(tensor) else "")
        )
        for call in calls
    )
    return min(sizes) < MIN_ELEMENTS


def _values_of(call: Call) -> Iterator[tuple[str, Hashable]]:
    # Numbers and flags can be compared. Whether a text or None should be the same depends on its meaning.
    for name, value in call.args:
        if isinstance(value, (bool, int, float)) and not is_mode(name, call):
            yield VALUE + name, value
    results = []
    for tensor in call.tensors:
        if is_result(tensor):
            results.append(tensor)
        else:
            of_call = _of_tensors(tensor.role, (tensor,))
            to_fill = call.name in COLLECTIVES and fills(call.name, tensor.role.partition("[")[0])
            yield from (pair for pair in of_call if not (to_fill and pair[0].startswith(DATA)))
    if results:
        # A batch is one thing: its labels alone may well be equal by chance.
        # Each rank gets a part of its own, and such parts are equal by chance only.
        dealt = call.name in DEALS
        yield from (pair for pair in _of_tensors(RESULT, results) if not (dealt and pair[0].startswith(DATA)))


def _of_tensors(name: str, tensors: Sequence[TensorSummary]) -> Iterator[tuple[str, Hashable]]:
    yield DTYPE + name, tuple(tensor.dtype for tensor in tensors)
    yield SHAPE + name, tuple(tensor.shape for tensor in tensors)
    if name != RESULT and all(tensor.storage for tensor in tensors):
        yield STORAGE + name, tuple(tensor.storage for tensor in tensors)
    if all(tensor.fingerprint is not None for tensor in tensors):
        yield DATA + name, tuple(tensor.fingerprint for tensor in tensors)


def sampled(calls: Iterable[Call]) -> frozenset[str]:
    """The contents of functions of the project that were not read for each of the calls."""
    return frozenset(
        DATA + (RESULT if is_result(tensor) else tensor.role)
        for call in calls
        if call.kind == PROJECT
        for tensor in call.tensors
        if tensor.fingerprint is None
    )


TRAINING = "training"
"""A flag that functions take as an argument, and that is also a fact: the mode of the module around the call."""


def is_mode(name: str, call: Call) -> bool:
    """Whether a flag is the mode of the called module rather than an argument."""
    return call.kind == MODULE and name == TRAINING


def is_result(tensor: TensorSummary) -> bool:
    """Whether the tensor came out of the call."""
    return tensor.role == RESULT or tensor.role.startswith(f"{RESULT}[")


def common(calls: Iterable[Call], stage: str) -> Facts:
    """The facts that all of the calls share, with the stage."""
    contexts = {call.context for call in calls}
    if len(contexts) == 1:
        return context_of(contexts.pop(), stage)
    shared = set.intersection(*map(set, contexts)) if contexts else set()
    return context_of(tuple(sorted(shared, key=lambda pair: pair[0])), stage)


def data_needed(prop: Property) -> ValueKind:
    """The values that sources must read of the calls to judge a property of `compare`."""
    aspect = _aspect_of(prop.object)
    return ARGUMENTS if aspect == VALUE else CONTENTS if aspect == DATA else TENSORS


def value_in_call(call: Call, name: str) -> Hashable:
    """The value in the call that `compare` calls `name`; None if the call lacks it."""
    return next((value for value_name, value in _values_of(call) if value_name == name), None)


def phrase_for(prop: Property) -> str:
    """The shared or individual quality of the calls: `the same dtype of input`."""
    return f"the same {compared_phrase(prop)}" if prop.detail == EQUAL else f"each another {compared_phrase(prop)}"


def compared_phrase(prop: Property) -> str:
    """The compared quality in words: `dtype of input`."""
    phrase = prop.object if prop.object != SHAPE + RESULT else "sizes of the result"
    phrase = phrase.replace(DATA, "contents of ").replace(f"of {RESULT}", "of the result")
    return phrase.replace(VALUE, "value of ").replace(STORAGE, "memory of ")
