"""Source `collectives`: communication between ranks through `torch.distributed`."""

from __future__ import annotations

import functools
import importlib
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

import torch.distributed

from traincheck.sources.base import replace, replace_everywhere, wrapping
from traincheck.sources.distributed.async_messages import Requests
from traincheck.sources.distributed.process_groups import end_without_the_lock
from traincheck.sources.recording.api_names import parameter_names
from traincheck.sources.recording.call_sites import Sites, qualified_name
from traincheck.sources.recording.context_facts import LONGEST_TEXT, Surroundings, circumstances_amid, result_facts
from traincheck.sources.recording.frames import argument_names, local_values
from traincheck.sources.recording.patches import Undo
from traincheck.sources.recording.recorder import OpenCall, Recorder
from traincheck.sources.tensors.call_summaries import Asked, Before, Summaries, asked
from traincheck.vocab.collectives import GROUP, NUMBER, PEER, PURPOSE, ranks_as_text
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import LIFECYCLE
from traincheck.vocab.facts import Facts, merged

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

_SENDS, _RECEIVES, _BLOCKING = ("send", "isend"), ("recv", "irecv"), (f"{HOME}.send", f"{HOME}.recv")


_ASKS_WHO_TRAINS = "_get_num_nonjoined_procs"
"""The method of `Join` that a rank calls before each round in which it answers the others."""


class _Open(NamedTuple):
    """A call under way: its arguments as they were, and those that its result is written into. `told` says between
    which ranks it is, `message` is what a request sends or receives. One that is not watched has no `call`."""

    call: OpenCall | None
    before: Before | None
    written: Any
    told: Facts = ()
    message: Any = None


class _Messaging(threading.local):
    """Whether a thread is in a function that sends or receives."""

    now = False


