"""Demand: what must be observed to judge a set of invariants. Flows back from the book to the sources."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Demand:
    """APIs to observe (at any level of generality) and attributes of variables to observe around them.

    `states` holds `(api, "parameter.grad")` pairs; `apis` the calls that must be recorded. `everything` asks for all
    that the sources offer, as a full collection does.
    """

    apis: frozenset[str] = frozenset()
    states: frozenset[tuple[str, str]] = frozenset()
    everything: bool = False

    def wants_call(self, levels: Iterable[str]) -> bool:
        """Whether a call known under any of these names is to be recorded."""
        return self.everything or any(level in self.apis for level in levels)

    def wants_state(self, levels: Iterable[str], attribute: str) -> bool:
        """Whether `attribute` (such as `parameter.grad`) is to be observed around a call of these names."""
        return self.everything or any((level, attribute) in self.states for level in levels)

    def __or__(self, other: Demand) -> Demand:
        return Demand(self.apis | other.apis, self.states | other.states, self.everything or other.everything)


EVERYTHING = Demand(everything=True)
NOTHING = Demand()
