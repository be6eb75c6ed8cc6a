"""Tallies: for every subject, context and property, how often the occasion arose and how often the property held.

Counts are sums, so tallies of windows, processes and runs merge by addition, in any order. The number of distinct
contexts bounds the memory. The closed vocabulary of facts bounds that number, whatever the length of the run.

Note [Steps of several processes]
Support counts distinct training steps, and a step that two ranks take together is one step. An exact count would need a
set for each number, which grows with the run. So windows are counted within each process, and the process with the most
of them counts for the run. In addition there is a sketch: the set of windows by the remainder of their index and
`SKETCH`. Sketches are joined, so up to `SKETCH` windows they show exactly how many are distinct, over processes, parts
of a run and contexts. The larger of both numbers is used: the distinct windows at the least. A maximum and a union,
like a sum, depend on neither order nor grouping.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from traincheck.inference.contexts import SKETCH
from traincheck.vocab.call_kinds import taking
from traincheck.vocab.events import FUNCTION, PROJECT, RESULT, Call, Window
from traincheck.vocab.facts import Facts, FactValue, value_of
from traincheck.vocab.occasion import Occasion, Property, Subject
from traincheck.vocab.properties import ElementSet, elements_of

Key = tuple[str, Subject]
"""A relation's name and one of its subjects."""

MAX_VALUES = 8
"""Stored values of an argument. Inference only needs to know whether there were several; the others are for people."""


@dataclass(slots=True)
class Count:
    """How often a property held and failed in one context, and in how many distinct windows it was judged.

    `closed` counts those of the `held` that came from a closed world (see `Cell`), `sometimes` those of the `closed`
    that no other occasion needs (see `Occasion`). `seen` is the sketch of the windows in which the property was judged,
    `missed` of those in which it failed explicitly.
    """

    held: int = 0
    failed: int = 0
    windows: int = 0
    closed: int = 0
    latest: int = -1
    seen: int = 0
    missed: int = 0
    sometimes: int = 0

    def merge(self, other: Count) -> None:
        """Add the counts of another process."""
        self.held += other.held
        self.failed += other.failed
        self.closed += other.closed
        self.sometimes += other.sometimes
        self.windows = max(self.windows, other.windows)
        self.seen |= other.seen
        self.missed |= other.missed


@dataclass(slots=True)
class Cell:
    """One subject in one context: the properties on its occasions.

    `closed` counts occasions on which every other property failed, `windows` the windows with such an occasion, and
    `seen` is the sketch of these.
    """

    closed: int = 0
    windows: int = 0
    latest: int = -1
    seen: int = 0
    properties: dict[Property, Count] = field(default_factory=dict)

    def of(self, prop: Property) -> Count | None:
        """The count of `prop` including the closed world; None if it was not judged.

        The count of a rule about a set is derived from those of the elements: it has failures if an occasion had any.
        A sketch does not show that a property held on some occasions of a window only: `missed` holds the windows with
        a failure at the least.
        """
        elements = elements_of(prop)
        if elements is not None:
            return self._of_set(elements)
        count = self.properties.get(prop, _UNTOLD)
        if count is _UNTOLD and not self.closed:
            return None
        seen = self.seen | count.seen
        windows = max(self.windows, count.windows, seen.bit_count())
        failed = count.failed + self.closed - count.closed
        missed = count.missed | (self.seen & ~count.seen)
        return Count(count.held, failed, windows, count.closed, -1, seen, missed)

    def _of_set(self, elements: ElementSet) -> Count | None:
        if not self.properties:
            return None
        counts = self.properties
        unknown = sum(count.held - count.closed for prop, count in counts.items() if prop not in elements.allowed)
        missing = max((self.closed - counts.get(prop, _UNTOLD).closed for prop in elements.required), default=0)
        windows = max(count.windows for count in counts.values())
        return Count(held=max(count.held for count in counts.values()), failed=unknown + missing, windows=windows)

    def merge(self, other: Cell) -> None:
        """Add the counts of another process."""
        self.closed += other.closed
        self.windows = max(self.windows, other.windows)
        self.seen |= other.seen
        for prop, count in other.properties.items():
            self.properties.setdefault(prop, Count()).merge(count)


_UNTOLD = Count()
"""The count of a property that never held or failed explicitly."""


@dataclass(slots=True)
class Reach:
    """The observed effects of calls of an API: whether they returned a tensor or contained a change of state."""

    calls: int = 0
    tensors: int = 0
    effects: int = 0
    kind: str = ""

    def merge(self, other: Reach) -> None:
        """Add the counts of another process."""
        self.calls += other.calls
        self.tensors += other.tensors
        self.effects += other.effects
        self.kind = min(filter(None, (self.kind, other.kind)), default="")


class Tally:
    """The counts of one run. `script` and `digest` identify the program, `run` the run; `program` is the identity of
    the program (see vocab/program.py), empty if unknown.

    Add windows and occasions in the order of one process. Tally several processes separately and merge them. `run` is
    empty for a run that is not compared with others.
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
        """By API (its own and its most general name, and its kind) and argument: values as `repr` writes them. The
        first `MAX_VALUES` in alphabetical order are kept, which shows whether an argument varies."""

    def add_window(self, window: Window) -> None:
        """Count what does not depend on relations: steps, levels, and the effects of calls."""
        self.steps = max(self.steps, window.step)
        self.windows += 1
        effective = {change.call for change in window.changes if change.changed}
        counted: set[tuple[int, int]] = set()
        for call in window.calls:
            reach = self.reach.get(call.name)
            if reach is None:
                reach = self.reach[call.name] = Reach(kind=call.kind)
                self.levels.add(call.levels)
            # Equal arguments of equal calls are mostly one object, which is counted once for each window.
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
                    count.sometimes += times * (prop in occasion.sometimes)
                continue
            for prop in occasion.held:
                _count(cell, prop, window, bit).held += 1
            for prop in occasion.failed:
                count = _count(cell, prop, window, bit)
                count.failed += 1
                count.missed |= bit

    def merge(self, other: Tally) -> None:
        """Add the counts of another process of the same run; `other` stays as it is. See Note [Steps of several
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
            self.arguments[argument] = set(sorted(self.arguments.get(argument, set()) | values)[:MAX_VALUES])

    def arrange(self) -> Tally:
        """Sort everything, and return the tally. Its order then depends on the counts alone, whichever process was read
        first."""
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
        """Whether calls of `api` never returned a tensor or changed a state (functions only)."""
        reach = self.reach.get(api)
        return reach is not None and reach.kind in (FUNCTION, PROJECT) and not reach.tensors and not reach.effects


def candidates(tallies: Iterable[Tally]) -> list[tuple[Key, Property]]:
    """Every subject with every property that any of the runs recorded, in a fixed order."""
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
    """Whether a tensor is among the results, which follow the arguments."""
    return bool(call.tensors) and call.tensors[-1].role.startswith(RESULT)


def _remember(values: set[str], value: FactValue) -> None:
    values.add(repr(value))  # True, 1 and 1.0 are equal, and three values
    if len(values) > MAX_VALUES:
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
