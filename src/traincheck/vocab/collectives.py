"""Collectives: the calls of `torch.distributed` that the ranks of a group make together, and how groups are told."""

from __future__ import annotations

from collections.abc import Iterable

from traincheck.vocab.events import Call
from traincheck.vocab.facts import value_of

COLLECTIVE = "torch.distributed"
_NAMES = (
    "all_gather all_gather_coalesced all_gather_into_tensor all_gather_object all_gather_single all_reduce "
    "all_reduce_coalesced all_to_all all_to_all_single barrier broadcast broadcast_object_list gather gather_object "
    "monitored_barrier reduce reduce_scatter reduce_scatter_single reduce_scatter_tensor scatter scatter_object_list"
)
COLLECTIVES = frozenset(f"{COLLECTIVE}.{name}" for name in _NAMES.split())
"""The calls that all ranks of a group make together, and in the same order."""

FILLED = frozenset(("gather_list", "output", "output_tensor", "output_tensor_list", "tensor_list"))
"""Arguments of theirs that are filled whatever was in them before; a `tensor` holds on some rank what is sent."""

DEALS = frozenset(
    f"{COLLECTIVE}.{name}"
    for name in (
        "all_to_all",
        "all_to_all_single",
        "reduce_scatter",
        "reduce_scatter_single",
        "reduce_scatter_tensor",
        "scatter",
        "scatter_object_list",
    )
)
"""Those that give each rank a part of its own."""

SCATTER = f"{COLLECTIVE}.scatter"
"""Of these, the one whose `tensor` is filled on every rank."""


def fills(api: str, argument: str) -> bool:
    """Whether a collective fills this argument, whatever was in it before."""
    return argument in FILLED or (api == SCATTER and argument == "tensor")


SENDS = frozenset(f"{COLLECTIVE}.{name}" for name in ("send", "isend"))
RECEIVES = frozenset(f"{COLLECTIVE}.{name}" for name in ("recv", "irecv"))
"""The calls by which one rank sends a message to another one, and by which that receives it."""

STARTERS = frozenset((f"{COLLECTIVE}.isend", f"{COLLECTIVE}.irecv"))
"""Those of them that only start it."""

WAIT = f"{COLLECTIVE}.Work.wait"
"""The wait for a message whose sending or receiving was only started."""

STARTED, PEER, NUMBER = "started", "peer", "number"
"""Facts of the result of such calls: in which call a message was started that is waited for (its `seq`); the rank to
which a message goes, or from which it comes; how many went to it before (or were asked for), with the same tag."""

GROUP = "ranks"
"""Fact of the result of a collective: the ranks of its group, as `0-3` or `0+2`; not told where these are all."""

PURPOSE = "purpose"
"""Fact of the result of a collective: the function that makes it, with the words that it was given."""


def ranks_as_text(ranks: Iterable[int]) -> str:
    """Ranks in few words: those that follow one another as a range."""
    spans: list[list[int]] = []
    for rank in sorted(ranks):
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    return "+".join(f"{first}-{last}" if last > first else str(first) for first, last in spans)


def group_of(call: Call) -> str:
    """The ranks of the group that made a collective call, empty for all."""
    group = value_of(call.result, GROUP)
    return group if isinstance(group, str) else ""


def is_member(rank: int, group: str) -> bool:
    """Whether the rank is one of a group, see `GROUP`."""
    if not group:
        return True
    spans = (span.partition("-") for span in group.split("+"))
    return any(int(first) <= rank <= int(last or first) for first, _, last in spans)
