"""The conformance kit accepts the built-in relations, and reports each broken promise with its cure."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Set
from typing import Any, ClassVar

import pytest

from sample_windows import BACKWARD, UPDATE, training
from traincheck import plugins
from traincheck.relations.base import context_of
from traincheck.relations.template import ReturnsDtype
from traincheck.testing.conformance import NotConforming, check_relation
from traincheck.testing.demand_filter import observed
from traincheck.testing.readable_traces import from_text
from traincheck.vocab.demand import NOTHING, Demand
from traincheck.vocab.events import NO_CALL, Window
from traincheck.vocab.facts import facts
from traincheck.vocab.occasion import Occasion, Property, Subject

WINDOWS = training().windows
CALLS = from_text("window train step=1\n  lifecycle train.f\n" * 3)
LINE = Property("is called", "train.f")


@pytest.mark.parametrize("name", plugins.RELATIONS)
def test_our_relations_conform(name: str) -> None:
    assert check_relation(plugins.load("traincheck.relations")[name], WINDOWS) >= 20


def test_the_template_conforms() -> None:
    assert check_relation(ReturnsDtype, WINDOWS) >= 20


def test_periodic_and_consistent_are_checked_as_a_whole() -> None:
    """Otherwise that they conform would say little."""
    for name, grains in (
        ("Consistent", {"time", "evaluation", "schedule", "start", "setting 1", "parameter.saved"}),
        ("Periodic", {"counter", "rhythm", "pass", "horizon", "run"}),
    ):
        relation = plugins.load("traincheck.relations")[name]()
        assert {occasion.subject.grain for window in WINDOWS for occasion in relation.occasions(window)} >= grains


class Called:
    """A relation that keeps its promises. The broken ones below are made from it."""

    name: ClassVar[str] = "Called"

    def __init__(self, interest: Set[Subject] | None = None) -> None:
        self._interest = interest

    def occasions(self, window: Window) -> Iterator[Occasion]:
        for call in window.calls:
            subject = Subject(call.name, "called")
            if self._interest is None or subject in self._interest:
                yield self.occasion(subject, call.seq, window)

    def occasion(self, subject: Subject, seq: int, window: Window) -> Occasion:
        return Occasion(subject, context_of((), window.stage), frozenset((LINE,)), frozenset(), seq)

    @staticmethod
    def needs(subject: Subject, prop: Property) -> Demand:
        return Demand.of_calls(subject.api)

    @staticmethod
    def is_optional_practice(prop: Property) -> bool:
        return False

    @staticmethod
    def is_setting(prop: Property) -> bool:
        return False

    @staticmethod
    def argument_of(subject: Subject, prop: Property) -> tuple[str, str] | None:
        return None

    @staticmethod
    def implied(prop: Property) -> Iterable[Property]:
        return ()

    @staticmethod
    def describe(subject: Subject, prop: Property) -> str:
        return f"{subject.api} is called"


def test_a_relation_that_keeps_its_promises() -> None:
    assert check_relation(Called, CALLS) == 3


counter = itertools.count()


def broken(**members: Any) -> type[Called]:
    return type("Broken", (Called,), members)


def saying(**fields: Any) -> type[Called]:
    """One whose occasions have these fields."""

    def occasion(self: Called, subject: Subject, seq: int, window: Window) -> Occasion:
        return Called.occasion(self, subject, seq, window)._replace(**fields)

    return broken(occasion=occasion)


class Unforgetting(Called):
    """It counts windows, and continues after dropped windows."""

    def __init__(self, interest: Set[Subject] | None = None) -> None:
        super().__init__(interest)
        self._seen = 0

    def occasion(self, subject: Subject, seq: int, window: Window) -> Occasion:
        self._seen += 1
        return super().occasion(subject, seq, window)._replace(variables=("again",) * (self._seen > 1))


class Unfiltered(Called):
    def occasions(self, window: Window) -> Iterator[Occasion]:
        for call in window.calls:
            yield self.occasion(Subject(call.name, "called"), call.seq, window)


class Shared(Called):
    """Instances share state."""

    latest: ClassVar[list[int]] = [0]

    def occasions(self, window: Window) -> Iterator[Occasion]:
        if window.index == 0:
            Shared.latest[0] = -1
        yield from super().occasions(window)

    def occasion(self, subject: Subject, seq: int, window: Window) -> Occasion:
        behind, Shared.latest[0] = window.index <= Shared.latest[0], window.index
        return super().occasion(subject, seq, window)._replace(variables=("late",) * behind)


class Lone(Called):
    """It returns a value for several ranks that is no occasion."""

    compares_ranks: ClassVar[bool] = True

    def across(self, windows: Any) -> list[str]:
        return ["same"]


BROKEN: dict[str, tuple[Any, str]] = {
    "no class": (Called(), "is not a class"),
    "no name": (broken(name=""), "has no name"),
    "no method": (broken(describe=None), "has no describe"),
    "constructor": (broken(__init__=lambda self, interest: None), "The constructor takes"),
    "no occasion": (broken(occasion=lambda *_: "called"), "is not an Occasion"),
    "subject": (saying(subject=("train.f", "called")), "no Subject of two texts"),
    "unknown fact": (saying(context=facts(colour="red")), "'colour' is not a fact"),
    "unsorted context": (saying(context=(("stage", "train"), ("closure", True))), "not a sorted tuple of facts"),
    "fact that is no plain value": (saying(context=(("stage", ("train",)),)), "the fact stage is"),
    "properties": (saying(held=[LINE]), "`held` is not a set"),
    "no property": (saying(held={"called"}), "not a Property of three texts"),
    "both": (saying(failed={LINE}), "both held and failed"),
    "position": (saying(seq=10**6), "no call of the window has seq"),
    "variables": (saying(variables="w"), "not a tuple of names"),
    "chance": (
        broken(
            occasion=lambda self, *arguments: Called.occasion(self, *arguments)._replace(
                variables=(str(next(counter)),)
            )
        ),
        "return different occasions",
    ),
    "shared": (Shared, "disturb each other"),
    "interest": (Unfiltered, "returns other occasions of them"),
    "memory": (Unforgetting, "still returns occasions"),
    "full stop": (broken(describe=staticmethod(lambda subject, prop: "It is called.")), "without a full stop"),
    "truth": (broken(is_optional_practice=staticmethod(lambda prop: None)), "Return True or False"),
    "implied itself": (broken(implied=staticmethod(lambda prop: (prop,))), "Give other properties"),
    "implied no property": (broken(implied=staticmethod(lambda prop: ("is called",))), "Give other properties"),
    "implied what fails": (
        broken(
            occasion=lambda self, *arguments: Called.occasion(self, *arguments)._replace(
                failed={Property("is called", "a")}
            ),
            implied=staticmethod(lambda prop: (Property("is called", "a"),)),
        ),
        "contradicts it",
    ),
    "no demand": (broken(needs=staticmethod(lambda subject, prop: NOTHING)), "requests nothing"),
    "wrong demand": (
        broken(needs=staticmethod(lambda subject, prop: Demand.of_calls("train.g"))),
        "Request in `needs` every call",
    ),
    "ranks": (Lone, "is not an Occasion"),
    "undeclared ranks": (broken(across=lambda self, windows: []), "does not declare compares_ranks"),
    "ranks without a method": (broken(compares_ranks=True), "without a method across"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_promise_is_reported_with_its_cure(name: str) -> None:
    relation, message = BROKEN[name]
    with pytest.raises(NotConforming, match=message) as error:
        check_relation(relation, CALLS)
    assert str(error.value).endswith(".") and str(error.value).count(". ") >= 1


def test_windows_that_prove_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="finds no occasion"):
        check_relation(ReturnsDtype, CALLS)
    with pytest.raises(ValueError, match="without gaps"):
        check_relation(Called, CALLS[1:])


# -- what a demand leaves of a window --------------------------------------------------------------------------------


def test_a_demand_filter_keeps_demanded_events() -> None:
    window = WINDOWS[1]
    demand = (
        Demand.of_calls(BACKWARD)
        | Demand.of_changes((UPDATE, "parameter.data"))
        | Demand.of_readings("hyperparameter.lr")
    )
    left = observed(window, demand)
    assert {call.levels[-1] for call in left.calls} == {BACKWARD, UPDATE}
    assert {(change.kind, change.attribute) for change in left.changes} == {("parameter", "data")}
    assert [reading.attribute for reading in left.readings] == ["lr"]
    assert left.readings[0].call in left.by_seq
    alone = observed(window, Demand.of_readings("loader.length"))
    assert alone.calls == () and [reading.call for reading in alone.readings] == [NO_CALL]


def test_calls_inside_a_filtered_call_get_the_outer_parent() -> None:
    text = "window train step=1\n  lifecycle a\n    lifecycle b\n      lifecycle c\n"
    (window,) = from_text(text)
    left = observed(window, Demand.of_calls("a", "c"))
    assert [(call.name, call.parent) for call in left.calls] == [("a", NO_CALL), ("c", left.calls[0].seq)]
