"""Summarizes the values of a rank in a few digests, so that ranks compare full values only if these differ.

Note [A tree of three levels]
A large model has ten thousand parameters with four values each per step; a job may have a thousand ranks. Ranks hold
equal values (replicas) or different ones in every step (shards). So a rank publishes one digest for each *section*: the
variables whose names differ in their numbers only, as `layers.#.norm.weight`. They are the same part of every layer, so
they are all replicas or all shards. TrainCheck does nothing else for sections in which all ranks agree. It compares
other sections name by name, on one rank of each group that agrees. If all names of a section differ, and no rule says
that they must not, the section holds shards. It is skipped as long as the same ranks agree in it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from functools import cache, lru_cache
from typing import Any

import xxhash

from traincheck import plugins
from traincheck.vocab.call_kinds import kinds_of
from traincheck.vocab.collectives import COLLECTIVES
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import DIGEST, NO_CALL, OF_VALUES, SOURCE, Call, Change, Reading, SharedValues, Window

MAX_SECTIONS = 256
"""Maximum sections with a digest of their own; beyond it, several share a digest."""

MAX_IN_FULL = 8
"""Groups of equal ranks that are compared name by name in one step; further groups are skipped."""

SETTLING = 3
"""First steps, in which TrainCheck separates shards from replicas."""

EVERY = 10
"""If all ranks agree, one step in this many is still compared name by name."""


def lean(window: Window, demand: Demand) -> Window:
    """Return the part of a window that a rank publishes: digests, and other events that `demand` includes.

    `demand` is the demand of the rules about ranks. Calls that align windows of different ranks always stay.
    """
    values = list(values_of(window))
    crowded = len({section_of(variable) for _, variable, _ in values}) > MAX_SECTIONS
    sums: dict[str, int] = {}
    for value in values:
        section = section_of(value[1], crowded)
        digest = xxhash.xxh3_64_intdigest(repr(value).encode())
        sums[section] = (sums.get(section, 0) + digest) & _MASK  # a sum, because the order may differ between ranks
    digests = (Reading(-1, NO_CALL, section, DIGEST, OF_VALUES, value) for section, value in sorted(sums.items()))
    pairs = {(quantity, variable) for quantity, variable, _ in values}
    others = (reading for reading in window.readings if (_quantity(reading), reading.variable) not in pairs)
    kept = (
        reading for reading in others if reading.kind == SOURCE or demand.takes_reading(reading.kind, reading.attribute)
    )
    return replace(window, calls=_calls(window, demand), changes=(), readings=(*digests, *kept))


def full(window: Window, demand: Demand) -> Window:
    """Return the window that a rank publishes if digests differ: like `lean`, with values instead of digests."""
    pairs = {(quantity, variable) for quantity, variable, _ in values_of(window)}
    readings = tuple(
        reading
        for reading in window.readings
        if (_quantity(reading), reading.variable) in pairs
        or reading.kind == SOURCE
        or demand.takes_reading(reading.kind, reading.attribute)
    )
    changes = tuple(change for change in window.changes if (_quantity(change), change.variable) in pairs)
    around = {*(change.call for change in changes), *(reading.call for reading in readings)}
    return replace(window, calls=_calls(window, demand, around), changes=changes, readings=readings)


def section_of(variable: str, crowded: bool = False) -> str:
    """Return the section of a variable, see Note [A tree of three levels]."""
    names = _without_numbers(variable)
    return f"~{xxhash.xxh3_64_intdigest(names.encode()) % MAX_SECTIONS}" if crowded else names


InFull = Callable[[Sequence[Window]], Sequence[Window | None]]
"""Returns the full windows for lean ones, in their order; None for windows that are no longer available."""


_Blocks = tuple[int, ...]
"""For each rank, the index of the first rank with equal values."""


class Classes:
    """Merges the windows of several ranks, so that one window represents all ranks that agree with it."""

    def __init__(self, in_full: InFull) -> None:
        self._in_full = in_full
        self._shards: dict[str, _Blocks] = {}
        self._new_shards: dict[str, _Blocks] = {}
        self.looked_at = 0
        """Full windows requested from ranks other than the first."""
        self._cut = 0
        self._gone = 0
        self._agreed: Counter[frozenset[str]] = Counter()

    def together(self, windows: Sequence[Window]) -> list[Window]:
        """Return lean windows of one part of the run in the form for `ComparesRanks.across`, without skipped ranks
        (see `not_compared`)."""
        digests_of = [_digests(window) for window in windows]
        sections = sorted(set().union(*digests_of))
        who = {section: _blocks([of_rank.get(section) for of_rank in digests_of]) for section in sections}
        changed = _changed(self._shards, who)
        self._shards = {section: ranks for section, ranks in self._shards.items() if who.get(section, ranks) == ranks}
        shards = self._shards.keys() & who.keys()
        groups: dict[tuple[int, ...], list[int]] = {}
        for index in range(len(windows)):
            mine = tuple(who[section][index] for section in sections if section not in shards)
            groups.setdefault(mine, []).append(index)
        # The first rank, then ranks that have just diverged.
        ordered = sorted(groups.values(), key=lambda indices: (indices[0] > 0, changed.isdisjoint(indices), indices[0]))
        leaders = [indices[0] for indices in ordered[:MAX_IN_FULL]]
        if len(leaders) == 1 and not self._is_due(frozenset(sections)):
            self._new_shards = {}
            return _put_together(windows, ordered, {0: windows[0]}, shards, crowded=False)
        self.looked_at += len(leaders) - 1
        given = zip(leaders, self._in_full([windows[index] for index in leaders]), strict=True)
        whole = {index: window for index, window in given if window is not None}
        self._cut += len(whole) < len(ordered)
        self._gone += len(whole) < len(leaders)
        crowded = any(section.startswith("~") for section in sections)
        opened = {section for section in sections if section not in shards and len(set(who[section])) > 1}
        self._new_shards = {section: who[section] for section in _all_different(whole, who, opened, crowded)}
        return _put_together(windows, ordered, whole, shards, crowded)

    def _is_due(self, sections: frozenset[str]) -> bool:
        """Return whether to judge a step in which all ranks agree, so that rules are tried on equal values."""
        self._agreed[sections] += 1
        return self._agreed[sections] <= SETTLING or self._agreed[sections] % EVERY == 0

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


def _put_together(
    windows: Sequence[Window],
    groups: Sequence[Sequence[int]],
    whole: dict[int, Window],
    shards: set[str],
    crowded: bool,
) -> list[Window]:
    """Return the windows in their order: one per group in full, without shards, and the others as its equals."""
    together: dict[int, Window] = {}
    for indices in groups:
        leader = whole.get(indices[0])
        if leader is None:
            continue
        like = SharedValues(leader.rank, bool(shards))
        together[indices[0]] = replace(_without(leader, shards, crowded), shared=like)
        together.update((index, replace(windows[index], shared=like)) for index in indices[1:])
    return [together[index] for index in sorted(together)]


def _all_different(
    whole: dict[int, Window], who: Mapping[str, _Blocks], opened: set[str], crowded: bool
) -> Iterator[str]:
    """Yield compared sections in which no two groups of ranks have an equal value of any variable."""
    seen: dict[str, Counter[tuple[str, str, str]]] = {section: Counter() for section in opened}
    counted_blocks: dict[str, set[int]] = {section: set() for section in opened}
    for index, window in whole.items():
        for quantity, variable, content in values_of(window):
            section = section_of(variable, crowded)
            if section in opened and who[section][index] not in counted_blocks[section]:
                seen[section][quantity, variable, repr(content)] += 1
        for section in opened:
            counted_blocks[section].add(who[section][index])
    several = (section for section in opened if len(counted_blocks[section]) > 1)
    return (section for section in several if max(seen[section].values(), default=1) == 1)


def _without(window: Window, shards: set[str], crowded: bool) -> Window:
    if not shards:
        return window
    changes = (change for change in window.changes if section_of(change.variable, crowded) not in shards)
    pairs = {(quantity, variable) for quantity, variable, _ in values_of(window)}
    readings = (
        reading
        for reading in window.readings
        if (_quantity(reading), reading.variable) not in pairs or section_of(reading.variable, crowded) not in shards
    )
    return replace(window, changes=tuple(changes), readings=tuple(readings))


def _blocks(values: Sequence[object]) -> _Blocks:
    """Return for each rank the index of the first rank with an equal value."""
    first: dict[object, int] = {}
    return tuple(first.setdefault(value, index) for index, value in enumerate(values))


def _digests(window: Window) -> dict[str, Any]:
    return {reading.variable: reading.value for reading in window.readings if reading.kind == DIGEST}


def values_of(window: Window) -> Iterator[tuple[str, str, object]]:
    """Yield the values of a window that relations compare between ranks: quantity, variable and content."""
    for relation in _with_values():
        yield from relation.values(window)


@cache
def _with_values() -> tuple[Any, ...]:
    """Return the relations that compare values. Cached, because the lookup costs more than a window."""
    relations = sorted(plugins.load("traincheck.relations").items())
    return tuple(relation for _, relation in relations if hasattr(relation, "values"))


def _calls(window: Window, demand: Demand, around: Set[int] = frozenset()) -> tuple[Call, ...]:
    """Return the calls of a window that the demand includes, or that enclose a published event."""
    return tuple(
        call
        for call in window.calls
        if call.seq in around or call.name in COLLECTIVES or demand.records_call((*call.levels, *kinds_of(call)))
    )


def _quantity(event: Change | Reading) -> str:
    return f"{event.kind}.{event.attribute}"


_MASK = 2**64 - 1
_NUMBER = re.compile(r"\d+")


@lru_cache(maxsize=100_000)
def _without_numbers(variable: str) -> str:
    return _NUMBER.sub("#", variable)