class CollectiveSource:
    """Observes the functions of `torch.distributed` named in this file.

    Known limitations: what `DistributedDataParallel` and others reduce from within C++ is not seen, nor is the result
    of an operation that was only started (`async_op=True`).
    """

    name = "collectives"

    def __init__(self, summaries: Summaries, surroundings: Surroundings) -> None:
        self._summaries = summaries
        self._surroundings = surroundings
        self._requests = Requests(surroundings)
        self._messages: Counter[tuple[bool, int, object]] = Counter()
        self._mirrors = threading.local()
        self._messaging = _Messaging()

    def offers(self) -> str | None:
        return None if torch.distributed.is_available() else "this build of torch has no torch.distributed"

    def attach(self, demand: Demand, recorder: Recorder) -> ExitStack:
        undo = Undo()
        # The compiler knows collectives by identity: the table in which it looks is to hold the originals.
        importlib.import_module(f"{HOME}._functional_collectives")
        for name in WRITTEN:
            function = getattr(torch.distributed, name, None)
            if function is not None and demand.wants_call((f"{HOME}.{name}",)):
                replace_everywhere(undo, HOME, name, self._watching(demand, recorder, name, function))
        # A rank whose data has come to an end answers the calls of the others when it leaves its `Join`.
        join = importlib.import_module(f"{HOME}.algorithms.join").Join
        replace(undo, join, "__exit__", functools.partial(self._mirroring, recorder))
        if hasattr(join, _ASKS_WHO_TRAINS):
            replace(undo, join, _ASKS_WHO_TRAINS, self._counting_rounds)
        self._requests.attach(demand, recorder, undo)
        end_without_the_lock(self.name, recorder, undo)
        return undo

    def _mirroring(self, recorder: Recorder, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, in which a rank without data answers the others: its collectives, and the steps that it makes of
        an optimizer whose state is divided among the ranks, are no part of a training step of its own."""
        mirrors, hooks = self._mirrors, recorder.hooks

        def joined() -> None:
            seq = recorder.next_seq()
            recorder.steps.ranks_join(seq, mirrors.rounds)
            if mirrors.rounds:
                recorder.lose_sight(seq)

        counts = recorder.guarded(self.name, joined, always=True)

        @functools.wraps(function)
        def wrapper(join: Any, *args: Any, **kwargs: Any) -> Any:
            mirrors.here, mirrors.rounds = True, 0
            place = hooks.step_aside(methods=False)  # a method of ours counts the rounds
            try:
                result = function(join, *args, **kwargs)
            finally:
                hooks.come_back(place)
                mirrors.here = False
            counts()
            return result

        return wrapper

    def _counting_rounds(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, which asks before each round how many ranks still train: a step of theirs, if there are any."""
        mirrors = self._mirrors

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            training = function(*args, **kwargs)
            if training > 0 and getattr(mirrors, "here", False):
                mirrors.rounds += 1
            return training

        return wrapper

    def _watching(self, demand: Demand, recorder: Recorder, name: str, function: Callable[..., Any]) -> Any:
        summaries, surroundings, requests = self._summaries, self._surroundings, self._requests
        levels, names = (f"{HOME}.{name}",), parameter_names(function)
        what: Asked | None = asked(demand, levels, names)
        counted, messaging = name in (*_SENDS, *_RECEIVES), self._messaging

        def begins(*args: Any, **kwargs: Any) -> _Open | None:
            if not recorder.watching:
                if messaging.now:
                    return None
                self._between(name, names, args, kwargs)
                messaging.now = True
                return _Open(None, None, None)
            around = recorder.innermost()
            if around is not None and around.levels is levels:
                return None  # torch asks the modes of the program first, and they call the function once more
            call = recorder.enter(LIFECYCLE, levels, "", circumstances_amid(surroundings))
            nested = around is not None and around.levels[0] in _BLOCKING
            if not counted:
                told = (*_group(names, args, kwargs), (PURPOSE, _purpose(recorder.sites)))
            else:
                told = () if nested else self._between(name, names, args, kwargs)
            if what is None:
                return _Open(call, None, None, told)
            before = summaries.begins(call, what, args, kwargs, later=name in STARTERS)
            message = None
            if name in ("isend", "irecv") and not nested:
                message = _argument("tensor", names, args, kwargs)
            return _Open(call, before, _argument(WRITTEN[name], names, args, kwargs), told, message)

        def ends(opened: _Open, result: Any) -> None:
            call, before, written, told, message = opened
            if call is None:
                messaging.now = False
                return
            found = result_facts(result) if what is None else summaries.ends(call, what, before, result, written)
            if message is not None:
                requests.follow(
                    result, call, message, sends=name == "isend", read=before is not None and before.read.contents
                )
            recorder.leave(call, merged(found, **dict(told)) if told else found)

        def failed(opened: _Open) -> None:
            messaging.now = False
            if opened.call is not None:
                recorder.abandon(opened.call)

        # Both ends number their messages from the start of the run, so that they find each other.
        guarded = partial(recorder.guarded, self.name, always=counted)
        return wrapping(guarded(begins), guarded(ends), guarded(failed))

    def _between(self, name: str, names: tuple[str, ...], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Facts:
        """The other rank of a message, and the message's number."""
        peer = _peer("dst" if name in _SENDS else "src", names, args, kwargs)
        if peer is None:
            return ()
        key = (name in _SENDS, peer, _argument("tag", names, args, kwargs) or 0)
        self._messages[key] += 1
        return (NUMBER, self._messages[key]), (PEER, peer)


def _argument(name: str, names: tuple[str, ...], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What was passed for the parameter `name`, None when nothing was."""
    place = names.index(name) if name in names else len(args)
    return args[place] if place < len(args) else kwargs.get(name)


def _group(names: tuple[str, ...], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Facts:
    """The ranks of the group, where these are not all."""
    group = _argument("group", names, args, kwargs)
    if group is None or group is torch.distributed.group.WORLD:
        return ()
    try:
        ranks = torch.distributed.get_process_group_ranks(group)
        return () if len(ranks) == torch.distributed.get_world_size() else ((GROUP, ranks_as_text(ranks)),)
    except (LookupError, ValueError, TypeError, RuntimeError):
        return ()  # no group of which this rank is a member: the call will say so itself, or do nothing


def _peer(other: str, names: tuple[str, ...], args: Sequence[Any], kwargs: Mapping[str, Any]) -> int | None:
    """The number of the other rank among all ranks, None for any rank."""
    peer, place, group = (_argument(name, names, args, kwargs) for name in (other, f"group_{other}", "group"))
    try:
        if peer is None and place is not None:
            peer = torch.distributed.get_global_rank(group or torch.distributed.group.WORLD, place)
    except (LookupError, ValueError, TypeError, RuntimeError):
        return None
    return peer if type(peer) is int else None


_FRAMES_LET_GO = sys.version_info >= (3, 11)
"""Whether the arguments of a frame can be looked at without keeping them alive, see Note [Borrowed locals]."""


def _purpose(sites: Sites) -> str:
    """The function of the user's that makes the call, with the words among its arguments: `norm_of(group=experts)`."""
    frame = sys._getframe(2)
    while frame is not None and not sites.file_of(frame.f_code):
        frame = frame.f_back  # type: ignore[assignment]
    if frame is None:
        return ""
    values = local_values(frame, argument_names(frame.f_code)) if _FRAMES_LET_GO else {}
    words = [f"{name}={value}" for name, value in values.items() if type(value) is str and _is_word(value)]
    return f"{qualified_name(frame.f_code)}({', '.join(words)})"


def _is_word(text: str) -> bool:
    return len(text) <= LONGEST_TEXT and text.isidentifier()
