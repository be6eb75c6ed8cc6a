"""The interface of a relation, and what several relations share to build contexts, names and outcomes."""

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
    """A kind of rule. One instance follows the windows of one process in order, and may carry state from window to
    window.

    `interest` limits the work to these subjects; None requests all. Inference and every checking driver call the same
    `occasions`, so a rule has one meaning. A relation imports the vocabulary only: no torch, no files, no threads.
    """

    name: ClassVar[str]

    def __init__(self, interest: Set[Subject] | None = None) -> None: ...

    def occasions(self, window: Window) -> Iterable[Occasion]:
        """Yield the occasions in `window`. A gap in `window.index` means that windows were dropped: reset any state."""

    @staticmethod
    def needs(subject: Subject, prop: Property) -> Demand:
        """The demand of a rule with this subject and property: what sources must observe to judge it."""

    @staticmethod
    def is_optional_practice(prop: Property) -> bool:
        """Whether the property says no more than that a program goes on doing what it did. A violation is then a
        notice, never an error."""

    @staticmethod
    def is_setting(prop: Property) -> bool:
        """Whether the property records how a program is configured, such as a fixed learning rate. It says nothing
        about other programs. In the same program, a violation means that the setting was changed: a notice if people
        tune it (`is_optional_practice`), otherwise an error."""

    @staticmethod
    def argument_of(subject: Subject, prop: Property) -> tuple[str, str] | None:
        """The API and the name of the argument whose value the property depends on; None if it depends on none. If the
        argument had a single value in all runs, inference makes no rule: the value may be a coincidence."""

    @staticmethod
    def implied(prop: Property) -> Iterable[Property]:
        """The other properties that hold wherever `prop` holds and they can be judged. A book omits a rule that another
        one implies."""

    @staticmethod
    def describe(subject: Subject, prop: Property) -> str:
        """The rule as a sentence in the present tense, without its precondition and without a full stop."""


class ComparesRanks(Relation, Protocol):
    """A relation that also compares several ranks. It declares so in `compares_ranks`; other relations may leave the
    attribute out."""

    compares_ranks: ClassVar[bool] = True

    def across(self, windows: Sequence[Window]) -> Iterable[Occasion]:
        """Yield the occasions in windows of several ranks at the same step, in the order of the ranks.

        One instance follows all ranks. `seq` refers to the first window. A gap in the windows of a rank does not mean
        that steps were lost: the missing windows may have had no partner.
        """

    @staticmethod
    def values(window: Window) -> Iterable[tuple[str, str, object]]:
        """Optional. Yield what this relation compares between ranks: the quantity (`kind.attribute`),
        the variable, and a content that equal values reproduce in every process. If ranks agree on all of it,
        TrainCheck compares one rank for all (`Window.shared`), and only the windows of such leaders hold these values.
        """


def compares_ranks(relation: object) -> bool:
    """Whether a relation (or its class) declares that it has `across`."""
    return getattr(relation, "compares_ranks", False) is True


_contexts: BoundedCache[tuple[Facts, str], Facts] = BoundedCache()
_contexts_by_id: BoundedCache[tuple[int, str], tuple[Facts, Facts]] = BoundedCache()
"""The same by the `id` of the facts, which is faster than their hash. The entry keeps the facts alive, so the id stays
theirs."""


def context_of(call_facts: Facts, stage: str) -> Facts:
    """The facts of a call with the stage. Equal contexts are one object."""
    entry = _contexts_by_id.get((id(call_facts), stage))
    if entry is None:
        key = (call_facts, stage)
        context = _contexts.get(key)
        if context is None:
            context = _contexts.put(key, merged(call_facts, stage=stage))
        entry = _contexts_by_id.put((id(call_facts), stage), (context, call_facts))
    return entry[0]


def fixed_arguments(call: Call) -> list[str]:
    """The flags and choices among the arguments, written as `training=True`. Numbers are left out, because they depend
    on sizes."""
    return [f"{name}={value}" for name, value in call.args if isinstance(value, (bool, str))]


def argument_demand(api: str, detail: str) -> Demand:
    """The demand for the arguments of calls of `api`, if a rule fixes one. A forward always reports the mode of its
    module."""
    if not detail or (detail.startswith("training=") and api.endswith(".forward")):
        return NOTHING
    return Demand(call_values=frozenset(((api, ARGUMENTS),)))


def short(api: str) -> str:
    """The short name of an API: `Optimizer.step` for `torch.optim.Optimizer.step`."""
    parts = api.split(".")
    if parts[0] in ("torch", "transformers", "accelerate", "lightning"):
        start = next((index for index, part in enumerate(parts) if part.lstrip("_")[:1].isupper()), len(parts) - 1)
        return ".".join(parts[start:])
    return api


def argument_in(prop: Property) -> tuple[str, str] | None:
    """The API in `object` and the argument in a detail written as `name=value`, see `Relation.argument_of`."""
    name, fixed, _ = prop.detail.partition("=")
    return (prop.object, name) if fixed else None


def without_argument(prop: Property) -> tuple[Property, ...]:
    """The property without its fixed argument: the value of `Relation.implied` for a detail written as `name=value`."""
    return (prop._replace(detail=""),) if "=" in prop.detail else ()


@functools.lru_cache(1_000)
def family(api: str) -> str:
    """The class of a method, or the module of a function."""
    return api.rsplit(".", 1)[0]


def varies(call: Call) -> bool:
    """Whether the call recorded values that seldom recur: values of tensors, or a number with a fraction as its
    result."""
    for tensor in call.tensors:
        if tensor.facts or tensor.fingerprint is not None:
            return True
    return float in [type(value) for _, value in call.result]


def ended(call: Call) -> bool:
    """Whether the call returned. A call that raised is no occasion."""
    return call.end >= 0


@functools.lru_cache(1_000)
def outcome_of(prop: Property, holds: bool) -> tuple[frozenset[Property], frozenset[Property]]:
    """The sets `held` and `failed` of an `Occasion` on which a single property was judged."""
    judged, none = frozenset((prop,)), frozenset[Property]()
    return (judged, none) if holds else (none, judged)


def transitions(before: str, after: str, changed: bool) -> tuple[str, ...]:
    """The transitions (see `PAST_TENSE`) that a change made. A backward that leaves zeros where there was no gradient
    fills it."""
    names = [CHANGES if changed else DOES_NOT_CHANGE]
    if before == "some" and after != "some":
        names.append(IS_CLEARED)
    elif before != "some" and (after == "some" or (before, after) == ("none", "zero")):
        names.append(IS_FILLED)
    return tuple(names)


def possible(before: str) -> tuple[str, ...]:
    """The transitions that a variable in this state can make: a filled one cannot be filled, an empty one cannot be
    cleared."""
    return (CHANGES, DOES_NOT_CHANGE, IS_CLEARED if before == "some" else IS_FILLED)


UNKNOWN = (LookupError, ValueError, TypeError)
"""Errors of a relation for an unknown subject or property, from a newer version or an edited book."""


def needed(relation: Any, subject: Subject, prop: Property) -> Demand:
    """The demand of a rule; nothing if the relation does not know its subject or property."""
    try:
        demand: Demand = relation.needs(subject, prop)
    except UNKNOWN:
        return NOTHING
    return demand
