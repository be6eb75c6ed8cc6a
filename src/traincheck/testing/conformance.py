"""Check that a relation keeps the promises of `relations.base.Relation`.

For the tests of a package that brings its own relation::

    from traincheck.testing.conformance import check_relation
    from traincheck.testing.readable_traces import from_text

    def test_my_relation() -> None:
        check_relation(MyRelation, from_text(TRACE))

Give windows of one process, without gaps and with occasions of the relation. A few steps of a small program suffice.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence, Set
from dataclasses import replace
from typing import Any

from traincheck.relations.base import compares_ranks
from traincheck.testing.demand_filter import observed
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import NO_CALL, Window
from traincheck.vocab.facts import FACTS, Facts
from traincheck.vocab.occasion import Occasion, Property, Subject

METHODS = ("occasions", "needs", "is_optional_practice", "is_setting", "argument_of", "implied", "describe")

MAX_TRIED = 24
"""Subjects, and positions of a gap, to try one by one. Of more, every n-th is tried."""


class NotConforming(AssertionError):
    """A relation breaks a promise. The message names it, an occasion, and the cure."""


def check_relation(relation: Any, windows: Sequence[Window]) -> int:
    """Check every promise of the class `relation` on `windows`; returns the number of checked occasions.

    Raises NotConforming for the first promise that is broken, and ValueError for windows that prove nothing.
    """
    if [window.index for window in windows] != list(range(len(windows))):
        raise ValueError("the windows must be of one process, numbered from 0 without gaps")
    _is_a_relation(relation)
    by_window = _occasions(relation, windows)
    occasions = [occasion for of_window in by_window for occasion in of_window]
    if not occasions:
        raise ValueError(
            f"{relation.name} finds no occasion in these windows, so nothing is proven: give it windows that it "
            "applies to"
        )
    for window, of_window in zip(windows, by_window, strict=True):
        for occasion in of_window:
            _is_an_occasion(occasion, window)
    _is_deterministic(relation, windows, by_window)
    _only_filters(relation, windows, by_window)
    _forgets(relation, windows)
    _is_implied(relation, occasions)
    for subject, prop in sorted({(occasion.subject, prop) for occasion in occasions for prop in _judged(occasion)}):
        _is_explained(relation, subject, prop)
        _is_judged_alike_selectively(relation, windows, subject, prop)
    if _declares_ranks(relation):
        _compares_ranks(relation, windows)
    return len(occasions)


def _fail(promise: str, cure: str) -> NotConforming:
    return NotConforming(f"{promise}. {cure}.")


# -- the class -----------------------------------------------------------------------------------------------------


def _is_a_relation(relation: Any) -> None:
    if not isinstance(relation, type):
        raise _fail(f"{relation!r} is not a class", "Give the class of the relation, not an instance")
    name = getattr(relation, "name", None)
    if not isinstance(name, str) or not name:
        raise _fail(f"{relation.__name__} has no name", f'Write `name: ClassVar[str] = "{relation.__name__}"` in it')
    missing = [method for method in METHODS if not callable(getattr(relation, method, None))]
    if missing:
        raise _fail(f"{name} has no {', '.join(missing)}", "Copy the missing methods from relations/template.py")
    ways: tuple[tuple[Any, ...], ...] = ((), (None,), (frozenset(),))
    for arguments in ways:
        try:
            relation(*arguments)
        except Exception as error:
            raise _fail(
                f"{name}({', '.join(map(repr, arguments))}) raises {error!r}",
                "The constructor takes `interest: Set[Subject] | None = None` and nothing else",
            ) from error


# -- occasions -----------------------------------------------------------------------------------------------------


def _occasions(relation: Any, windows: Iterable[Window], interest: Set[Subject] | None = None) -> list[list[Occasion]]:
    """The occasions that a new instance finds in each window."""
    instance = relation(interest)
    return [list(instance.occasions(window)) for window in windows]


def _is_an_occasion(occasion: Any, window: Window) -> None:
    if not isinstance(occasion, Occasion):
        raise _fail(f"{occasion!r} is not an Occasion", "Make occasions with traincheck.vocab.occasion.Occasion")
    where = f"in window {window.index}, an occasion of {occasion.subject!r}"
    if not isinstance(occasion.subject, Subject) or not all(isinstance(part, str) for part in occasion.subject):
        raise _fail(f"{where} has no Subject of two texts", "Name the API, or what is read, and the grain")
    _is_a_context(occasion.context, where)
    for kind, properties in (("held", occasion.held), ("failed", occasion.failed)):
        if kind == "failed" and properties is None:
            continue
        if not isinstance(properties, Set):
            raise _fail(f"{where}: `{kind}` is not a set", "Give sets of Property; of `failed` None for a closed world")
        for prop in properties:
            if not isinstance(prop, Property) or not all(isinstance(part, str) for part in prop):
                raise _fail(f"{where}: {prop!r} in `{kind}` is not a Property of three texts", "Write numbers as text")
    both = occasion.held & (occasion.failed or frozenset())
    if both:
        raise _fail(
            f"{where}: {sorted(both)[0]!r} both held and failed", "Put properties that cannot be judged in neither set"
        )
    if not isinstance(occasion.variables, tuple) or not all(isinstance(name, str) for name in occasion.variables):
        raise _fail(
            f"{where}: `variables` is not a tuple of names", "Give the names of the variables it is about, or ()"
        )
    if occasion.seq != NO_CALL and occasion.seq not in window.by_seq:
        raise _fail(f"{where}: no call of the window has seq {occasion.seq!r}", "Give the seq of a call, or NO_CALL")


def _is_a_context(context: Facts, where: str) -> None:
    if not isinstance(context, tuple) or context != tuple(sorted(set(context), key=lambda pair: pair[0])):
        raise _fail(
            f"{where}: its context is not a sorted tuple of facts", "Make contexts with `context_of` or `facts`"
        )
    for name, value in context:
        if name not in FACTS:
            raise _fail(
                f"{where}: {name!r} is not a fact",
                "The vocabulary of facts is closed (docs/reference/facts.md): use one of its facts, or omit this one",
            )
        plain = value is None or isinstance(value, (str, int, float, bool))
        if not plain or (isinstance(value, float) and math.isnan(value)):
            raise _fail(f"{where}: the fact {name} is {value!r}", "A fact is a text, a number, True, False or None")


# -- behaviour -----------------------------------------------------------------------------------------------------


def _is_deterministic(relation: Any, windows: Sequence[Window], expected: list[list[Occasion]]) -> None:
    repeated = _occasions(relation, windows)
    if repeated != expected:
        raise _fail(
            f"two instances of {relation.name} return different occasions for the same windows",
            "Do not use clocks, random numbers, object ids or set order, and keep no state on the class",
        )
    # Follow another process in turn, which reveals instances that share state.
    first, other = relation(), relation()
    turns = []
    for window, later in zip(windows, [*windows[1:], windows[-1]], strict=True):
        turns.append(list(first.occasions(window)))
        list(other.occasions(later))
    if turns != expected:
        raise _fail(f"instances of {relation.name} disturb each other", "Keep state on `self` only")


def _only_filters(relation: Any, windows: Sequence[Window], by_window: list[list[Occasion]]) -> None:
    subjects = sorted({occasion.subject for of_window in by_window for occasion in of_window})
    interests = [frozenset((subject,)) for subject in _choice(subjects)]
    for interest in (*interests, frozenset(subjects[::2]), frozenset(subjects), frozenset[Subject]()):
        filtered = _occasions(relation, windows, interest)
        expected = [[occasion for occasion in of_window if occasion.subject in interest] for of_window in by_window]
        if filtered != expected:
            raise _fail(
                f"with an interest in {sorted(interest)[:3]} only, {relation.name} returns other occasions of them "
                "than without",
                "An interest may save work but must not change occasions; test it where you yield, and keep all state "
                "that they depend on",
            )


def _forgets(relation: Any, windows: Sequence[Window]) -> None:
    for index in _choice(list(range(1, len(windows) - 1))):
        rest = windows[index + 1 :]
        if _occasions(relation, [*windows[:index], *rest])[index:] != _occasions(relation, rest):
            raise _fail(
                f"after window {index} was dropped, {relation.name} still returns occasions "
                "that depend on earlier windows",
                "Reset all state when `window.index` does not follow the previous index",
            )


def _choice(items: Sequence[Any]) -> Sequence[Any]:
    return items[:: math.ceil(len(items) / MAX_TRIED)] if items else items


def _is_implied(relation: Any, occasions: Iterable[Occasion]) -> None:
    for occasion in occasions:
        for prop in occasion.held:
            for other in relation.implied(prop):
                if other == prop or not isinstance(other, Property):
                    raise _fail(
                        f"{relation.name}.implied gives {other!r} for {prop!r}", "Give other properties, or () for none"
                    )
                if other not in occasion.held and (occasion.failed is None or other in occasion.failed):
                    raise _fail(
                        f"{relation.name}.implied says that {other!r} holds wherever {prop!r} does, but an occasion of "
                        f"{occasion.subject!r} contradicts it",
                        "Name only properties that always hold with it, or add them to that occasion",
                    )


# -- rules ---------------------------------------------------------------------------------------------------------


def _judged(occasion: Occasion) -> Set[Property]:
    return occasion.held | (occasion.failed or frozenset())


def _is_explained(relation: Any, subject: Subject, prop: Property) -> None:
    rule = f"{prop!r} of {subject!r}"
    sentence = relation.describe(subject, prop)
    if not isinstance(sentence, str) or not sentence.strip() or "\n" in sentence or sentence.endswith("."):
        raise _fail(
            f"{relation.name}.describe returns {sentence!r} for {rule}",
            "Give one sentence in the present tense on one line, without a full stop: other sentences follow it",
        )
    for method in ("is_optional_practice", "is_setting"):
        answer = getattr(relation, method)(prop)
        if not isinstance(answer, bool):
            raise _fail(f"{relation.name}.{method} returns {answer!r} for {prop!r}", "Return True or False")
    demand = relation.needs(subject, prop)
    if not isinstance(demand, Demand) or demand.is_empty:
        raise _fail(
            f"{relation.name}.needs requests nothing for {rule}",
            "Name the calls, states and readings that are needed to judge it",
        )


def _is_judged_alike_selectively(relation: Any, windows: Sequence[Window], subject: Subject, prop: Property) -> None:
    interest = frozenset((subject,))
    demand = relation.needs(subject, prop)
    in_full = _verdicts(_occasions(relation, windows, interest), prop)
    selective = _verdicts(_occasions(relation, [observed(window, demand) for window in windows], interest), prop)
    if selective != in_full:
        raise _fail(
            f"with the events that {relation.name}.needs requests, {prop!r} of {subject!r} is judged "
            f"{_summary(selective)}; with all events, {_summary(in_full)}",
            "Request in `needs` every call, state and reading that the verdict depends on, also those that only set "
            "the expected value",
        )


def _verdicts(by_window: list[list[Occasion]], prop: Property) -> Counter[tuple[int, Facts, bool, int]]:
    """How often the property was judged in each window and context, and whether it held."""
    verdicts: Counter[tuple[int, Facts, bool, int]] = Counter()
    for number, occasions in enumerate(by_window):
        for occasion in occasions:
            if prop in occasion.held or occasion.failed is None or prop in occasion.failed:
                verdicts[number, occasion.context, prop in occasion.held, len(occasion.variables)] += 1
    return verdicts


def _summary(verdicts: Counter[tuple[int, Facts, bool, int]]) -> str:
    held = sum(times for (_, _, holds, _), times in verdicts.items() if holds)
    return f"{verdicts.total()} times (held {held} times)"


# -- ranks ---------------------------------------------------------------------------------------------------------


def _declares_ranks(relation: Any) -> bool:
    declared = compares_ranks(relation)
    if declared != hasattr(relation, "across"):
        verb = "declares compares_ranks without a method" if declared else "does not declare compares_ranks, but has"
        raise _fail(f"{relation.name} {verb} across", "Set compares_ranks = True in a class that has across")
    return declared


def _compares_ranks(relation: Any, windows: Sequence[Window]) -> None:
    ranks = [[replace(window, rank=rank) for rank in (0, 1)] for window in windows]

    def across(interest: Set[Subject] | None = None) -> list[list[Occasion]]:
        instance = relation(interest)
        return [list(instance.across(aligned)) for aligned in ranks]

    by_window = across()
    for window, occasions in zip(windows, by_window, strict=True):
        for occasion in occasions:
            _is_an_occasion(occasion, window)
            for prop in _judged(occasion):
                _is_explained(relation, occasion.subject, prop)
    if across() != by_window:
        raise _fail(f"{relation.name}.across returns different occasions for the same windows", "Keep state on `self`")
    for subject in _choice(sorted({occasion.subject for occasions in by_window for occasion in occasions})):
        expected = [[occasion for occasion in of_window if occasion.subject == subject] for of_window in by_window]
        if across(frozenset((subject,))) != expected:
            raise _fail(
                f"an interest in {subject!r} changes the occasions of {relation.name}.across", "Use it only as a filter"
            )
