"""Tallies: for every subject, context and property, how often the occasion arose and how often the property held.

Counts are sums, so tallies of windows, processes and runs merge by addition, in any order. Memory is bounded by the
number of distinct contexts, which the closed vocabulary of facts bounds, and not by the length of the run.

Note [Steps of several processes]
Support counts distinct training steps, and a step that two ranks take together is one step, not two. Which steps two
processes share would take a set for each count, which grows with the run. So windows are counted within each process,
and of the processes of a run the one that saw most is believed. Beside that stands a sketch, a set of windows by what
their index leaves when divided by `SKETCH`: sketches are joined, so up to so many windows they tell exactly how many
are distinct, over processes, parts of a run and contexts. Of both the larger is taken: the number of distinct windows
at the least. A maximum and a union, like a sum, care for neither order nor grouping.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from traincheck.inference.contexts import SKETCH
from traincheck.vocab.call_kinds import taking
from traincheck.vocab.events import FUNCTION, PROJECT, RESULT, Call, Window
from traincheck.vocab.facts import Facts, FactValue, value_of
from traincheck.vocab.occasion import Occasion, Property, Subject

Key = tuple[str, Subject]
"""A relation's name and one of its subjects."""

MOST_VALUES = 8
"""Values remembered of an argument. What is asked of them is whether there were several; the rest are for people."""


@dataclass(slots=True)
class Count:
    """How often a property held and was said to fail in one context, and in how many distinct windows it was judged.

    `closed` counts those of the `held` that came from a closed world (see `Cell`). `seen` is the sketch of the windows
    in which it was judged, `missed` of those in which it was said to fail.
    """

    held: int = 0
    failed: int = 0
    windows: int = 0
    closed: int = 0
    latest: int = -1
    seen: int = 0
    missed: int = 0

    def merge(self, other: Count) -> None:
        """Add what another process counted."""
        self.held += other.held
        self.failed += other.failed
        self.closed += other.closed
        self.windows = max(self.windows, other.windows)
        self.seen |= other.seen
        self.missed |= other.missed


@dataclass(slots=True)
class Cell:
    """One subject in one context: the properties seen on its occasions.

    `closed` counts occasions on which every property that was not told has failed, `windows` the windows with such a
    one, and `seen` is the sketch of these.
    """

    closed: int = 0
    windows: int = 0
    latest: int = -1
    seen: int = 0
    properties: dict[Property, Count] = field(default_factory=dict)

    def of(self, prop: Property) -> Count | None:
        """The count of `prop` with what a closed world adds to it; None where it was not judged.

        That a property was told on some occasions of a window, and on others not, leaves no trace in a sketch: `missed`
        holds the windows with a failure at the least.
        """
        count = self.properties.get(prop, _UNTOLD)
        if count is _UNTOLD and not self.closed:
            return None
        seen = self.seen | count.seen
        windows = max(self.windows, count.windows, seen.bit_count())
        failed = count.failed + self.closed - count.closed
        missed = count.missed | (self.seen & ~count.seen)
        return Count(count.held, failed, windows, count.closed, -1, seen, missed)

    def merge(self, other: Cell) -> None:
        """Add what another process counted."""
        self.closed += other.closed
        self.windows = max(self.windows, other.windows)
        self.seen |= other.seen
        for prop, count in other.properties.items():
            self.properties.setdefault(prop, Count()).merge(count)


_UNTOLD = Count()
"""What was counted of a property that was never told."""


@dataclass(slots=True)
class Reach:
    """What calls of an API were seen to do: return a tensor, contain a change of state."""

    calls: int = 0
    tensors: int = 0
    effects: int = 0
    kind: str = ""

    def merge(self, other: Reach) -> None:
        """Add what another process counted."""
        self.calls += other.calls
        self.tensors += other.tensors
        self.effects += other.effects
        self.kind = min(filter(None, (self.kind, other.kind)), default="")


