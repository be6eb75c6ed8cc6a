"""What a relation is: it knows the occasions in a window, what it needs observed, and how to say itself in English."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence, Set
from typing import Any, ClassVar, Protocol

from traincheck.vocab.bounded_cache import BoundedCache
from traincheck.vocab.demand import ARGUMENTS, NOTHING, Demand
from traincheck.vocab.events import Call, Window
from traincheck.vocab.facts import Facts, merged
from traincheck.vocab.occasion import Occasion, Property, Subject
from traincheck.vocab.properties import CHANGES, DOES_NOT_CHANGE, IS_CLEARED, IS_FILLED


class Relation(Protocol):
    """One instance follows the windows of one process, in order; it may carry state from window to window.

    `interest` limits the work to these subjects; None asks for all. Inference and every checking driver call the same
    `occasions`, so a rule has one meaning. A relation imports the vocabulary only: no torch, no files, no threads.
    """

    name: ClassVar[str]

    def __init__(self, interest: Set[Subject] | None = None) -> None: ...

    def occasions(self, window: Window) -> Iterable[Occasion]:
        """The occasions in `window`. A gap in `window.index` means that windows were dropped: forget what was."""

    @staticmethod
    def needs(subject: Subject, prop: Property) -> Demand:
        """What must be observed to judge a rule of this subject and property."""

    @staticmethod
    def is_optional_practice(prop: Property) -> bool:
        """Whether the property only says that a program goes on doing what it did: worth a notice, never an error."""

    @staticmethod
    def is_setting(prop: Property) -> bool:
        """Whether the property only tells how a program is configured (a fixed learning rate): it says nothing of other
        programs, and of the same one only that somebody changed it, which is worth a notice."""

    @staticmethod
    def argument_of(subject: Subject, prop: Property) -> tuple[str, str] | None:
        """The API and the name of its argument whose value the property rests on, None where it rests on none. An
        argument that had one value in all that was learned from is a matter of taste, so no rule is made of it."""

    @staticmethod
    def implied(prop: Property) -> Iterable[Property]:
        """The other properties that hold on every occasion on which `prop` does, as far as they are judged there: a
        book leaves out the rules that say no more than another."""

    @staticmethod
    def describe(subject: Subject, prop: Property) -> str:
        """The rule as a sentence in the present tense, without its precondition and without a full stop."""


class ComparesRanks(Relation, Protocol):
    """A relation that also says something of several ranks together. `across` is optional: who has it is asked."""

    def across(self, windows: Sequence[Window]) -> Iterable[Occasion]:
        """The occasions in windows of several ranks at the same step, in the order of the ranks.

        One instance follows all ranks. `seq` is of the first window. A gap in the windows of a rank is no more than
        that: others of this step may have had no partner.
        """

    @staticmethod
    def values(window: Window) -> Iterable[tuple[str, str, object]]:
        """What of a window is compared as it is with that of other ranks: of what thing (`kind.attribute`), of which
        variable, and its content, which the same values make the same in every process. Where ranks agree in all of
        it, one of them is compared for all (`Window.shared`), and what is told here is only in the windows of ranks that
        tell for themselves. Optional, as `across` is."""


def compares_ranks(relation: object) -> bool:
    """Whether a relation (or its class) has `across`."""
    return hasattr(relation, "across")


_contexts: BoundedCache[tuple[Facts, str], Facts] = BoundedCache()
_contexts_by_id: BoundedCache[tuple[int, str], tuple[Facts, Facts]] = BoundedCache()
"""The same by the `id` of what is told, which is quicker than to hash it; it is kept, so that its id stays its own."""


def context_of(call_facts: Facts, stage: str) -> Facts:
    """`told` with the stage; equal contexts are one object."""
    entry = _contexts_by_id.get((id(call_facts), stage))
    if entry is None:
        key = (call_facts, stage)
        context = _contexts.get(key)
        if context is None:
            context = _contexts.put(key, merged(call_facts, stage=stage))
        entry = _contexts_by_id.put((id(call_facts), stage), (context, call_facts))
    return entry[0]


def fixed_arguments(call: Call) -> list[str]:
    """The flags and choices that a call was given, as `training=True`. (A number is a matter of size.)"""
    return [f"{name}={value}" for name, value in call.args if isinstance(value, (bool, str))]


def argument_demand(api: str, detail: str) -> Demand:
    """Read the arguments of calls of `api` if a rule fixes one of them; a forward always reports the mode of its module."""
    if not detail or (detail.startswith("training=") and api.endswith(".forward")):
        return NOTHING
    return Demand(call_values=frozenset(((api, ARGUMENTS),)))


def short(api: str) -> str:
    """An API as people say it: `torch.optim.Optimizer.step` is `Optimizer.step`."""
    parts = api.split(".")
    if parts[0] in ("torch", "transformers", "accelerate", "lightning"):
        start = next((index for index, part in enumerate(parts) if part.lstrip("_")[:1].isupper()), len(parts) - 1)
        return ".".join(parts[start:])
    return api


def argument_in(prop: Property) -> tuple[str, str] | None:
    """The API in `object` and the name in a detail written as `name=value`, see `Relation.argument_of`."""
    name, fixed, _ = prop.detail.partition("=")
    return (prop.object, name) if fixed else None


def without_argument(prop: Property) -> tuple[Property, ...]:
    """What `Relation.implied` says where a detail written as `name=value` adds a fixed argument to a property."""
    return (prop._replace(detail=""),) if "=" in prop.detail else ()


@functools.lru_cache(1_000)
def family(api: str) -> str:
    """What the API belongs to: the class of a method, the module of a function."""
    return api.rsplit(".", 1)[0]


def varies(call: Call) -> bool:
    """Whether the call tells values that hardly come again: of tensors, or a number with a fraction as its result."""
    for tensor in call.tensors:
        if tensor.facts or tensor.fingerprint is not None:
            return True
    return float in [type(value) for _, value in call.result]


def ended(call: Call) -> bool:
    """Whether the call ran to its end (one that raised is no occasion)."""
    return call.end >= 0


@functools.lru_cache(1_000)
def outcome_of(prop: Property, holds: bool) -> tuple[frozenset[Property], frozenset[Property]]:
    """What held and what failed, as an `Occasion` has it, where one property was judged."""
    judged, none = frozenset((prop,)), frozenset[Property]()
    return (judged, none) if holds else (none, judged)


def transitions(before: str, after: str, changed: bool) -> tuple[str, ...]:
    """The transitions (see `PAST_TENSE`) that a change made. Zeros fill what was none: a backward reached it."""
    names = [CHANGES if changed else DOES_NOT_CHANGE]
    if before == "some" and after != "some":
        names.append(IS_CLEARED)
    elif before != "some" and (after == "some" or (before, after) == ("none", "zero")):
        names.append(IS_FILLED)
    return tuple(names)


def possible(before: str) -> tuple[str, ...]:
    """Which transitions a variable in this state can make: what is there cannot be filled, what is not not cleared."""
    return (CHANGES, DOES_NOT_CHANGE, IS_CLEARED if before == "some" else IS_FILLED)


UNKNOWN = (LookupError, ValueError, TypeError)
"""What a relation raises when it is asked about a subject or a property that is none of its own: those of a newer
version, or of a book that somebody made up."""


def needed(relation: Any, subject: Subject, prop: Property) -> Demand:
    """What must be observed to judge this; nothing where the relation does not know of it."""
    try:
        demand: Demand = relation.needs(subject, prop)
    except UNKNOWN:
        return NOTHING
    return demand
