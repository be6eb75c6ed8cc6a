"""Source `collectives`: records communication between ranks through `torch.distributed`."""

from __future__ import annotations

import functools
import importlib
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch.distributed

from traincheck.sources.base import replace, replace_everywhere, wrapping
from traincheck.sources.distributed.async_messages import AsyncMessages
from traincheck.sources.distributed.process_groups import destroy_without_gil
from traincheck.sources.distributed.replica_readings import KIND, USED_GRAD, HandAveraging
from traincheck.sources.recording.api_names import parameter_names
from traincheck.sources.recording.call_sites import CallSites, qualified_name
from traincheck.sources.recording.context_facts import MAX_TEXT_LENGTH, CallContext, call_context_facts, result_facts
from traincheck.sources.recording.frames import argument_names, local_values
from traincheck.sources.recording.patches import UndoStack
from traincheck.sources.recording.recorder import OpenCall, Recorder
from traincheck.sources.tensors.call_summaries import CallRequest, CallSummaries, StateBeforeCall, call_request
from traincheck.vocab.builtin_rules import GRADIENT, REDUCTION
from traincheck.vocab.collectives import GROUP, NUMBER, PEER, PURPOSE, ranks_as_text
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import LIFECYCLE
from traincheck.vocab.facts import Facts, merged

if TYPE_CHECKING:
    from traincheck.sources.distributed.gradient_reductions import GradientReductions

HOME = "torch.distributed"

