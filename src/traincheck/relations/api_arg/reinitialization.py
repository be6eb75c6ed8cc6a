"""Fills: the functions that fill memory with random numbers, and whether one place of the code does so again and again.

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

LEAST = 2
"""Different memory that one place has to fill to be judged: a single one may well be a weight that is tied."""


class Reinitialization:
    """Looks at the set-up: later, a program may well fill one buffer in every step.

    A library's own code that fills is left out: its constructors often fill what is inside them once more, and all that
    it does at a line of the user's has this line for its site.
    """

    grain = "place"

    def occasions(self, window: Window) -> Iterator[Occasion]:
        """One occasion for each function and place that fill `LEAST` storages or more."""
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
            if len(times) < LEAST:
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
    """The memory that the call fills, empty where it is not known."""
    return next((tensor.storage for tensor in call.tensors if not is_result(tensor)), "")
