"""Tallies: for every subject, context and property, how often the occasion arose and how often the property held.

Counts are sums, so tallies of windows, processes and runs merge by addition, in any order. Memory is bounded by the
number of distinct contexts, which the closed vocabulary of facts bounds, and not by the length of the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from traincheck.vocab.events import FUNCTION, PROJECT, Window
from traincheck.vocab.facts import Facts, value_of
from traincheck.vocab.occasion import Occasion, Property, Subject

Key = tuple[str, Subject]
"""A relation's name and one of its subjects."""


@dataclass(slots=True)
class Count:
    """How often a property held and failed in one context, and in how many distinct windows it was judged."""

    held: int = 0
    failed: int = 0
    windows: int = 0
    latest: int = -1


@dataclass(slots=True)
class Cell:
    """One subject in one context: occasions, distinct windows with one, and the properties seen on them.

    `closed` cells are of relations for which a property that is not told has failed.
    """

    occasions: int = 0
    windows: int = 0
    latest: int = -1
    closed: bool = True
    properties: dict[Property, Count] = field(default_factory=dict)

    def of(self, prop: Property) -> Count | None:
        """The count of `prop` with what a closed world adds to it; None where it was not judged."""
        count = self.properties.get(prop)
        if not self.closed:
            return count
        held = count.held if count else 0
        return Count(held, self.occasions - held, self.windows)


@dataclass(slots=True)
class Reach:
    """What calls of an API were seen to do: return a tensor, contain a change of state."""

    calls: int = 0
    tensors: int = 0
    effects: int = 0
    kind: str = ""


class Tally:
    """The counts of one run. `script` and `digest` tell which program it was."""

    def __init__(self, script: str, digest: str) -> None:
        self.script = script
        self.digest = digest
        self.steps = 0
        self.cells: dict[Key, dict[Facts, Cell]] = {}
        self.reach: dict[str, Reach] = {}
        self.levels: set[tuple[str, ...]] = set()
        self.windows = 0
        self.arguments: dict[tuple[str, str], set[object]] = {}

    def add_window(self, window: Window) -> None:
        """Count what does not depend on relations: steps, levels, and what calls do."""
        self.steps = max(self.steps, window.step)
        self.windows += 1
        effective = {change.call for change in window.changes if change.changed}
        for call in window.calls:
            reach = self.reach.get(call.name)
            if reach is None:
                reach = self.reach[call.name] = Reach(kind=call.kind)
                self.levels.add(call.levels)
            for name, value in call.args:
                for api in (call.levels[0], call.levels[-1]):
                    self.arguments.setdefault((api, name), set()).add(value)
            reach.calls += 1
            if call.seq in effective:
                reach.effects += 1
            elif value_of(call.result, "dtype") is not None:
                reach.tensors += 1

    def add_occasions(self, relation: str, occasions: Iterable[Occasion], window: int) -> None:
        """Count the occasions of one window."""
        for occasion in occasions:
            cells = self.cells.setdefault((relation, occasion.subject), {})
            cell = cells.get(occasion.context)
            if cell is None:
                cell = cells[occasion.context] = Cell(closed=occasion.failed is None)
            times = max(1, len(occasion.variables)) if occasion.failed is None else 1
            cell.occasions += times
            if cell.latest != window:
                cell.latest = window
                cell.windows += 1
            for prop in occasion.held:
                _count(cell, prop, window).held += times
            for prop in occasion.failed or ():
                _count(cell, prop, window).failed += times

    def evidence(self, key: Key, prop: Property) -> Iterator[tuple[Facts, Count]]:
        """Each context in which `prop` was judged for the subject `key`, with its count."""
        for context, cell in self.cells.get(key, {}).items():
            count = cell.of(prop)
            if count is not None and count.held + count.failed:
                yield context, count

    def dull(self, api: str) -> bool:
        """Whether calls of `api` were never seen to return a tensor or to change a state (functions only)."""
        reach = self.reach.get(api)
        return reach is not None and reach.kind in (FUNCTION, PROJECT) and not reach.tensors and not reach.effects


def _count(cell: Cell, prop: Property, window: int) -> Count:
    count = cell.properties.get(prop)
    if count is None:
        count = cell.properties[prop] = Count()
    if count.latest != window:
        count.latest = window
        count.windows += 1
    return count