RESULT_PARAMETERS: dict[str, str] = {
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
"""Functions, with the parameter that receives the result; empty where no tensor of the caller is written before
return."""

_SAME_ON_ALL = ("all_reduce", "all_reduce_coalesced", "broadcast")
"""Functions that fill a tensor of each rank with the same values."""

STARTERS = ("isend", "irecv", "batch_isend_irecv")
"""Functions that return before their operation ends."""

_OF_OBJECTS = frozenset(f"{HOME}.{name}" for name in RESULT_PARAMETERS if "object" in name)
"""Functions that exchange sizes and pickled bytes by other functions of this list. Objects may differ in any way."""

_SENDS, _RECEIVES, _BLOCKING = ("send", "isend"), ("recv", "irecv"), (f"{HOME}.send", f"{HOME}.recv")


_JOIN_ROUND_METHOD = "_get_num_nonjoined_procs"
"""The method of `Join` that a rank calls before each round in which it answers other ranks."""


class _OpenCollective(NamedTuple):
    """A call under way: its arguments before the call, and the tensors that receive the result.

    `peer_facts` say which ranks take part, `message` is the tensor sent or received asynchronously. An unwatched call
    has no `call`. `operation` is the argument `op`.
    """

    call: OpenCall | None
    before: StateBeforeCall | None
    written: Any
    peer_facts: Facts = ()
    message: Any = None
    operation: Any = None


class _Messaging(threading.local):
    """Whether a thread is inside a function that sends or receives."""

    active = False


class CollectiveSource:
    """Observes the functions of `torch.distributed` named in this file.

    Known limitations: TrainCheck misses reductions made in C++ (by `DistributedDataParallel` and others), and the
    result of asynchronous operations (`async_op=True`).
    """

    name = "collectives"

    def __init__(
        self, summaries: CallSummaries, call_context: CallContext, averaging: HandAveraging | None = None
    ) -> None:
        self._summaries = summaries
        self._averaging = averaging
        self._reductions: GradientReductions | None = None
        self._call_context = call_context
        self._messages_in_flight = AsyncMessages(call_context)
        self._messages: Counter[tuple[bool, int, object]] = Counter()
        self._join = threading.local()
        self._messaging = _Messaging()

    def offers(self) -> str | None:
        return None if torch.distributed.is_available() else "this build of torch has no torch.distributed"

    def attach(self, demand: Demand, recorder: Recorder) -> ExitStack:
        undo = UndoStack()
        # The compiler looks up collectives by identity, so its table has to hold the originals.
        importlib.import_module(f"{HOME}._functional_collectives")
        for name in RESULT_PARAMETERS:
            function = getattr(torch.distributed, name, None)
            if function is not None and demand.records_call((f"{HOME}.{name}",)):
                replace_everywhere(undo, HOME, name, self._wrap_collective(demand, recorder, name, function))
        # A rank that has run out of data answers the calls of other ranks when it leaves its `Join`.
        join = importlib.import_module(f"{HOME}.algorithms.join").Join
        replace(undo, join, "__exit__", functools.partial(self._wrap_join, recorder))
        if hasattr(join, _JOIN_ROUND_METHOD):
            replace(undo, join, _JOIN_ROUND_METHOD, self._count_rounds)
        self._messages_in_flight.attach(demand, recorder, undo)
        destroy_without_gil(self.name, recorder, undo)
        return undo

    def _wrap_join(self, recorder: Recorder, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap the exit of `Join`, in which a rank without data answers other ranks.

        The collectives and sharded optimizer steps made there belong to no training step of this rank.
        """
        join_state, hooks = self._join, recorder.hooks

        def joined() -> None:
            seq = recorder.next_seq()
            recorder.steps.join_ends(seq, join_state.rounds)
            if join_state.rounds:
                recorder.mark_unseen_training(seq)

        counts = recorder.guarded(self.name, joined, always=True)

        @functools.wraps(function)
        def wrapper(join: Any, *args: Any, **kwargs: Any) -> Any:
            join_state.inside, join_state.rounds = True, 0
            suspended = hooks.suspend(methods=False)  # `_count_rounds` stays in place
            try:
                result = function(join, *args, **kwargs)
            finally:
                hooks.resume(suspended)
                join_state.inside = False
            counts()
            return result

        return wrapper

    def _count_rounds(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap the function that counts ranks still training: any such rank means another step of theirs."""
        join_state = self._join

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            training = function(*args, **kwargs)
            if training > 0 and getattr(join_state, "inside", False):
                join_state.rounds += 1
            return training

        return wrapper

    def _wrap_collective(self, demand: Demand, recorder: Recorder, name: str, function: Callable[..., Any]) -> Any:
        summaries, call_context, in_flight = self._summaries, self._call_context, self._messages_in_flight
        levels, names = (f"{HOME}.{name}",), parameter_names(function)
        request: CallRequest | None = call_request(demand, levels, names)
        counted, messaging = name in (*_SENDS, *_RECEIVES), self._messaging
        is_followed = name in _SAME_ON_ALL and demand.takes_reading(KIND, USED_GRAD)
        averaging = self._averaging if is_followed else None
        reduces = "op" in names and demand.takes_reading(GRADIENT, REDUCTION)

        def begins(*args: Any, **kwargs: Any) -> _OpenCollective | None:
            if not recorder.watching:
                if messaging.active:
                    return None
                self._message_facts(name, names, args, kwargs)
                messaging.active = True
                return _OpenCollective(None, None, None)
            around = recorder.innermost_call()
            if around is not None and around.levels is levels:
                return None  # torch calls the modes of the program first, and they call the function again
            if around is not None and around.levels[0] in _OF_OBJECTS and not counted:
                return None
            call = recorder.enter(LIFECYCLE, levels, "", call_context_facts(call_context))
            nested = around is not None and around.levels[0] in _BLOCKING
            if not counted:
                peer_facts = (*_group(names, args, kwargs), (PURPOSE, _purpose(recorder.sites)))
            else:
                peer_facts = () if nested else self._message_facts(name, names, args, kwargs)
            written = _argument(RESULT_PARAMETERS[name], names, args, kwargs)
            operation = _argument("op", names, args, kwargs) if reduces else None
            if request is None:
                return _OpenCollective(call, None, written, peer_facts, operation=operation)
            is_async = name in STARTERS or _is_coalescing()
            before = summaries.record_arguments(call, request, args, kwargs, is_async=is_async)
            message = None
            if name in ("isend", "irecv") and not nested:
                message = _argument("tensor", names, args, kwargs)
            return _OpenCollective(call, before, written, peer_facts, message, operation)

        def ends(opened: _OpenCollective, result: Any) -> None:
            call, before, written, peer_facts, message, operation = opened
            if call is None:
                messaging.active = False
                return
            outcome = (
                result_facts(result)
                if request is None
                else summaries.record_result(call, request, before, result, written)
            )
            if message is not None:
                in_flight.follow(
                    result, call, message, sends=name == "isend", read=before is not None and before.request.contents
                )
            if averaging is not None and GROUP not in dict(peer_facts):
                averaging.collective_ends(written)
            if operation is not None:
                self._reduction_ends(recorder, operation, written, call)
            recorder.leave(call, merged(outcome, **dict(peer_facts)) if peer_facts else outcome)

        def failed(opened: _OpenCollective) -> None:
            messaging.active = False
            if opened.call is not None:
                recorder.abandon(opened.call)

        # Both ranks number their messages from the start of the run, so that the numbers match.
        guarded = partial(recorder.guarded, self.name, always=counted)
        return wrapping(guarded(begins), guarded(ends), guarded(failed))

    def _reduction_ends(self, recorder: Recorder, operation: Any, written: Any, call: OpenCall) -> None:
        if self._averaging is None:
            return
        if self._reductions is None:
            from traincheck.sources.distributed.gradient_reductions import GradientReductions  # seldom used

            self._reductions = GradientReductions(self.name, recorder, self._averaging.gradients)
        self._reductions.collective_ends(operation, written, call.seq, call.site)

    def _message_facts(
        self, name: str, names: tuple[str, ...], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Facts:
        """Return the other rank of a message and the number of the message."""
        peer = _peer("dst" if name in _SENDS else "src", names, args, kwargs)
        if peer is None:
            return ()
        key = (name in _SENDS, peer, _argument("tag", names, args, kwargs) or 0)
        self._messages[key] += 1
        return (NUMBER, self._messages[key]), (PEER, peer)


def _is_coalescing() -> bool:
    """Return whether torch collects collectives in a `_coalescing_manager`, at whose end they begin."""
    return bool(getattr(torch.distributed.distributed_c10d._world, "pg_coalesce_state", None))


def _argument(name: str, names: tuple[str, ...], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the argument passed for the parameter `name`, None without one."""
    index = names.index(name) if name in names else len(args)
    return args[index] if index < len(args) else kwargs.get(name)


def _group(names: tuple[str, ...], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Facts:
    """Return the ranks of the group as a fact, unless the group has all ranks."""
    group = _argument("group", names, args, kwargs)
    if group is None or group is torch.distributed.group.WORLD:
        return ()
    try:
        ranks = torch.distributed.get_process_group_ranks(group)
        return () if len(ranks) == torch.distributed.get_world_size() else ((GROUP, ranks_as_text(ranks)),)
    except (LookupError, ValueError, TypeError, RuntimeError):
        return ()  # this rank is not in the group: torch raises or ignores the call


def _peer(other: str, names: tuple[str, ...], args: Sequence[Any], kwargs: Mapping[str, Any]) -> int | None:
    """Return the global number of the other rank, None for any rank."""
    peer, group_rank, group = (_argument(name, names, args, kwargs) for name in (other, f"group_{other}", "group"))
    try:
        if peer is None and group_rank is not None:
            peer = torch.distributed.get_global_rank(group or torch.distributed.group.WORLD, group_rank)
    except (LookupError, ValueError, TypeError, RuntimeError):
        return None
    return peer if type(peer) is int else None


_CAN_READ_LOCALS = sys.version_info >= (3, 11)
"""Whether reading the arguments of a frame leaves them free to die, see Note [Borrowed locals]."""


def _purpose(sites: CallSites) -> str:
    """Return the user function that makes the call, with its word-like arguments: `norm_of(group=experts)`."""
    frame = sys._getframe(2)
    while frame is not None and not sites.file_of(frame.f_code):
        frame = frame.f_back  # type: ignore[assignment]
    if frame is None:
        return ""
    values = local_values(frame, argument_names(frame.f_code)) if _CAN_READ_LOCALS else {}
    words = [f"{name}={value}" for name, value in values.items() if type(value) is str and _is_word(value)]
    return f"{qualified_name(frame.f_code)}({', '.join(words)})"


def _is_word(text: str) -> bool:
    return len(text) <= MAX_TEXT_LENGTH and text.isidentifier()
