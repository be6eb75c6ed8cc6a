"""Rank calls: what several ranks call in the same step, how often, in which order and with what.

Calls of one API are put side by side by their number within the step, never by clocks.

Note [Who calls together]
A collective is made by all ranks of its group, so calls of it are set against each other group by group. A function of
the user's own code is compared as well: of one program it may be told which of them all ranks call alike. What else
drives training (the first rank writes a checkpoint, a stage of a pipeline has a loss) is nobody else's concern: of such
calls only the contents are compared that are there on all ranks. Messages are paired in messages.py.

Note [Purpose]
Collectives pair by their order alone, whatever they are meant for: where one rank has left one out, the next one takes
its place without a word. What it is meant for is told by the function around it and by the words it was called with.

Note [Words in names]
Each program names its functions as it likes, but with the words of the field: the number of places of an expert is told
by `capacity`, `get_capacity` or `capacity_of`. So that the ranks get the same whole number from a function is asked of
each of its words, too, and those on which several programs agree speak of functions that were never seen.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence

from traincheck.relations.api_arg.messages import MESSAGES, Messages
from traincheck.relations.base import ended, short
from traincheck.relations.comparison import (
    AT_ONCE,
    COMPARED,
    DISTINCT,
    EQUAL,
    OF_COLLECTIVES,
    OF_OTHERS,
    VALUE,
    Ways,
    common,
    compare,
    sampled,
    thing_of,
    told_by,
)
from traincheck.vocab.call_kinds import named, words_of
from traincheck.vocab.collectives import COLLECTIVE, COLLECTIVES, PURPOSE, RECEIVES, SENDS, WAIT, group_of, is_member
from traincheck.vocab.demand import ARGUMENTS, TENSORS, Demand
from traincheck.vocab.events import LIFECYCLE, NO_CALL, PROJECT, RESULT, Call, Window
from traincheck.vocab.facts import merged, value_of
from traincheck.vocab.occasion import RANKS, Occasion, Property, Subject
from traincheck.vocab.ranks import MOST_NAMED, Apart, alike, apart, named_ranks, who_differs

CALLS = "calls on ranks"
AS_OFTEN = Property(CALLS, "as often")
IN_ORDER = Property(CALLS, "in the same order")
SENT = Property(CALLS, "sizes sent are those expected")
SAME_PURPOSE = Property(CALLS, "for the same purpose")
SAME_NUMBER = Property(COMPARED, f"{VALUE}{RESULT}", EQUAL)
VERBS = frozenset((CALLS, MESSAGES))
NONE: frozenset[Property] = frozenset()

_SENT, _EXPECTED = "input_tensor_list", "output_tensor_list"
"""What `all_to_all` calls the parts that go to each rank and those that come from each."""
_SPLITS = ("len(input_split_sizes)", "len(output_split_sizes)")

_Calls = Sequence[Sequence[Call]]
"""Calls of one API in each of the windows."""
_Ranks = Sequence[int]
"""The ranks of those windows."""
_BETWEEN_TWO = SENDS | RECEIVES | {f"{COLLECTIVE}.batch_isend_irecv", WAIT}


class Ranks:
    """Compares the windows of several ranks at the same step; it keeps nothing from step to step."""

    def __init__(self) -> None:
        self._messages = Messages()

    def across(self, windows: Sequence[Window]) -> Iterator[Occasion]:
        """The occasions; `seq` is of the first window."""
        ranks = [window.rank for window in windows]
        yield from _of_collectives(windows)
        yield from self._messages.across(windows)
        for level, calls in _side_by_side(windows, PROJECT).items():
            yield _often(level, calls, ranks, windows[0])
            yield from _compared(level, calls, AT_ONCE, ranks, windows[0])
            for api in (level, *map(named, words_of(level))):  # see Note [Words in names]
                yield from _returned(api, calls, ranks, windows[0])
        for level, calls in _side_by_side(windows, LIFECYCLE).items():
            yield from _compared(level, calls, OF_OTHERS, ranks, windows[0])

    @staticmethod
    def needs(subject: Subject, prop: Property) -> Demand:
        if prop.verb == MESSAGES:
            return Messages.needs(prop)
        if prop in (IN_ORDER, SAME_PURPOSE):
            return Demand(COLLECTIVES)
        asked = {SENT: (TENSORS,), AS_OFTEN: ()}.get(prop, (ARGUMENTS,))
        return Demand(frozenset((subject.api,)), frozenset((subject.api, what) for what in asked))

    @staticmethod
    def describe(api: str, prop: Property) -> str:
        if prop.verb == MESSAGES:
            return Messages.describe(prop)
        return {
            IN_ORDER: f"every rank issues the collectives of {COLLECTIVE} in the same order",
            SAME_PURPOSE: "the ranks that meet in a collective call it from the same function, with the same words",
            SENT: f"with {api}, each rank sends as much as the other expects",
        }.get(prop, f"in a step, {api} is called as often on every rank")


# -- collectives -------------------------------------------------------------------------------------------------------


def _of_collectives(windows: Sequence[Window]) -> Iterator[Occasion]:
    made = [[call for call in window.calls if call.name in COLLECTIVES and ended(call)] for window in windows]
    for group in sorted({group_of(call) for calls in made for call in calls}):
        members = [place for place, window in enumerate(windows) if is_member(window.rank, group)]
        orders = [[call for call in made[place] if group_of(call) == group] for place in members]
        if len(members) > 1:
            yield from _of_group(orders, [windows[place].rank for place in members], windows[0])


def _of_group(orders: _Calls, ranks: _Ranks, first: Window) -> Iterator[Occasion]:
    """Of the calls of a group, rank by rank; `first` is the window of the first rank of all."""
    names = [tuple(call.name for call in order) for order in orders]
    found = _occasion(COLLECTIVE, (call for order in orders for call in order), first, _first_seq(orders, first))
    yield _judged(found, IN_ORDER, ranks, names, "the order of its collectives")
    if len(set(names)) == 1:
        yield from _of_purpose(orders, ranks, first)
    by_level: dict[str, list[list[Call]]] = {}
    for place, order in enumerate(orders):
        for call in order:
            by_level.setdefault(call.name, [[] for _ in orders])[place].append(call)
    for level, calls in by_level.items():
        yield _often(level, calls, ranks, first)
        yield from _compared(level, calls, OF_COLLECTIVES, ranks, first)
        for together in zip(*calls, strict=False):
            unlike = _sent_otherwise(together)
            if unlike is not None:
                found = _occasion(level, together, first, _first_seq([together], first))
                ends = tuple(sorted(ranks[place] for place in unlike))
                unfit = Apart(ends, len(ends))
                yield _failed(found, SENT, f"not so between {named_ranks(ends)}", unfit) if ends else _held(found, SENT)


def _of_purpose(orders: _Calls, ranks: _Ranks, first: Window) -> Iterator[Occasion]:
    """One occasion of the step, at the first collective that ranks meet in for different reasons, if any."""
    met = list(zip(*orders, strict=True))
    told = [{value_of(call.result, PURPOSE) for call in together} for together in met]
    everywhere = set.intersection(*({_function(call) for call in order} for order in orders))
    against = [
        together
        for together, purposes in zip(met, told, strict=True)
        if len(purposes) > 1 and everywhere.issuperset(map(_function, together))
    ]
    calls = against[0] if against else tuple(call for order in orders for call in order)
    found = _occasion(COLLECTIVE, calls, first, _first_seq([calls], first))
    purposes = [value_of(call.result, PURPOSE) for call in against[0]] if against else []
    said = ", ".join(map(str, dict.fromkeys(purposes)))
    yield _judged(found, SAME_PURPOSE, ranks, purposes, f"what {short(calls[0].name)} is called for: {said}")


def _function(call: Call) -> str:
    """The function of the user's that makes a call. One that only some ranks have (each stage its own) says nothing."""
    return str(value_of(call.result, PURPOSE)).partition("(")[0]