class Tally:
    """The counts of one run. `script` and `digest` tell which program it was, `run` which run of it; `program` is the
    identity of the program (see vocab/program.py), empty where it is not known.

    Windows and occasions are added in the order of one process; those of several are tallied each and merged. `run` is
    empty for a run that nothing is to be compared with.
    """

    def __init__(self, script: str, digest: str, run: str = "", program: str = "") -> None:
        self.script = script
        self.program = program
        self.digest = digest
        self.run = run
        self.steps = 0
        self.windows = 0
        self.cells: dict[Key, dict[Facts, Cell]] = {}
        self.reach: dict[str, Reach] = {}
        self.levels: set[tuple[str, ...]] = set()
        self.arguments: dict[tuple[str, str], set[str]] = {}
        """By API (its own and its most general name, and its kind) and argument: values as `repr` tells them, of which
        the first `MOST_VALUES` in alphabetical order are kept, so that one of many is known to vary."""

    def add_window(self, window: Window) -> None:
        """Count what does not depend on relations: steps, levels, and what calls do."""
        self.steps = max(self.steps, window.step)
        self.windows += 1
        effective = {change.call for change in window.changes if change.changed}
        counted: set[tuple[int, int]] = set()
        for call in window.calls:
            reach = self.reach.get(call.name)
            if reach is None:
                reach = self.reach[call.name] = Reach(kind=call.kind)
                self.levels.add(call.levels)
            # Equal arguments of equal calls are mostly one object, and then have been looked at in this window.
            if call.args and (id(call.levels), id(call.args)) not in counted:
                counted.add((id(call.levels), id(call.args)))
                names = {call.levels[0], call.levels[-1]}
                for name, value in call.args:
                    for api in (*names, taking(name)) if call.kind == PROJECT else names:
                        _remember(self.arguments.setdefault((api, name), set()), value)
            reach.calls += 1
            if call.seq in effective:
                reach.effects += 1
            elif _returned(call) or value_of(call.result, "dtype") is not None:
                reach.tensors += 1

    def add_occasions(self, relation: str, occasions: Iterable[Occasion], window: int) -> None:
        """Count the occasions of one window, given by its index."""
        bit = 1 << window % SKETCH
        for occasion in occasions:
            cells = self.cells.setdefault((relation, occasion.subject), {})
            cell = cells.get(occasion.context)
            if cell is None:
                cell = cells[occasion.context] = Cell()
            if occasion.failed is None:
                times = max(1, len(occasion.variables))
                cell.closed += times
                if cell.latest != window:
                    cell.latest = window
                    cell.windows += 1
                    cell.seen |= bit
                for prop in occasion.held:
                    count = _count(cell, prop, window, bit)
                    count.held += times
                    count.closed += times
                continue
            for prop in occasion.held:
                _count(cell, prop, window, bit).held += 1
            for prop in occasion.failed:
                count = _count(cell, prop, window, bit)
                count.failed += 1
                count.missed |= bit

    def merge(self, other: Tally) -> None:
        """Add what another process of the same run counted; `other` stays as it is. See Note [Steps of several
        processes].

        Raises ValueError for a run of another program.
        """
        if (self.script, self.digest) != (other.script, other.digest):
            raise ValueError(f"a run of {self.script} and one of {other.script} are not parts of one run")
        self.steps = max(self.steps, other.steps)
        self.windows += other.windows
        self.levels |= other.levels
        for key, other_cells in other.cells.items():
            own_cells = self.cells.setdefault(key, {})
            contexts = {context: context for context in own_cells}
            for context, cell in other_cells.items():
                first = contexts.get(context)
                if first is not None and repr(context) < repr(first):  # True in one process and 1 in another
                    own_cells[context] = own_cells.pop(first)
                own_cells.setdefault(context, Cell()).merge(cell)
        for api, reach in other.reach.items():
            self.reach.setdefault(api, Reach()).merge(reach)
        for argument, values in other.arguments.items():
            self.arguments[argument] = set(sorted(self.arguments.get(argument, set()) | values)[:MOST_VALUES])

    def arrange(self) -> Tally:
        """Put all in an order that depends on what was counted alone, and return it: what is made of it is the same
        whichever process was read first."""
        self.cells = {
            key: {
                context: _arranged(self.cells[key][context])
                for context in sorted(self.cells[key], key=repr)  # values of several types have no order of their own
            }
            for key in sorted(self.cells)
        }
        self.reach = {api: self.reach[api] for api in sorted(self.reach)}
        self.arguments = {argument: self.arguments[argument] for argument in sorted(self.arguments)}
        return self

    def evidence(self, key: Key, prop: Property) -> Iterator[tuple[Facts, Count]]:
        """Each context in which `prop` was judged for the subject `key`, with its count."""
        for context, cell in self.cells.get(key, {}).items():
            count = cell.of(prop)
            if count is not None and count.held + count.failed:
                yield context, count

    def is_inert(self, api: str) -> bool:
        """Whether calls of `api` were never seen to return a tensor or to change a state (functions only)."""
        reach = self.reach.get(api)
        return reach is not None and reach.kind in (FUNCTION, PROJECT) and not reach.tensors and not reach.effects


def candidates(tallies: Iterable[Tally]) -> list[tuple[Key, Property]]:
    """Every subject with every property that was told of it in any of the runs, in a fixed order."""
    pairs: set[tuple[Key, Property]] = set()
    for tally in tallies:
        for key, cells in tally.cells.items():
            for cell in cells.values():
                pairs.update((key, prop) for prop in cell.properties)
    return sorted(pairs)


def _arranged(cell: Cell) -> Cell:
    properties = {prop: cell.properties[prop] for prop in sorted(cell.properties)}
    return Cell(cell.closed, cell.windows, -1, cell.seen, properties)


def _returned(call: Call) -> bool:
    """Whether a tensor is among the results, which are told after the arguments."""
    return bool(call.tensors) and call.tensors[-1].role.startswith(RESULT)


def _remember(values: set[str], value: FactValue) -> None:
    values.add(repr(value))  # True, 1 and 1.0 are equal, and three values
    if len(values) > MOST_VALUES:
        values.remove(max(values))


def _count(cell: Cell, prop: Property, window: int, bit: int) -> Count:
    count = cell.properties.get(prop)
    if count is None:
        count = cell.properties[prop] = Count()
    if count.latest != window:
        count.latest = window
        count.windows += 1
        count.seen |= bit
    return count
