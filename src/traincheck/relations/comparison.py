"""Comparison: what several calls of one API were given and gave back, and whether it is all equal or all distinct.

A value, a data type and a shape are worth a word where they are all equal, or where ranks or threads each have their
own value; memory and what is in it also where each call has its own.

Note [Contents of a sample]
A full collection reads the contents of the first calls only, and a run under rules about them reads those of all.
What a function of the user's does goes by the call, in every run alike, so the first ones may refute that calls are all
equal, or all distinct; only the contents of all of them can bear it out. (Rules about other calls rest on several
programs.)
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
"""Of so many calls in a row contents are compared, however many there are: a full recording reads no more of them in a
step (`MOST_READ` in sources/tensors/call_summaries.py), and a rule is to be judged on what it was learned from."""

LEAST_ELEMENTS = 8
"""Tensors with fewer elements may well be equal by chance (two losses of zero), so that distinct ones say nothing."""

_BETWEEN_RANKS = COLLECTIVES | SENDS | RECEIVES | {WAIT}

Ways = Mapping[str, tuple[str, ...]]
"""What may be said of each thing that is compared; nothing of those that are not named."""

_EITHER = (EQUAL, DISTINCT)

OF_MODULES: Ways = {VALUE: (EQUAL,)}
"""For calls of one class of modules, one after the other: they mostly go from layer to layer."""
OF_PROGRAM: Ways = {VALUE: (EQUAL,), DTYPE: (EQUAL,), DATA: _EITHER}
"""For calls of functions of the user's. (The last batch of several may be smaller, so sizes are left out.)"""
OF_LIFECYCLE: Ways = {DATA: (DISTINCT,), STORAGE: (DISTINCT,)}
"""For calls that drive training, one after the other: fetching the same batch or going back from the same loss again
is a waste at best. (How they are called is a matter of the program.)"""
AT_ONCE: Ways = {VALUE: _EITHER, DTYPE: (EQUAL,), SHAPE: (EQUAL,), DATA: _EITHER}
"""For calls made at the same place in several ranks or threads. Their memory has names of its own in each."""
OF_COLLECTIVES: Ways = {VALUE: (EQUAL,), DTYPE: (EQUAL,), SHAPE: (EQUAL,), DATA: (EQUAL,)}
"""For the same collective on several ranks. What they bring to it may well be equal."""
OF_OTHERS: Ways = {DATA: _EITHER}
"""For calls that drive training, in several ranks which need not do the same."""
OF_EXCHANGES: Ways = {}
"""For what ranks send each other, one after the other. Buffers are used again and gradients may be zero; that messages
are not spoilt on the way is told where they end."""


def ways_of(call: Call) -> Ways:
    """What is said of calls of this API that follow each other."""
    if call.name in _BETWEEN_RANKS:
        return OF_EXCHANGES
    if call.kind == LIFECYCLE:
        return OF_LIFECYCLE
    return OF_MODULES if call.kind == MODULE else OF_PROGRAM


class Verdict(NamedTuple):
    """Properties that hold of several calls, and those that do not."""

    held: frozenset[Property]
    failed: frozenset[Property]


def compare(
    calls: Sequence[Call], ways: Ways, partly_read: Set[str] = frozenset(), *, in_a_row: bool = False
) -> Verdict:
    """Whether what the calls were given is all equal or all distinct.

    What only one of them tells is not judged; nor is what none does. Of what was read `of_some` calls, as `sampled`
    tells, it may be found that they are not; that they are is left open. Calls `in_a_row` are of one rank and thread:
    of contents only those of the `FIRST` ones count.
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
            holds = different == (1 if relation == EQUAL else len(values))
            if not (holds and name in partly_read):
                (held if holds else failed).add(Property(COMPARES_CALLS, name, relation))
    return Verdict(frozenset(held), frozenset(failed))


def _aspect_of(name: str) -> str:
    """Which of the things that are compared `name` is about: `value of ` for `value of capacity`."""
    return name[: name.index(" of ") + 4]


def _is_small(name: str, calls: Sequence[Call]) -> bool:
    """Whether `name` is about contents of so few elements that they may be equal by chance."""
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
    return min(sizes) < LEAST_ELEMENTS


def _values_of(call: Call) -> Iterator[tuple[str, Hashable]]:
    # Of a text or a None it is a matter of meaning whether it should be the same; numbers and flags can be compared.
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
        # What each rank gets as a part of its own is equal by chance only.
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
    """What `compare` tells of functions of the user's, and was not read of each of the calls."""
    return frozenset(
        DATA + (RESULT if is_result(tensor) else tensor.role)
        for call in calls
        if call.kind == PROJECT
        for tensor in call.tensors
        if tensor.fingerprint is None
    )


TRAINING = "training"
"""A flag that functions are given and that is also a circumstance: the mode of the module around the call."""


def is_mode(name: str, call: Call) -> bool:
    """Whether a flag is no argument but the mode of the module that is called."""
    return call.kind == MODULE and name == TRAINING


def is_result(tensor: TensorSummary) -> bool:
    """Whether the tensor came out of the call."""
    return tensor.role == RESULT or tensor.role.startswith(f"{RESULT}[")


def common(calls: Iterable[Call], stage: str) -> Facts:
    """The circumstances that all of the calls share, with the stage."""
    contexts = {call.context for call in calls}
    if len(contexts) == 1:
        return context_of(contexts.pop(), stage)
    shared = set.intersection(*map(set, contexts)) if contexts else set()
    return context_of(tuple(sorted(shared, key=lambda pair: pair[0])), stage)


def data_needed(prop: Property) -> ValueKind:
    """What has to be observed of the calls to judge a property that `compare` tells."""
    aspect = _aspect_of(prop.object)
    return ARGUMENTS if aspect == VALUE else CONTENTS if aspect == DATA else TENSORS


def value_in_call(call: Call, name: str) -> Hashable:
    """What the call tells of one of the things that `compare` names; None where it tells nothing."""
    return next((value for value_name, value in _values_of(call) if value_name == name), None)


def phrase_for(prop: Property) -> str:
    """What the calls share, or each has for itself: `the same dtype of input`."""
    return f"the same {compared_phrase(prop)}" if prop.detail == EQUAL else f"each another {compared_phrase(prop)}"


def compared_phrase(prop: Property) -> str:
    """What is compared, in words: `dtype of input`."""
    phrase = prop.object if prop.object != SHAPE + RESULT else "sizes of the result"
    phrase = phrase.replace(DATA, "contents of ").replace(f"of {RESULT}", "of the result")
    return phrase.replace(VALUE, "value of ").replace(STORAGE, "memory of ")