def _sent_otherwise(together: Sequence[Call]) -> set[int] | None:
    """The places of the first two ranks in an exchange of lists of which one sends another size than the other expects;
    none where all is as expected, None where it is not told."""
    ranks = range(len(together))
    shapes = [{tensor.role: tensor.shape for tensor in call.tensors} for call in together]
    pairs = {
        (one, other): (shapes[one].get(f"{_SENT}[{other}]"), shapes[other].get(f"{_EXPECTED}[{one}]"))
        for one in ranks
        for other in ranks
    }
    # With more parts than ranks, other ranks take part than those that are compared.
    if any(None in pair for pair in pairs.values()) or any(f"{_SENT}[{len(together)}]" in shape for shape in shapes):
        return None
    return next(({*ends} for ends, (sent, expected) in pairs.items() if sent != expected), set())


# -- other calls -------------------------------------------------------------------------------------------------------


def _side_by_side(windows: Sequence[Window], kind: str) -> dict[str, _Calls]:
    """For each API of this kind, at every level, its calls in each window; without those of several ranks together."""
    found: dict[str, list[list[Call]]] = {}
    for place, window in enumerate(windows):
        for call in window.calls:
            if call.kind == kind and ended(call) and call.name not in COLLECTIVES | _BETWEEN_TWO:
                for level in call.levels:
                    found.setdefault(level, [[] for _ in windows])[place].append(call)
    return dict(found)


