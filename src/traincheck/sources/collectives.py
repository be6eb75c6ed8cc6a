"""Source `collectives`: communication between ranks through `torch.distributed`."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch.distributed

from traincheck.sources.base import replace_everywhere, wrapping
from traincheck.sources.circumstances import Surroundings, circumstances_amid, result_facts
from traincheck.sources.names import parameter_names
from traincheck.sources.recorder import OpenCall, Recorder
from traincheck.sources.summaries import Asked, Before, Summaries, asked
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import LIFECYCLE

HOME = "torch.distributed"

WRITTEN: dict[str, str] = {
    "all_reduce": "tensor",
    "all_reduce_coalesced": "tensors",
    "reduce": "tensor",
    "broadcast": "tensor",
    "all_gather": "tensor_list",
    "all_gather_coalesced": "",
    "all_gather_into_tensor": "output_tensor",
    "all_gather_single": "output_tensor",
    "gather": "gather_list",
    "scatter": "tensor",
    "reduce_scatter": "output",
    "reduce_scatter_tensor": "output",
    "reduce_scatter_single": "output",
    "all_to_all": "output_tensor_list",
    "all_to_all_single": "output",
    "send": "",
    "recv": "tensor",
    "isend": "",
    "irecv": "",
    "batch_isend_irecv": "",
    "barrier": "",
    "monitored_barrier": "",
    "all_gather_object": "",
    "gather_object": "",
    "scatter_object_list": "",
    "broadcast_object_list": "",
    "send_object_list": "",
    "recv_object_list": "",
}
"""Functions, and the parameter into which each writes its result; empty for one that writes into no tensor of the
caller's before it returns."""

STARTERS = ("isend", "irecv", "batch_isend_irecv")
"""Functions that only start what they are called for."""


class _Open(NamedTuple):
    """A call under way: its arguments as they were, and those that its result is written into."""

    call: OpenCall
    before: Before | None
    written: Any


class CollectiveSource:
    """Observes the functions of `torch.distributed` named in this file.

    Known limitations: what `DistributedDataParallel` and others reduce from within C++ is not seen, nor is the result
    of an operation that was only started (`async_op=True`).
    """

    name = "collectives"

    def __init__(self, summaries: Summaries, surroundings: Surroundings) -> None:
        self._summaries = summaries
        self._surroundings = surroundings

    def offers(self) -> str | None:
        return None if torch.distributed.is_available() else "this build of torch has no torch.distributed"

    def attach(self, demand: Demand, recorder: Recorder) -> ExitStack:
        undo = ExitStack()
        # The compiler knows collectives by identity: the table in which it looks is to hold the originals.
        importlib.import_module(f"{HOME}._functional_collectives")
        for name in WRITTEN:
            function = getattr(torch.distributed, name, None)
            if function is not None and demand.wants_call((f"{HOME}.{name}",)):
                replace_everywhere(undo, HOME, name, self._watching(demand, recorder, name, function))
        return undo

    def _watching(self, demand: Demand, recorder: Recorder, name: str, function: Callable[..., Any]) -> Any:
        summaries, surroundings = self._summaries, self._surroundings
        levels, names = (f"{HOME}.{name}",), parameter_names(function)
        what: Asked | None = asked(demand, levels, names)

        def begins(*args: Any, **kwargs: Any) -> _Open | None:
            around = recorder.innermost()
            if around is not None and around.levels is levels:
                return None  # torch asks the modes of the program first, and they call the function once more
            call = recorder.enter(LIFECYCLE, levels, "", circumstances_amid(surroundings))
            if what is None:
                return _Open(call, None, None)
            before = summaries.begins(call, what, args, kwargs, later=name in STARTERS)
            return _Open(call, before, _argument(WRITTEN[name], names, args, kwargs))

        def ends(opened: _Open, result: Any) -> None:
            call, before, written = opened
            if what is None:
                recorder.leave(call, result_facts(result))
            else:
                recorder.leave(call, summaries.ends(call, what, before, result, written))

        guarded = recorder.guarded
        return wrapping(
            guarded(self.name, begins),
            guarded(self.name, ends),
            guarded(self.name, lambda opened: recorder.abandon(opened.call)),
        )


def _argument(name: str, names: tuple[str, ...], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What was passed for the parameter `name`, None when nothing was."""
    place = names.index(name) if name in names else len(args)
    return args[place] if place < len(args) else kwargs.get(name)
