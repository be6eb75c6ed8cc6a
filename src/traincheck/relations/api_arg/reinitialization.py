"""Detect a line of code that fills the same memory with random numbers again and again.

See Note [Filled again] in relation.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from traincheck.relations.base import ended
from traincheck.relations.comparison import common, is_result
from traincheck.vocab.call_kinds import BY_LIBRARY, FILLS
from traincheck.vocab.demand import TENSORS, Demand
from traincheck.vocab.events import FUNCTION, SETUP, Call, Window
from traincheck.vocab.facts import value_of
from traincheck.vocab.occasion import Occasion, Property, Subject
from traincheck.vocab.properties import FILLS_MEMORY

FRESH = Property(FILLS_MEMORY, "other memory each time")

_INIT = "torch.nn.init"

MIN_STORAGES = 2
"""The least number of different storages that a line has to fill to be judged. A single one may be a tied weight."""


class Reinitialization:
    """Looks at the set-up only: later, a program may fill one buffer in every step.

    Code of a library is left out. Its constructors often fill the modules inside them once more, and all of that has
    the same line of the user's code as its site.
    """

    grain = "place"

    def occasions(self, window: Window) -> Iterator[Occasion]:
        """Yield one occasion for each function and line that fills `MIN_STORAGES` storages or more."""
        if window.stage != SETUP:
            return
        groups: dict[tuple[str, str], list[tuple[Call, str]]] = {}
        for call in window.calls:
            if call.kind == FUNCTION and call.name in FILLS and call.site and ended(call) and not _is_of_library(call):
                memory = _filled(call)
                if memory:
                    groups.setdefault((call.site, call.name), []).append((call, memory))
        for filled in groups.values():
            times: dict[str, int] = {}
            for _, memory in filled:
                times[memory] = times.get(memory, 0) + 1
            if len(times) < MIN_STORAGES:
                continue
            again = tuple(memory for memory, count in times.items() if count > 1)
            prop, nothing = frozenset((FRESH,)), frozenset[Property]()
            failed = 2 * len(again) > len(times)
            yield Occasion(
                Subject(_INIT, self.grain),
                common((call for call, _ in filled), window.stage),
                nothing if failed else prop,
                prop if failed else nothing,
                filled[0][0].seq,
                again if failed else (),
            )

    @staticmethod
    def needs() -> Demand:
        return Demand.of_calls(*FILLS, values=(TENSORS,))

    @staticmethod
    def describe() -> str:
        return (
            "in the set-up, what fills tensors with random numbers (torch.nn.init) fills others each time it is called"
        )


def _is_of_library(call: Call) -> bool:
    return value_of(call.context, BY_LIBRARY) is True


def _filled(call: Call) -> str:
    """The memory that the call fills; empty if it is unknown."""
    return next((tensor.storage for tensor in call.tensors if not is_result(tensor)), "")
