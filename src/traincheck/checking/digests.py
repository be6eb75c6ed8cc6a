"""Summarizes the values of a rank in a few digests, so that ranks compare full values only if these differ.

Note [A tree of three levels]
A large model has ten thousand parameters with four values each per step; a job may have a thousand ranks. Ranks hold
equal values (replicas) or different ones in every step (shards). So a rank publishes one digest for each *section*: the
variables whose names differ in their numbers only, as `layers.#.norm.weight`. They are the same part of every layer, so
they are all replicas or all shards. TrainCheck does nothing else for sections in which all ranks agree. For other
sections it requests a digest of each *value* from one rank of each group that agrees, and then the values that differ.
If all values of a section differ, and no rule says that they must not, the section holds shards. It is skipped as long
as the same ranks agree in it. Equal values are requested now and then, too: rules are tried on them, and they show
which variables are replicas.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from functools import cache, lru_cache
from operator import attrgetter
from typing import Any, NamedTuple, Protocol

import xxhash

from traincheck import plugins
from traincheck.vocab.call_kinds import kinds_of
from traincheck.vocab.collectives import COLLECTIVES
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import DIGEST, NO_CALL, OF_VALUES, SOURCE, Call, Change, Reading, SharedValues, Window
from traincheck.vocab.facts import FactValue

MAX_SECTIONS = 256
"""Maximum sections with a digest of their own; beyond it, several share a digest."""

MAX_IN_FULL = 8
"""Groups of equal ranks that are compared name by name in one step; further groups are skipped."""

SETTLING = 3
"""First steps, in which TrainCheck separates shards from replicas."""

EVERY = 10
VALUES_PER_STEP = 25
"""If all ranks agree, one step in this many is still compared name by name; in a large model fewer, so that this many
values are compared in an average step."""

MAX_TIMES = 10 * MAX_SECTIONS
"""Maximum sections, with the ranks that agreed in them, for which TrainCheck counts steps."""

SAMPLE = 16
"""Variables of a section that are compared if no value in it is the same on two groups of ranks."""


def lean(window: Window, demand: Demand) -> Window:
    """Return the part of a window that a rank publishes: digests, and other events that `demand` includes.

    `demand` is the demand of the rules about ranks. Calls that align windows of different ranks always stay. One
    reading holds all digests, because a job may have a thousand ranks: the sections in lines, and 16 hexadecimal digits
    for each of them.
    """
    values = list(values_of(window))
    crowded = len({section_of(variable) for _, variable, _ in values}) > MAX_SECTIONS
    sums: dict[str, int] = {}
    for value in values:
        section = section_of(value[1], crowded)
        sums[section] = (sums.get(section, 0) + _digest(value)) & _MASK  # a sum, because the order may differ
    pairs = {(quantity, variable) for quantity, variable, _ in values}
    others = (reading for reading in window.readings if (_quantity(reading), reading.variable) not in pairs)
    kept = (
        reading for reading in others if reading.kind == SOURCE or demand.takes_reading(reading.kind, reading.attribute)
    )
    readings = (packed(sums), *kept) if sums else tuple(kept)
    return replace(window, calls=_calls(window, demand), changes=(), readings=readings)


def packed(digests: Mapping[str, int]) -> Reading:
    """Return the reading that holds the digests of all sections of a window, see `lean`."""
    sections = sorted(digests)
    values = "".join(f"{digests[section]:0{_DIGITS}x}" for section in sections)
    return Reading(-1, NO_CALL, "\n".join(sections), DIGEST, OF_VALUES, values)


ValueDigests = Mapping[str, Sequence[int]]
"""The digests of the values of each variable. Equal digests of a variable on two ranks are equal values."""


class Selection(NamedTuple):
    """The values that a rank is to send: of some variables, and of all variables in some sections."""

    variables: frozenset[str]
    sections: frozenset[str] = frozenset()


def value_digests(window: Window, sections: frozenset[str]) -> dict[str, list[int]]:
    """Return the digests of all values in these sections."""
    digests: dict[str, list[int]] = {}
    for value in values_of(_part(window, Selection(frozenset(), sections))):
        digests.setdefault(value[1], []).append(_digest(value))
    return digests


def selected(window: Window, selection: Selection) -> Window:
    """Return the selected values of a window with the calls around them, and no other events."""
    part = _part(window, selection)
    pairs = {(quantity, variable) for quantity, variable, _ in values_of(part)}
    changes = tuple(change for change in part.changes if (_quantity(change), change.variable) in pairs)
    readings = tuple(reading for reading in part.readings if (_quantity(reading), reading.variable) in pairs)
    around = {*(change.call for change in changes), *(reading.call for reading in readings)}
    calls = tuple(call for call in window.calls if call.seq in around)
    return replace(window, calls=calls, changes=changes, readings=readings)


def _part(window: Window, selection: Selection) -> Window:
    """Return a window without events of other variables."""
    variables: Set[str] = selection.variables
    if selection.sections:
        crowded = any(section.startswith("~") for section in selection.sections)
        names = {*(change.variable for change in window.changes), *(reading.variable for reading in window.readings)}
        variables = {*variables, *(name for name in names if section_of(name, crowded) in selection.sections)}
    changes = tuple([change for change in window.changes if change.variable in variables])
    readings = tuple([reading for reading in window.readings if reading.variable in variables])
    return replace(window, changes=changes, readings=readings)


def section_of(variable: str, crowded: bool = False) -> str:
    """Return the section of a variable, see Note [A tree of three levels]."""
    names = _without_numbers(variable)
    return f"~{xxhash.xxh3_64_intdigest(names.encode()) % MAX_SECTIONS}" if crowded else names


class RankValues(Protocol):
    """Returns what ranks hold. Each result is in the order of the windows, and None for a rank that does not answer."""

    def value_digests(self, windows: Sequence[Window], sections: frozenset[str]) -> Sequence[ValueDigests | None]:
        """See the function `value_digests`."""

    def selected(self, windows: Sequence[Window], selection: Selection) -> Sequence[Window | None]:
        """See the function `selected`."""


class RecordedValues:
    """The values of windows that are recorded in full; `recorded` returns None for windows that it keeps no longer."""

    def __init__(self, recorded: Callable[[Window], Window | None]) -> None:
        self._recorded = recorded

    def value_digests(self, windows: Sequence[Window], sections: frozenset[str]) -> list[ValueDigests | None]:
        """See `RankValues`."""
        recorded = map(self._recorded, windows)
        return [None if window is None else value_digests(window, sections) for window in recorded]

    def selected(self, windows: Sequence[Window], selection: Selection) -> list[Window | None]:
        """See `RankValues`."""
        recorded = map(self._recorded, windows)
        return [None if window is None else selected(window, selection) for window in recorded]


_Blocks = tuple[int, ...]
"""For each rank, the index of the first rank with equal values."""


class _Request:
    """A request for values of some ranks, by the index of their window. Ranks that do not answer are left out."""

    def __init__(self, source: RankValues, windows: Sequence[Window], ranks: Sequence[int]) -> None:
        self._source = source
        self._windows = windows
        self._ranks = list(ranks)
        self.variables: set[str] = set()
        self.sections: set[str] = set()

    def value_digests(self, sections: frozenset[str]) -> dict[int, dict[str, dict[str, Sequence[int]]]]:
        """Request the digests of values, by rank, section and variable."""
        crowded = _are_crowded(sections)
        answers = self._source.value_digests([self._windows[index] for index in self._ranks], sections)
        by_rank: dict[int, dict[str, dict[str, Sequence[int]]]] = {}
        for index, answer in zip(self._ranks, answers, strict=True):
            if answer is not None:
                by_section = by_rank.setdefault(index, {})
                for variable, digests in answer.items():
                    by_section.setdefault(section_of(variable, crowded), {})[variable] = digests
        self._ranks = list(by_rank)
        return by_rank

    def values(self) -> dict[int, Window]:
        """Request the chosen values; the windows with them."""
        selection = Selection(frozenset(self.variables), frozenset(self.sections))
        answers = self._source.selected([self._windows[index] for index in self._ranks], selection)
        return {
            index: _joined(self._windows[index], values)
            for index, values in zip(self._ranks, answers, strict=True)
            if values is not None
        }


class Classes:
    """Merges the windows of several ranks, so that one window represents all ranks that agree with it."""

    def __init__(self, values: RankValues) -> None:
        self._values = values
        self._shards: dict[str, _Blocks] = {}
        self._new_shards: dict[str, _Blocks] = {}
        self.looked_at = 0
        """Ranks other than the first that were asked for values."""
        self._cut = 0
        self._gone = 0
        self._times: Counter[tuple[str, _Blocks]] = Counter()
        """How often a section had these blocks; none where all ranks agreed in it."""
        self._every = EVERY
        self._differing: dict[str, tuple[_Blocks, Set[str]]] = {}
        """The variables of a section that differed in the last step, and its blocks."""

    def together(self, windows: Sequence[Window]) -> list[Window]:
        """Return lean windows of one part of the run in the form for `ComparesRanks.across`, without skipped ranks
        (see `not_compared`)."""
        who = _blocks_by_section(windows)
        changed = _changed(self._shards, who)
        self._shards = {section: ranks for section, ranks in self._shards.items() if who.get(section, ranks) == ranks}
        self._new_shards = {}
        shards = self._shards.keys() & who.keys()
        opened = {section: blocks for section, blocks in who.items() if section not in shards and any(blocks)}
        # The first rank, then ranks that have just diverged.
        ordered = sorted(
            _groups(len(windows), list(opened.values())),
            key=lambda indices: (indices[0] > 0, changed.isdisjoint(indices), indices[0]),
        )
        leaders = [indices[0] for indices in ordered[:MAX_IN_FULL]]
        self.looked_at += len(leaders) - 1
        request = _Request(self._values, windows, leaders)
        self._choose_values(request, opened)
        agreeing = [section for section, blocks in who.items() if section not in shards and not any(blocks)]
        request.sections.update(section for section in agreeing if self._is_due(section, ()))
        if not (opened or request.sections):
            return _put_together(windows, ordered, {0: windows[0]}, sharded=bool(shards))
        whole = request.values()
        unexplained = opened.keys() & self._differing.keys()
        if unexplained:
            unexplained -= _explained(whole, unexplained)
        if unexplained:
            self._find_differing(request, {section: opened[section] for section in unexplained})
            whole = request.values()
        if request.sections:
            size = max((len(window.changes) + len(window.readings) for window in whole.values()), default=0)
            self._every = max(EVERY, self._every, size // VALUES_PER_STEP)
        self._cut += len(whole) < len(ordered)
        self._gone += len(whole) < len(leaders)
        return _put_together(windows, ordered, whole, sharded=bool(shards))

    def _choose_values(self, request: _Request, opened: Mapping[str, _Blocks]) -> None:
        """Choose what to request of sections in which ranks differ."""
        self._differing = {name: known for name, known in self._differing.items() if opened.get(name) == known[0]}
        due = {section for section, blocks in opened.items() if self._is_due(section, blocks)}
        for _, variables in self._differing.values():  # probably the same as in the last step, see `_explained`
            request.variables.update(variables)
        self._find_differing(request, {name: blocks for name, blocks in opened.items() if name not in self._differing})
        request.sections.update(due - self._new_shards.keys())

    def _find_differing(self, request: _Request, sections: Mapping[str, _Blocks]) -> None:
        """Find the variables that differ in these sections, and the sections in which all values do."""
        digests = request.value_digests(frozenset(sections)) if sections else {}
        for section, blocks in sections.items():
            by_rank = {index: of_rank.get(section, {}) for index, of_rank in digests.items()}
            names = set().union(*by_rank.values())
            values = {blocks[index]: set().union(*of_rank.values()) for index, of_rank in by_rank.items()}
            if len(values) > 1 and sum(map(len, values.values())) == len(set().union(*values.values())):
                self._new_shards[section] = blocks
                request.variables.update(sorted(names)[:SAMPLE])
            else:
                differing = {
                    name for name in names if len({tuple(sorted(held.get(name, ()))) for held in by_rank.values()}) > 1
                }
                self._differing[section] = blocks, differing
                request.variables.update(differing)

    def _is_due(self, section: str, blocks: _Blocks) -> bool:
        """Return whether to request equal values, too, so that rules are tried on them and replicas are known."""
        if len(self._times) > MAX_TIMES:
            self._times.clear()
        self._times[section, blocks] += 1
        times = self._times[section, blocks] + (self._times[section, ()] if blocks else 0)
        return times <= SETTLING or times % self._every == 0

    def not_compared(self) -> tuple[str, ...]:
        """Return the skipped comparisons, with a reason. Early on, many ranks may differ until shards are known."""
        if self._cut <= SETTLING and not self._gone:
            return ()
        return (f"in {self._cut} steps too many ranks differed, or were too slow, to be compared name by name",)

    def accept_differences(self) -> None:
        """Record that no rule failed in the last merged windows, so their differing sections are shards."""
        self._shards.update(self._new_shards)


def _changed(before: Mapping[str, _Blocks], now: Mapping[str, _Blocks]) -> set[int]:
    """Return the indices of ranks whose group of equal ranks has changed."""
    ranks: set[int] = set()
    for section, blocks in before.items():
        if now.get(section, blocks) != blocks:
            was, is_now = _members(blocks), _members(now[section])
            ranks.update(index for index in range(len(blocks)) if was[blocks[index]] != is_now[now[section][index]])
    return ranks


def _members(blocks: _Blocks) -> dict[int, list[int]]:
    members: dict[int, list[int]] = {}
    for index, block in enumerate(blocks):
        members.setdefault(block, []).append(index)
    return members


def _groups(ranks: int, blocks: Sequence[_Blocks]) -> list[list[int]]:
    """Return the groups of ranks that agree in all sections with these blocks."""
    if not blocks:
        return [list(range(ranks))]
    groups: dict[tuple[int, ...], list[int]] = {}
    for index, mine in enumerate(zip(*blocks, strict=True)):
        groups.setdefault(mine, []).append(index)
    return list(groups.values())


def _put_together(
    windows: Sequence[Window], groups: Sequence[Sequence[int]], whole: Mapping[int, Window], sharded: bool
) -> list[Window]:
    """Return the windows in their order: one per group with values, and the others as its equals."""
    together: dict[int, Window] = {}
    for indices in groups:
        leader = whole.get(indices[0])
        if leader is None:
            continue
        like = SharedValues(leader.rank, sharded)
        together[indices[0]] = leader.sharing(like, leader.readings)
        for index in indices[1:]:
            window = windows[index]
            others = window.readings[1:] if window.readings and window.readings[0].kind == DIGEST else window.readings
            together[index] = window.sharing(like, others)
    return [together[index] for index in sorted(together)]


def _joined(window: Window, values: Window) -> Window:
    """Return a lean window with its values in full."""
    calls = {call.seq: call for call in (*window.calls, *values.calls)}
    return replace(
        window,
        calls=tuple(calls[seq] for seq in sorted(calls)),
        changes=values.changes,
        readings=tuple(sorted((*window.readings, *values.readings), key=_SEQ)),
    )


def _explained(whole: Mapping[int, Window], sections: Set[str]) -> set[str]:
    """Return the sections in which ranks differ in no other values than those in their windows."""
    rests: dict[str, set[int]] = {}
    for window in whole.values():
        digests = digests_of(window)
        crowded = _are_crowded(digests)
        for value in values_of(window):
            section = section_of(value[1], crowded)
            if section in sections:
                digests[section] = (digests.get(section, 0) - _digest(value)) & _MASK
        for section in sections:
            rests.setdefault(section, set()).add(digests.get(section, 0))
    return {section for section, of_ranks in rests.items() if len(of_ranks) == 1}


def _are_crowded(sections: Iterable[str]) -> bool:
    return any(section.startswith("~") for section in sections)


def _blocks_by_section(windows: Sequence[Window]) -> dict[str, _Blocks]:
    """Return for each section which ranks agree."""
    first: dict[tuple[str, FactValue], int] = {}  # many ranks have equal digests, so work on the distinct ones
    leaders = [first.setdefault(_packed_digests(window), index) for index, window in enumerate(windows)]
    indices = list(first.values())
    blocks_by_section: dict[str, _Blocks] = {}
    for section, values in sorted(_columns(list(first)).items()):
        distinct = len(set(values))
        if distinct == len(indices):
            blocks_by_section[section] = tuple(leaders)
        elif distinct == 1:
            blocks_by_section[section] = (0,) * len(windows)
        else:
            block: dict[str, int] = {}
            of_leader = {index: block.setdefault(value, index) for index, value in zip(indices, values, strict=True)}
            blocks_by_section[section] = tuple([of_leader[leader] for leader in leaders])
    return blocks_by_section


def _columns(digests: Sequence[tuple[str, FactValue]]) -> dict[str, list[str]]:
    """Return the digests of each section, empty for those that do not have it."""
    if len({sections for sections, _ in digests}) > 1:
        unpacked = [_unpacked(*packed) for packed in digests]
        return {section: [of.get(section, "") for of in unpacked] for section in set().union(*unpacked)}
    names = digests[0][0].split("\n") if digests[0][0] else []
    texts = [str(values) for _, values in digests]
    starts = range(0, _DIGITS * len(names), _DIGITS)
    return {name: [text[start : start + _DIGITS] for text in texts] for name, start in zip(names, starts, strict=True)}


def _packed_digests(window: Window) -> tuple[str, FactValue]:
    for reading in window.readings:
        if reading.kind == DIGEST:
            return reading.variable, reading.value
    return "", ""


def _unpacked(names: str, values: FactValue) -> dict[str, str]:
    if not names or not isinstance(values, str):
        return {}
    parts = (values[start : start + _DIGITS] for start in range(0, len(values), _DIGITS))
    return dict(zip(names.split("\n"), parts, strict=False))


def digests_of(window: Window) -> dict[str, int]:
    """Return the digests that a rank published, by section."""
    return {section: int(digits, 16) for section, digits in _unpacked(*_packed_digests(window)).items()}


def values_of(window: Window) -> Iterator[tuple[str, str, object]]:
    """Yield the values of a window that relations compare between ranks: quantity, variable and content."""
    for relation in _with_values():
        yield from relation.values(window)


@cache
def _with_values() -> tuple[Any, ...]:
    """Return the relations that compare values. Cached, because the lookup costs more than a window."""
    relations = sorted(plugins.load("traincheck.relations").items())
    return tuple(relation for _, relation in relations if hasattr(relation, "values"))


def _calls(window: Window, demand: Demand) -> tuple[Call, ...]:
    """Return the calls of a window that the demand includes."""
    return tuple(
        call
        for call in window.calls
        if call.name in COLLECTIVES or demand.records_call((*call.levels, *kinds_of(call)))
    )


def _digest(value: tuple[str, str, object]) -> int:
    return xxhash.xxh3_64_intdigest(repr(value).encode())


def _quantity(event: Change | Reading) -> str:
    return f"{event.kind}.{event.attribute}"


_MASK = 2**64 - 1
_DIGITS = 16
_SEQ = attrgetter("seq")
_NUMBER = re.compile(r"\d+")


@lru_cache(maxsize=100_000)
def _without_numbers(variable: str) -> str:
    return _NUMBER.sub("#", variable).replace("\n", " ")  # sections are published in lines
