"""Digests: a rank tells the others what it holds in a few numbers, and in full only where these differ.

Note [A tree of three levels]
A large model has ten thousand parameters, and of each a step tells four values; a job may have a thousand ranks, which
hold the same or, where they hold shards, other values in every step. So of its values a rank tells a digest for each
*section*: the variables whose names differ in their numbers only, as `layers.#.norm.weight`. They are the same part of
every layer, so they are replicas or shards together. Sections in which all ranks agree need no more words. Those in
which they differ are looked at name by name, on one rank for all that agree. Where all names of a section turn out to
differ, and no rule says that they must not, it holds shards: as long as the same ranks agree in it, it is not looked at
again.
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

MOST_SECTIONS = 256
"""Sections that are told apart; with more of them, several share a digest."""

MOST_IN_FULL = 8
"""Ranks that differ and are looked at name by name in one step; further ones are left out of it."""

SETTLING = 3
"""Steps in which shards are told from replicas."""

EVERY = 10
"""Of the steps in which all ranks agree, one in so many is looked at name by name all the same."""


def lean(window: Window, demand: Demand) -> Window:
    """What a rank tells the others of a window: digests, and of the rest what `demand` asks for.

    `demand` is that of the rules about ranks. Calls that place the window among those of others are kept in any case.
    """
    values = list(values_of(window))
    crowded = len({section_of(variable) for _, variable, _ in values}) > MOST_SECTIONS
    sums: dict[str, int] = {}
    for value in values:
        section = section_of(value[1], crowded)
        digest = xxhash.xxh3_64_intdigest(repr(value).encode())
        sums[section] = (sums.get(section, 0) + digest) & _MASK  # a sum: ranks may tell them in another order
    digests = (Reading(-1, NO_CALL, section, DIGEST, OF_VALUES, value) for section, value in sorted(sums.items()))
    told = {(what, variable) for what, variable, _ in values}
    others = (reading for reading in window.readings if (_thing(reading), reading.variable) not in told)
    kept = (one for one in others if one.kind == SOURCE or demand.takes_reading(one.kind, one.attribute))
    return replace(window, calls=_calls(window, demand), changes=(), readings=(*digests, *kept))


def full(window: Window, demand: Demand) -> Window:
    """What a rank tells where digests differ: as `lean`, with the values in place of their digests."""
    told = {(what, variable) for what, variable, _ in values_of(window)}
    readings = tuple(
        reading
        for reading in window.readings
        if (_thing(reading), reading.variable) in told
        or reading.kind == SOURCE
        or demand.takes_reading(reading.kind, reading.attribute)
    )
    changes = tuple(change for change in window.changes if (_thing(change), change.variable) in told)
    around = {*(change.call for change in changes), *(reading.call for reading in readings)}
    return replace(window, calls=_calls(window, demand, around), changes=changes, readings=readings)


def section_of(variable: str, crowded: bool = False) -> str:
    """The section of a variable, see Note [A tree of three levels]."""
    names = _without_numbers(variable)
    return f"~{xxhash.xxh3_64_intdigest(names.encode()) % MOST_SECTIONS}" if crowded else names


InFull = Callable[[Sequence[Window]], Sequence[Window | None]]
"""Gives the windows of some ranks in full, in the order of the lean ones that it is given; None for what is gone."""


_Blocks = tuple[int, ...]
"""For each rank the place of the first one that holds the same."""


class Classes:
    """Puts the windows of several ranks together, so that one is compared for all that agree with it."""

    def __init__(self, in_full: InFull) -> None:
        self._in_full = in_full
        self._apart: dict[str, _Blocks] = {}
        self._found_apart: dict[str, _Blocks] = {}
        self.looked_at = 0
        """Windows of other ranks than the first one that were asked for in full."""
        self._cut = 0
        self._gone = 0
        self._agreed: Counter[frozenset[str]] = Counter()

    def together(self, windows: Sequence[Window]) -> list[Window]:
        """Lean windows of the same part of the run, as `ComparesRanks.across` takes them; without those of ranks that
        are left out (see `not_compared`)."""
        told = [_digests(window) for window in windows]
        sections = sorted(set().union(*told))
        who = {section: _blocks([of_rank.get(section) for of_rank in told]) for section in sections}
        changed = _changed(self._apart, who)
        self._apart = {section: ranks for section, ranks in self._apart.items() if who.get(section, ranks) == ranks}
        shards = self._apart.keys() & who.keys()
        groups: dict[tuple[int, ...], list[int]] = {}
        for place in range(len(windows)):
            mine = tuple(who[section][place] for section in sections if section not in shards)
            groups.setdefault(mine, []).append(place)
        # The first rank, then those that have just gone apart.
        found = sorted(groups.values(), key=lambda places: (places[0] > 0, changed.isdisjoint(places), places[0]))
        leaders = [places[0] for places in found[:MOST_IN_FULL]]
        if len(leaders) == 1 and not self._is_due(frozenset(sections)):
            self._found_apart = {}
            return _put_together(windows, found, {0: windows[0]}, shards, crowded=False)
        self.looked_at += len(leaders) - 1
        given = zip(leaders, self._in_full([windows[place] for place in leaders]), strict=True)
        whole = {place: window for place, window in given if window is not None}
        self._cut += len(whole) < len(found)
        self._gone += len(whole) < len(leaders)
        crowded = any(section.startswith("~") for section in sections)
        opened = {section for section in sections if section not in shards and len(set(who[section])) > 1}
        self._found_apart = {section: who[section] for section in _all_different(whole, who, opened, crowded)}
        return _put_together(windows, found, whole, shards, crowded)

    def _is_due(self, sections: frozenset[str]) -> bool:
        """Whether to look at a step in which all agree: the rules are then tried on what is held alike."""
        self._agreed[sections] += 1
        return self._agreed[sections] <= SETTLING or self._agreed[sections] % EVERY == 0

    def not_compared(self) -> tuple[str, ...]:
        """What was left out, and why. In the first steps too many may differ while shards are told apart."""
        if self._cut <= SETTLING and not self._gone:
            return ()
        return (f"in {self._cut} steps too many ranks differed, or were too slow, to be compared name by name",)

    def nothing_wrong(self) -> None:
        """No rule failed in the windows last put together: what differed in them may well do so."""
        self._apart.update(self._found_apart)


def _changed(before: Mapping[str, _Blocks], now: Mapping[str, _Blocks]) -> set[int]:
    """The ranks (their places) that do not hold the same as the same others as before."""
    found: set[int] = set()
    for section, blocks in before.items():
        if now.get(section, blocks) != blocks:
            was, is_now = _members(blocks), _members(now[section])
            found.update(place for place in range(len(blocks)) if was[blocks[place]] != is_now[now[section][place]])
    return found


def _members(blocks: _Blocks) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for place, block in enumerate(blocks):
        found.setdefault(block, []).append(place)
    return found


def _put_together(
    windows: Sequence[Window],
    groups: Sequence[Sequence[int]],
    whole: dict[int, Window],
    shards: set[str],
    crowded: bool,
) -> list[Window]:
    """The windows in their order: of each group one in full but for the shards, and the others as its like."""
    found: dict[int, Window] = {}
    for places in groups:
        leader = whole.get(places[0])
        if leader is None:
            continue
        like = SharedValues(leader.rank, bool(shards))
        found[places[0]] = replace(_without(leader, shards, crowded), shared=like)
        found.update((place, replace(windows[place], shared=like)) for place in places[1:])
    return [found[place] for place in sorted(found)]


def _all_different(
    whole: dict[int, Window], who: Mapping[str, _Blocks], opened: set[str], crowded: bool
) -> Iterator[str]:
    """Of the sections that were looked at on several groups of ranks, those of which no two of them hold the same of
    any variable."""
    seen: dict[str, Counter[tuple[str, str, str]]] = {section: Counter() for section in opened}
    asked: dict[str, set[int]] = {section: set() for section in opened}
    for place, window in whole.items():
        for what, variable, content in values_of(window):
            section = section_of(variable, crowded)
            if section in opened and who[section][place] not in asked[section]:
                seen[section][what, variable, repr(content)] += 1
        for section in opened:
            asked[section].add(who[section][place])
    several = (section for section in opened if len(asked[section]) > 1)
    return (section for section in several if max(seen[section].values(), default=1) == 1)


def _without(window: Window, shards: set[str], crowded: bool) -> Window:
    if not shards:
        return window
    changes = (change for change in window.changes if section_of(change.variable, crowded) not in shards)
    told = {(what, variable) for what, variable, _ in values_of(window)}
    readings = (
        each
        for each in window.readings
        if (_thing(each), each.variable) not in told or section_of(each.variable, crowded) not in shards
    )
    return replace(window, changes=tuple(changes), readings=tuple(readings))


def _blocks(values: Sequence[object]) -> _Blocks:
    """For each rank the first one that has the same."""
    first: dict[object, int] = {}
    return tuple(first.setdefault(value, place) for place, value in enumerate(values))


def _digests(window: Window) -> dict[str, Any]:
    return {each.variable: each.value for each in window.readings if each.kind == DIGEST}


def values_of(window: Window) -> Iterator[tuple[str, str, object]]:
    """What of a window the relations compare over ranks: of what thing, of which variable, and its content."""
    for relation in _with_values():
        yield from relation.values(window)


@cache
def _with_values() -> tuple[Any, ...]:
    """The relations that compare values; looked up once, as that costs more than a window."""
    relations = sorted(plugins.load("traincheck.relations").items())
    return tuple(relation for _, relation in relations if hasattr(relation, "values"))


def _calls(window: Window, demand: Demand, around: Set[int] = frozenset()) -> tuple[Call, ...]:
    """The calls of a window that are asked for, or that something was told around."""
    return tuple(
        call
        for call in window.calls
        if call.seq in around or call.name in COLLECTIVES or demand.records_call((*call.levels, *kinds_of(call)))
    )


def _thing(event: Change | Reading) -> str:
    return f"{event.kind}.{event.attribute}"


_MASK = 2**64 - 1
_NUMBER = re.compile(r"\d+")


@lru_cache(maxsize=100_000)
def _without_numbers(variable: str) -> str:
    return _NUMBER.sub("#", variable)
