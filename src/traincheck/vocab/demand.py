"""Demand: what must be observed to judge a set of invariants. Flows back from the book to the sources."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import repeat


@dataclass(frozen=True, slots=True)
class Demand:
    """APIs to observe (at any level of generality) and attributes of variables to observe around them.

    `states` holds `(api, "parameter.grad")` pairs; `apis` the calls that must be recorded. What is to be read of a call
    is asked for in the same way: `(api, "arguments")` for its plain arguments, `(api, "tensors")` for summaries of the
    tensors that go in and come out, and of their values `(api, "numbers")` for whether they are finite or all zero and
    how large, `(api, "rows")` for whether rows sum to one, `(api, "contents")` for fingerprints and whether the call
    changed what it was given; `(api, "scale")` for whether a loss was scaled. `(api, "optimizer_state.some")` asks for
    changes of what an optimizer keeps for a few variables, which show whether it keeps anything. `(kind + "." +
    attribute, "readings")`, such as `("hyperparameter.lr", "readings")`, asks for readings, `*` as the attribute
    for all of that kind. `everything` asks for all that the sources offer, as a full collection does.
    """

    apis: frozenset[str] = frozenset()
    states: frozenset[tuple[str, str]] = frozenset()
    everything: bool = False

    def wants_call(self, levels: Iterable[str]) -> bool:
        """Whether a call known under any of these names is to be recorded."""
        return self.everything or not self.apis.isdisjoint(levels)

    def wants_state(self, levels: Iterable[str], attribute: str) -> bool:
        """Whether `attribute` (such as `parameter.grad`) is to be observed around a call of these names."""
        return self.everything or not self.states.isdisjoint(zip(levels, repeat(attribute)))

    def wants_reading(self, kind: str, attribute: str) -> bool:
        """Whether readings of this attribute of this kind of thing are to be taken."""
        return self.everything or not {(f"{kind}.{attribute}", READINGS), (f"{kind}.*", READINGS)}.isdisjoint(
            self.states
        )

    def wants_readings(self, kind: str) -> bool:
        """Whether readings of any attribute of this kind of thing are to be taken."""
        return self.everything or any(what == READINGS and name.startswith(f"{kind}.") for name, what in self.states)

    def asks_beside(self, kind: str) -> bool:
        """Whether anything is asked for but readings of this kind of thing."""
        return (
            self.everything
            or bool(self.apis)
            or any(what != READINGS or not name.startswith(f"{kind}.") for name, what in self.states)
        )

    def __or__(self, other: Demand) -> Demand:
        return Demand(self.apis | other.apis, self.states | other.states, self.everything or other.everything)


SOME_STATE = "optimizer_state.some"
ARGUMENTS, TENSORS, SCALE, READINGS = "arguments", "tensors", "scale", "readings"
COMPUTATION = "computation"
"""The kind of readings that tell of steps that are executed again, see replayed_computations.py."""
VALUES = NUMBERS, ROWS, CONTENTS = "numbers", "rows", "contents"
"""What else may be asked of a call or a thing, see `Demand`."""

EVERYTHING = Demand(everything=True)
NOTHING = Demand()


def joined(demands: Iterable[Demand]) -> Demand:
    """All that any of `demands` asks for."""
    told = list(demands)
    return Demand(
        frozenset().union(*(each.apis for each in told)),
        frozenset().union(*(each.states for each in told)),
        any(each.everything for each in told),
    )
