"""A deliberately simple relation to copy, and the example of docs/extend/relations.md.

It says: *a call of this API returns a tensor of a fixed dtype*. Copy the file, rename the class and define an occasion.
Register the class in `plugins.py`, or as an entry point of the group `traincheck.relations`. Then prove in a test that
it conforms (`traincheck.testing.conformance.check_relation`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from typing import ClassVar

from traincheck.relations.base import context_of, ended, short
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import Window
from traincheck.vocab.facts import value_of
from traincheck.vocab.occasion import Occasion, Property, Subject

RETURNS = "returns dtype"


class ReturnsDtype:
    """On every call of an API that returns a tensor, the tensor has this dtype.

    Occasions: calls with a tensor result. Properties: the dtype. There is no state from window to window.
    """

    name: ClassVar[str] = "ReturnsDtype"

    def __init__(self, interest: Set[Subject] | None = None) -> None:
        self._interest = interest

    def occasions(self, window: Window) -> Iterator[Occasion]:
        for call in window.calls:
            dtype = value_of(call.result, "dtype")
            if not ended(call) or dtype is None:
                continue
            subject = Subject(call.name, "dtype")
            if self._interest is None or subject in self._interest:
                held = frozenset((Property(RETURNS, str(dtype)),))
                # `failed` is None: any other dtype did not hold.
                yield Occasion(subject, context_of(call.context, window.stage), held, None, call.seq)

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
        return f"{short(subject.api)} returns a tensor of {prop.object}"
