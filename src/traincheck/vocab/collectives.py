"""Collectives: the calls of `torch.distributed` that the ranks of a group make together, and how groups are written."""

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
"""Arguments that collectives overwrite. A `tensor` holds the sent values on some rank."""

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
"""Collectives that give each rank a part of its own."""

SCATTER = f"{COLLECTIVE}.scatter"
"""The one of these whose `tensor` is overwritten on every rank."""


def fills(api: str, argument: str) -> bool:
    """Whether a collective overwrites this argument."""
    return argument in FILLED or (api == SCATTER and argument == "tensor")


SENDS = frozenset(f"{COLLECTIVE}.{name}" for name in ("send", "isend"))
RECEIVES = frozenset(f"{COLLECTIVE}.{name}" for name in ("recv", "irecv"))
"""The calls that send a message to another rank, and those that receive it."""

STARTERS = frozenset((f"{COLLECTIVE}.isend", f"{COLLECTIVE}.irecv"))
"""Those of them that only start the transfer."""

WAIT = f"{COLLECTIVE}.Work.wait"
"""The wait for a message whose transfer was started."""

STARTED, PEER, NUMBER = "started", "peer", "number"
"""Facts of the result of such calls: the `seq` of the call that started the message; the rank at the other end; and how
many messages with the same tag went there (or were requested) before."""

GROUP = "ranks"
"""Fact of the result of a collective: the ranks of its group, as `0-3` or `0+2`; missing if these are all."""

PURPOSE = "purpose"
"""Fact of the result of a collective: the function that makes it, with its arguments."""


def ranks_as_text(ranks: Iterable[int]) -> str:
    """Ranks in short form, with consecutive ones as a range."""
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
    """Whether the rank belongs to a group, see `GROUP`."""
    if not group:
        return True
    spans = (span.partition("-") for span in group.split("+"))
    return any(int(first) <= rank <= int(last or first) for first, _, last in spans)
