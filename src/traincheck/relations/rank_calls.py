"""Rank calls: what several ranks call in the same step, how often, in which order and with what.

Calls of one API are put side by side by their number within the step, never by clocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from traincheck.relations.base import ended
from traincheck.relations.comparison import AT_ONCE, common, compare
from traincheck.vocab.demand import TENSORS, Demand
from traincheck.vocab.events import LIFECYCLE, NO_CALL, PROJECT, Call, Window
from traincheck.vocab.occasion import Occasion, Property, Subject

RANKS = "ranks"
CALLS = "calls on ranks"
AS_OFTEN = Property(CALLS, "as often")
IN_ORDER = Property(CALLS, "in the same order")
SENT = Property(CALLS, "sizes sent are those expected")

COLLECTIVE = "torch.distributed"
_NAMES = (
    "all_gather all_gather_into_tensor all_gather_object all_reduce all_to_all all_to_all_single barrier broadcast "
    "broadcast_object_list gather gather_object monitored_barrier reduce reduce_scatter reduce_scatter_tensor scatter "
    "scatter_object_list"
)
COLLECTIVES = frozenset(f"{COLLECTIVE}.{name}" for name in _NAMES.split())
"""The calls that all ranks of a group make together, and in the same order."""

_SENT, _EXPECTED = "input_tensor_list", "output_tensor_list"
"""What `all_to_all` calls the parts that go to each rank and those that come from each."""

_Calls = Sequence[Sequence[Call]]
"""Calls of one API in each of the windows."""


class Ranks:
    """Compares the windows of several ranks at the same step; it keeps nothing from step to step.

    Known limitations: ranks of different groups are not told apart, except by what differs in their circumstances.
    """

    def across(self, windows: Sequence[Window]) -> Iterator[Occasion]:
        """The occasions; `seq` is of the first window."""
        for level, calls in _side_by_side(windows).items():
            present = [call for of_rank in calls for call in of_rank]
            first = calls[0][0].seq if calls[0] else NO_CALL
            often = len({len(of_rank) for of_rank in calls}) == 1
            yield _occasion(level, present, windows[0], first, [(AS_OFTEN, often)])
            for together in zip(*calls, strict=False):
                held, failed = compare(together, AT_ONCE)
                if held or failed:
                    context = common(together, windows[0].stage)
                    yield Occasion(Subject(level, RANKS), context, held, failed, together[0].seq)
                sent = _sent_as_expected(together)
                if sent is not None:
                    yield _occasion(level, together, windows[0], together[0].seq, [(SENT, sent)])
        orders = [[call for call in window.calls if call.name in COLLECTIVES and ended(call)] for window in windows]
        issued = [call for order in orders for call in order]
        if issued:
            first = orders[0][0].seq if orders[0] else NO_CALL
            alike = len({tuple(call.name for call in order) for order in orders}) == 1
            yield _occasion(COLLECTIVE, issued, windows[0], first, [(IN_ORDER, alike)])

    @staticmethod
    def needs(subject: Subject, prop: Property) -> Demand:
        if prop == IN_ORDER:
            return Demand(COLLECTIVES)
        states = ((subject.api, TENSORS),) if prop == SENT else ()
        return Demand(frozenset((subject.api,)), frozenset(states))

    @staticmethod
    def describe(api: str, prop: Property) -> str:
        if prop == IN_ORDER:
            return f"every rank issues the collectives of {COLLECTIVE} in the same order"
        if prop == SENT:
            return f"with {api}, each rank sends as much as the other expects"
        return f"in a step, {api} is called as often on every rank"


def _side_by_side(windows: Sequence[Window]) -> dict[str, _Calls]:
    """For each API that drives training, at every level, and each function of the user's: its calls in each window."""
    found: dict[str, list[list[Call]]] = {}
    for place, window in enumerate(windows):
        for call in window.calls:
            if call.kind in (LIFECYCLE, PROJECT) and ended(call):
                for level in call.levels:
                    found.setdefault(level, [[] for _ in windows])[place].append(call)
    return dict(found)


def _sent_as_expected(together: Sequence[Call]) -> bool | None:
    """Whether in an exchange of lists what each rank sends to each other has the size that the other expects."""
    ranks = range(len(together))
    shapes = [{tensor.role: tensor.shape for tensor in call.tensors} for call in together]
    pairs = [
        (shapes[one].get(f"{_SENT}[{other}]"), shapes[other].get(f"{_EXPECTED}[{one}]"))
        for one in ranks
        for other in ranks
    ]
    # With more parts than ranks, other ranks take part than those that are compared.
    if any(None in pair for pair in pairs) or any(f"{_SENT}[{len(together)}]" in shape for shape in shapes):
        return None
    return all(sent == expected for sent, expected in pairs)


def _occasion(
    api: str, calls: Sequence[Call], window: Window, seq: int, judged: Sequence[tuple[Property, bool]]
) -> Occasion:
    held = frozenset(prop for prop, so in judged if so)
    failed = frozenset(prop for prop, so in judged if not so)
    return Occasion(Subject(api, RANKS), common(calls, window.stage), held, failed, seq)
