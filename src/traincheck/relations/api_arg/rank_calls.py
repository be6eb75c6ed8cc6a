"""Compare the calls of several ranks in the same step: how often they occur, in which order, and with which arguments.

Calls of one API are paired by their number within the step, never by clocks.

Note [Which calls ranks make together]
All ranks of a group make a collective, so collectives are compared group by group. Functions of the project are
compared as well: rules show which of them all ranks call alike. Other calls that drive training (the first rank writes
a checkpoint, a pipeline stage has a loss) may occur on one rank only. For such calls, only contents are compared, and
only if all ranks have them. messages.py pairs messages.

Note [Purpose]
Collectives pair by their order alone, whatever they are for. If one rank omits a collective, the next one takes its
place without an error. The function around a collective and its arguments show what it is for.

Note [Words in names]
Programs name their functions freely, but use the words of the field: `capacity`, `get_capacity` or `capacity_of`
compute the number of slots of an expert. So the rule that ranks get the same whole number is learned for each word of
the name, too. Words on which several programs agree then apply to functions that were never seen.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence

from traincheck.relations.api_arg.messages import Messages
from traincheck.relations.base import ended, short
from traincheck.relations.comparison import (
    AT_ONCE,
    OF_COLLECTIVES,
    OF_OTHERS,
    VALUE,
    Ways,
    common,
    compare,
    compared_phrase,
    sampled,
    value_in_call,
)
from traincheck.vocab.call_kinds import named, words_of
from traincheck.vocab.collectives import COLLECTIVE, COLLECTIVES, PURPOSE, RECEIVES, SENDS, WAIT, group_of, is_member
from traincheck.vocab.demand import ARGUMENTS, TENSORS, Demand
from traincheck.vocab.events import LIFECYCLE, NO_CALL, PROJECT, RESULT, Call, Window
from traincheck.vocab.facts import merged, value_of
from traincheck.vocab.occasion import RANKS, Occasion, Property, Subject
from traincheck.vocab.properties import CALLS_ON_RANKS, COMPARES_CALLS, DISTINCT, EQUAL, MESSAGES
from traincheck.vocab.ranks import (
    MAX_NAMED,
    DifferingRanks,
    differing_ranks_text,
    named_ranks,
    ranks_that_differ,
    ranks_that_share,
)

AS_OFTEN = Property(CALLS_ON_RANKS, "as often")
IN_ORDER = Property(CALLS_ON_RANKS, "in the same order")
SENT = Property(CALLS_ON_RANKS, "sizes sent are those expected")
SAME_PURPOSE = Property(CALLS_ON_RANKS, "for the same purpose")
SAME_NUMBER = Property(COMPARES_CALLS, f"{VALUE}{RESULT}", EQUAL)
VERBS = frozenset((CALLS_ON_RANKS, MESSAGES))
NONE: frozenset[Property] = frozenset()

_SENT, _EXPECTED = "input_tensor_list", "output_tensor_list"
"""The arguments of `all_to_all` for the parts that go to each rank, and for those that come from each."""
_SPLITS = ("len(input_split_sizes)", "len(output_split_sizes)")

_Calls = Sequence[Sequence[Call]]
"""Calls of one API in each of the windows."""
_Ranks = Sequence[int]
"""The ranks of those windows."""
_BETWEEN_TWO = SENDS | RECEIVES | {f"{COLLECTIVE}.batch_isend_irecv", WAIT}


class RankCalls:
    """Compares the windows of several ranks at the same step; keeps only pending messages."""

    def __init__(self) -> None:
        self._messages = Messages()

    def across(self, windows: Sequence[Window]) -> Iterator[Occasion]:
        """Yield the occasions; `seq` refers to the first window."""
        ranks = [window.rank for window in windows]
        yield from _compare_collectives(windows)
        yield from self._messages.across(windows)
        for level, calls in _calls_by_level(windows, PROJECT).items():
            yield _call_counts(level, calls, ranks, windows[0])
            yield from _compare_arguments(level, calls, AT_ONCE, ranks, windows[0])
            for api in (level, *map(named, words_of(level))):  # see Note [Words in names]
                yield from _compare_results(api, calls, ranks, windows[0])
        for level, calls in _calls_by_level(windows, LIFECYCLE).items():
            yield from _compare_arguments(level, calls, OF_OTHERS, ranks, windows[0])

    @staticmethod
    def needs(subject: Subject, prop: Property) -> Demand:
        if prop.verb == MESSAGES:
            return Messages.needs(prop)
        if prop in (IN_ORDER, SAME_PURPOSE):
            return Demand.of_calls(*COLLECTIVES)
        if prop == AS_OFTEN:
            return Demand.of_calls(subject.api)
        return Demand.of_calls(subject.api, values=(TENSORS if prop == SENT else ARGUMENTS,))

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


def _compare_collectives(windows: Sequence[Window]) -> Iterator[Occasion]:
    made = [[call for call in window.calls if call.name in COLLECTIVES and ended(call)] for window in windows]
    for group in sorted({group_of(call) for calls in made for call in calls}):
        members = [index for index, window in enumerate(windows) if is_member(window.rank, group)]
        orders = [[call for call in made[index] if group_of(call) == group] for index in members]
        if len(members) > 1:
            yield from _compare_group(orders, [windows[index].rank for index in members], windows[0])


def _compare_group(orders: _Calls, ranks: _Ranks, first: Window) -> Iterator[Occasion]:
    """The occasions of the collectives of a group, rank by rank. `first` is the window of the first rank of all."""
    names = [tuple(call.name for call in order) for order in orders]
    occasion = _occasion(COLLECTIVE, (call for order in orders for call in order), first, _first_seq(orders, first))
    yield _with_verdict(occasion, IN_ORDER, ranks, names, "the order of its collectives")
    if len(set(names)) == 1:
        yield from _compare_purposes(orders, ranks, first)
    by_level: dict[str, list[list[Call]]] = {}
    for index, order in enumerate(orders):
        for call in order:
            by_level.setdefault(call.name, [[] for _ in orders])[index].append(call)
    for level, calls in by_level.items():
        yield _call_counts(level, calls, ranks, first)
        yield from _compare_arguments(level, calls, OF_COLLECTIVES, ranks, first)
        for together in zip(*calls, strict=False):
            mismatch = _size_mismatch(together)
            if mismatch is not None:
                occasion = _occasion(level, together, first, _first_seq([together], first))
                ends = tuple(sorted(ranks[index] for index in mismatch))
                differing = DifferingRanks(ends, len(ends))
                yield (
                    _with_failed(occasion, SENT, f"not so between {named_ranks(ends)}", differing)
                    if ends
                    else _with_held(occasion, SENT)
                )


def _compare_purposes(orders: _Calls, ranks: _Ranks, first: Window) -> Iterator[Occasion]:
    """One occasion of the step, at the first collective that ranks make for different purposes, if any."""
    meetings = list(zip(*orders, strict=True))
    purposes_met = [{value_of(call.result, PURPOSE) for call in together} for together in meetings]
    everywhere = set.intersection(*({_calling_function(call) for call in order} for order in orders))
    mismatched = [
        together
        for together, purposes in zip(meetings, purposes_met, strict=True)
        if len(purposes) > 1 and everywhere.issuperset(map(_calling_function, together))
    ]
    calls = mismatched[0] if mismatched else tuple(call for order in orders for call in order)
    occasion = _occasion(COLLECTIVE, calls, first, _first_seq([calls], first))
    purposes = [value_of(call.result, PURPOSE) for call in mismatched[0]] if mismatched else []
    purposes_text = ", ".join(map(str, dict.fromkeys(purposes)))
    yield _with_verdict(
        occasion, SAME_PURPOSE, ranks, purposes, f"what {short(calls[0].name)} is called for: {purposes_text}"
    )


def _calling_function(call: Call) -> str:
    """The function of the project that makes a call. If only some ranks call it (each pipeline stage its own), it is
    ignored."""
    return str(value_of(call.result, PURPOSE)).partition("(")[0]


def _size_mismatch(together: Sequence[Call]) -> set[int] | None:
    """The indices of the first two ranks in an exchange of lists where one sends another size than the other expects.
    Empty if all sizes fit, None if they are unknown."""
    ranks = range(len(together))
    shapes = [{tensor.role: tensor.shape for tensor in call.tensors} for call in together]
    pairs = {
        (sender, receiver): (shapes[sender].get(f"{_SENT}[{receiver}]"), shapes[receiver].get(f"{_EXPECTED}[{sender}]"))
        for sender in ranks
        for receiver in ranks
    }
    # With more parts than ranks, other ranks take part than those that are compared.
    if any(None in pair for pair in pairs.values()) or any(f"{_SENT}[{len(together)}]" in shape for shape in shapes):
        return None
    return next(({*ends} for ends, (sent, expected) in pairs.items() if sent != expected), set())


# -- other calls -------------------------------------------------------------------------------------------------------


def _calls_by_level(windows: Sequence[Window], kind: str) -> dict[str, _Calls]:
    """For each API of this kind, at every level, its calls in each window; without collectives and messages."""
    calls_by_level: dict[str, list[list[Call]]] = {}
    for index, window in enumerate(windows):
        for call in window.calls:
            if call.kind == kind and ended(call) and call.name not in COLLECTIVES | _BETWEEN_TWO:
                for level in call.levels:
                    calls_by_level.setdefault(level, [[] for _ in windows])[index].append(call)
    return dict(calls_by_level)


def _call_counts(level: str, calls: _Calls, ranks: _Ranks, first: Window) -> Occasion:
    occasion = _occasion(level, (call for of_rank in calls for call in of_rank), first, _first_seq(calls, first))
    return _with_verdict(occasion, AS_OFTEN, ranks, list(map(len, calls)), f"how often {short(level)} is called")


def _compare_arguments(level: str, calls: _Calls, ways: Ways, ranks: _Ranks, first: Window) -> Iterator[Occasion]:
    partly_read = sampled(call for of_rank in calls for call in of_rank)
    for together in zip(*calls, strict=False):
        held, failed = compare(together, ways, partly_read)
        if held or failed:
            context = common(together, first.stage)
            if level.startswith(f"{COLLECTIVE}.all_to_all"):
                context = merged(
                    context, splits=any(value_of(call.args, name) for call in together for name in _SPLITS)
                )
            occasion = Occasion(Subject(level, RANKS), context, held, NONE, _first_seq([together], first))
            yield from _split_by_ranks(occasion, failed, ranks, together) if failed else (occasion,)


def _split_by_ranks(
    occasion: Occasion, failed: Iterable[Property], ranks: _Ranks, together: Sequence[Call]
) -> Iterator[Occasion]:
    """One occasion for each set of ranks that differ, with the properties that failed for them."""
    by_ranks: dict[DifferingRanks, tuple[str, set[Property]]] = {}
    for prop in sorted(failed):
        values = [(rank, value_in_call(call, prop.object)) for rank, call in zip(ranks, together, strict=True)]
        values = [(rank, value) for rank, value in values if value is not None]
        if prop.detail == DISTINCT:
            differing = ranks_that_share(values)
            note = f"{named_ranks(differing.ranks)} had the same {compared_phrase(prop)}"
        else:
            differing, note = (
                ranks_that_differ(values),
                f"{differing_ranks_text(values)} in the {compared_phrase(prop)}",
            )
        by_ranks.setdefault(differing, (note, set()))[1].add(prop)
    for differing, (note, props) in by_ranks.items():
        yield occasion._replace(failed=frozenset(props), note=note, differing=differing)
        occasion = occasion._replace(held=NONE)


def _compare_results(api: str, calls: _Calls, ranks: _Ranks, first: Window) -> Iterator[Occasion]:
    """Whether ranks get the same whole number from a function (a capacity, a count). Other results may be equal by
    chance."""
    for together in zip(*calls, strict=False):
        values = [value_of(call.result, "value") for call in together]
        if all(type(value) is int for value in values):
            occasion = _occasion(api, together, first, _first_seq([together], first))
            results = ", ".join(map(str, values[:MAX_NAMED]))
            yield _with_verdict(occasion, SAME_NUMBER, ranks, values, f"what it got: {results}")


def _first_seq(calls: _Calls, first: Window) -> int:
    """The first of the calls that is in the window of the first rank."""
    present = (call for of_rank in calls for call in of_rank if first.by_seq.get(call.seq) is call)
    return next((call.seq for call in present), NO_CALL)


def _occasion(api: str, calls: Iterable[Call], window: Window, seq: int) -> Occasion:
    """An occasion on which nothing is judged yet."""
    return Occasion(Subject(api, RANKS), common(calls, window.stage), NONE, NONE, seq)


def _with_verdict(
    occasion: Occasion, prop: Property, ranks: _Ranks, values: Sequence[Hashable], difference: str
) -> Occasion:
    """The occasion with `prop` held if the ranks have the same value, and failed otherwise. `difference` names what
    differs."""
    if len(set(values)) < 2:
        return _with_held(occasion, prop)
    by_rank = list(zip(ranks, values, strict=True))
    return _with_failed(occasion, prop, f"{differing_ranks_text(by_rank)} in {difference}", ranks_that_differ(by_rank))


def _with_held(occasion: Occasion, prop: Property) -> Occasion:
    return occasion._replace(held=frozenset((prop,)))


def _with_failed(occasion: Occasion, prop: Property, note: str, differing: DifferingRanks) -> Occasion:
    return occasion._replace(failed=frozenset((prop,)), note=note, differing=differing)