def _often(level: str, calls: _Calls, ranks: _Ranks, first: Window) -> Occasion:
    found = _occasion(level, (call for of_rank in calls for call in of_rank), first, _first_seq(calls, first))
    return _judged(found, AS_OFTEN, ranks, list(map(len, calls)), f"how often {short(level)} is called")


def _compared(level: str, calls: _Calls, ways: Ways, ranks: _Ranks, first: Window) -> Iterator[Occasion]:
    of_some = sampled(call for of_rank in calls for call in of_rank)
    for together in zip(*calls, strict=False):
        held, failed = compare(together, ways, of_some)
        if held or failed:
            context = common(together, first.stage)
            if level.startswith(f"{COLLECTIVE}.all_to_all"):
                context = merged(
                    context, splits=any(value_of(call.args, name) for call in together for name in _SPLITS)
                )
            found = Occasion(Subject(level, RANKS), context, held, NONE, _first_seq([together], first))
            yield from _by_difference(found, failed, ranks, together) if failed else (found,)


def _by_difference(
    found: Occasion, failed: Iterable[Property], ranks: _Ranks, together: Sequence[Call]
) -> Iterator[Occasion]:
    """One occasion for each set of ranks that differ, with the properties that failed for them."""
    told: dict[Apart, tuple[str, set[Property]]] = {}
    for prop in sorted(failed):
        values = [(rank, told_by(call, prop.object)) for rank, call in zip(ranks, together, strict=True)]
        values = [(rank, value) for rank, value in values if value is not None]
        if prop.detail == DISTINCT:
            unlike = alike(values)
            note = f"{named_ranks(unlike.ranks)} had the same {thing_of(prop)}"
        else:
            unlike, note = apart(values), f"{who_differs(values)} in the {thing_of(prop)}"
        told.setdefault(unlike, (note, set()))[1].add(prop)
    for unlike, (note, props) in told.items():
        yield found._replace(failed=frozenset(props), note=note, apart=unlike)
        found = found._replace(held=NONE)


def _returned(api: str, calls: _Calls, ranks: _Ranks, first: Window) -> Iterator[Occasion]:
    """Whether whole numbers that a function returns (a capacity, a count) are the same. (Others may be by chance.)"""
    for together in zip(*calls, strict=False):
        values = [value_of(call.result, "value") for call in together]
        if all(type(value) is int for value in values):
            found = _occasion(api, together, first, _first_seq([together], first))
            got = ", ".join(map(str, values[:MOST_NAMED]))
            yield _judged(found, SAME_NUMBER, ranks, values, f"what it got: {got}")


def _first_seq(calls: _Calls, first: Window) -> int:
    """The first of the calls that is in the window of the first rank."""
    present = (call for of_rank in calls for call in of_rank if first.by_seq.get(call.seq) is call)
    return next((call.seq for call in present), NO_CALL)


def _occasion(api: str, calls: Iterable[Call], window: Window, seq: int) -> Occasion:
    """An occasion on which nothing is judged yet."""
    return Occasion(Subject(api, RANKS), common(calls, window.stage), NONE, NONE, seq)


def _judged(found: Occasion, prop: Property, ranks: _Ranks, values: Sequence[Hashable], what: str) -> Occasion:
    """`prop` holds where the ranks have the same value; they differ in `what` otherwise."""
    if len(set(values)) < 2:
        return _held(found, prop)
    by_rank = list(zip(ranks, values, strict=True))
    return _failed(found, prop, f"{who_differs(by_rank)} in {what}", apart(by_rank))


def _held(found: Occasion, prop: Property) -> Occasion:
    return found._replace(held=frozenset((prop,)))


def _failed(found: Occasion, prop: Property, note: str, unlike: Apart) -> Occasion:
    return found._replace(failed=frozenset((prop,)), note=note, apart=unlike)
