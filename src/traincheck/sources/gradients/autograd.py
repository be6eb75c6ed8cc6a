"""Source `autograd`: records `torch.autograd.backward`, `torch.autograd.grad`, and the gradients that they produce."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch

from traincheck.sources.base import replace, wrapping
from traincheck.sources.distributed.replica_readings import several_ranks
from traincheck.sources.gradients.gradients import Gradients, Snapshot
from traincheck.sources.gradients.graph_source import GraphSource
from traincheck.sources.gradients.idle_autocast import IdleAutocast
from traincheck.sources.optimizers.manual_updates import ManualUpdates, is_compared
from traincheck.sources.recording.api_names import parameter_names
from traincheck.sources.recording.context_facts import CallContext, context_facts_with
from traincheck.sources.recording.patches import UndoStack
from traincheck.sources.recording.recorder import OpenCall, Recorder
from traincheck.sources.tensors.call_summaries import CallRequest, CallSummaries, StateBeforeCall, call_request
from traincheck.sources.tensors.deferred_values import DeferredValue, is_on_host
from traincheck.sources.tensors.device_transfers import NextSeq
from traincheck.sources.tensors.reading import NONE, hidden_from_modes
from traincheck.sources.tensors.value_facts import readable_memory
from traincheck.vocab.builtin_rules import ATTENTION, AUTOCAST, HEADS, IDLE_REGION, LOSS, NOT_FINITE, SHARED_HEAD
from traincheck.vocab.demand import SCALE, Demand
from traincheck.vocab.events import LIFECYCLE, MODULE, Reading
from traincheck.vocab.facts import Facts, facts, merged, value_of

BACKWARD = ("torch.autograd.backward",)
GRAD = ("torch.autograd.grad",)
PARAMETER_GRAD = "parameter.grad"

IS_NUMBERED = hasattr(torch.autograd, "_get_sequence_nr")
"""Whether this release of torch numbers operations, see idle_autocast.py."""

_FIRST_BACKWARDS = 3
"""Backwards in whose graphs heads are looked at, see merged_heads.py and shared_heads.py: a program has these errors in
each."""

MAX_LOSSES = 100
"""Losses of a run that are reported as not finite."""

_ACCELERATE = "accelerate.accelerator"
_MAX_CHAIN = 4
"""Multiplications and divisions by a number at the end of a loss: one for the scale, others for averaging."""


class _OpenBackward(NamedTuple):
    """A backward under way, with the gradients and the arguments as they were before it."""

    call: OpenCall
    gradients: Snapshot | None
    request: CallRequest | None
    before: StateBeforeCall | None
    loss: Facts = ()


_UNRECORDED = _OpenBackward(OpenCall(-1, -1, "", (), "", "", (), ()), None, None, None)
"""Stands for a backward that is not recorded, but whose end has to be noticed."""


class AutogradSource:
    """Observes `torch.autograd.backward` (which `Tensor.backward` calls) and `torch.autograd.grad`."""

    name = "autograd"

    def __init__(
        self,
        gradients: Gradients,
        summaries: CallSummaries,
        call_context: CallContext,
        graphs: GraphSource,
        may_step: Callable[[], None] = lambda: None,
    ) -> None:
        self._graphs = graphs
        self._may_step = may_step
        self._gradients = gradients
        self._summaries = summaries
        self._call_context = call_context
        self._manual = ManualUpdates(gradients)
        self._thread = 0  # of the backward under way
        self._autocast: IdleAutocast | None = None
        self._heads_left = _FIRST_BACKWARDS
        self._shared_left = _FIRST_BACKWARDS

    def offers(self) -> str | None:
        return None

    def attach(self, demand: Demand, recorder: Recorder) -> ExitStack:
        self._recorder = recorder
        self._states = demand.observes_state(BACKWARD, PARAMETER_GRAD) or demand.observes_state(
            ("torch.optim.Optimizer.step",), PARAMETER_GRAD
        )
        self._states = self._states or demand.observes_state(("torch.optim.Optimizer.step",), "parameter.data")
        self._values = demand.reads_values(BACKWARD, SCALE)
        self._reports_heads = demand.takes_reading(ATTENTION, HEADS)
        self._note_heads = recorder.guarded(self.name, self._note_merged_heads)
        self._reports_shared = demand.takes_reading(MODULE, SHARED_HEAD)
        self._note_shared = recorder.guarded(self.name, self._note_shared_heads)
        self._losses_left = MAX_LOSSES if demand.takes_reading(LOSS, NOT_FINITE) else 0
        self._note_loss = recorder.guarded(self.name, self._note_infinite_loss)
        self._calls = self._states or demand.records_call(BACKWARD)
        self._requests: dict[tuple[str, ...], CallRequest | None] = {
            levels: call_request(demand, levels, parameter_names(function))
            for levels, function in ((BACKWARD, torch.autograd.backward), (GRAD, torch.autograd.grad))
        }
        undo = UndoStack()
        guarded = recorder.guarded
        self._manual.attach(undo, demand, recorder)
        if self._autocast is None and demand.takes_reading(AUTOCAST, IDLE_REGION) and IS_NUMBERED:
            self._autocast = IdleAutocast(recorder)
            recorder.add_listener(self._autocast)
        observed = wrapping(
            guarded(self.name, self._begins, always=True),
            self._before_update(guarded(self.name, self._ends, always=True)),
            guarded(self.name, self._failed),
        )
        replace(undo, torch.autograd, "backward", recorder.counted.unless_counting(observed))
        if demand.records_call(GRAD):
            replace(
                undo,
                torch.autograd,
                "grad",
                wrapping(
                    guarded(self.name, self._grad_begins),
                    guarded(self.name, self._ends),
                    guarded(self.name, self._failed),
                ),
            )
        return undo

    def _before_update(self, ends: Callable[[Any, Any], object]) -> Callable[[Any, Any], None]:
        """Wrap `ends` so that the work due before an update follows it. Without an optimizer, an update follows a
        backward."""
        steps, may_step = self._recorder.steps, self._may_step

        def ends_and_may_step(opened: Any, result: Any) -> None:
            ends(opened, result)
            if not steps.optimizers:
                may_step()

        return ends_and_may_step

    def _begins(self, *args: Any, **kwargs: Any) -> _OpenBackward | None:
        recorder = self._recorder
        if self._thread == threading.get_ident() and torch._C._current_graph_task_id() < 0:
            return None  # torch calls the modes of the program first, and they call the function again
        if recorder.transfers.late:
            recorder.finish_late_window()
        if recorder.watching:
            recorder.between_calls()
        recorder.steps.backward(recorder.next_seq())
        self._gradients.backward_begins()
        if not self._calls or not recorder.watching:
            return _UNRECORDED if is_compared(recorder.steps) else None
        snapshot = None
        if self._states:
            with hidden_from_modes():
                held = self._gradients.trainable()
                if self._gradients.are_all:  # else a gradient may arrive where none is read
                    snapshot = self._gradients.read(held, values=True, unreduced=True)
        half, self._gradients.float16_called = self._gradients.float16_called, False
        retain_graph, create_graph = _graph_flags(*args, **kwargs)
        context = context_facts_with(
            half=half,
            grads=NONE,
            retain_graph=retain_graph,
            create_graph=create_graph,
            within=self._call_context.within,
        )
        of_loss = self._facts_of_loss(*args, **kwargs) if self._values else ()
        if self._gradients.has_leaf_input:
            of_loss, self._gradients.has_leaf_input = merged(of_loss, leaf_input=True), False
        opened = self._enter(BACKWARD, context, snapshot, args, kwargs, of_loss)
        self._thread = threading.get_ident()
        loss = args[0] if args else kwargs.get("tensors")
        self._graphs.describe(loss, opened.call.seq)
        if self._gradients.on_loss is not None:
            self._gradients.on_loss(loss)
        if self._gradients.counts()[0] == 1 and several_ranks():
            from traincheck.sources.distributed.early_replicas import loss_of_rank  # seldom used

            with hidden_from_modes():
                self._gradients.first_loss = loss_of_rank(loss)
        if self._losses_left:
            self._note_loss(loss, opened.call)
        if self._autocast is not None and self._autocast.has_regions:
            self._autocast.backward_begins(loss, opened.call.seq)
        if self._reports_heads and self._heads_left:
            self._heads_left -= 1
            self._note_heads(loss, opened.call.seq)
        if self._reports_shared and self._shared_left:
            self._shared_left -= 1
            self._note_shared(loss, opened.call.seq)
        return opened

    def _note_infinite_loss(self, loss: Any, call: OpenCall) -> None:
        """Report the first losses that are NaN or infinite. A scaled loss in float16 may overflow: its update is left
        out."""
        if not isinstance(loss, torch.Tensor) or loss.dtype is torch.float16:
            return
        with hidden_from_modes():
            memory = readable_memory(loss)
            if memory is None or memory.numel() != 1 or not memory.is_floating_point():
                return
            value = float(memory) if is_on_host(memory) else DeferredValue((memory.detach(),), float)

        def conclude(fetched: list[float], next_seq: NextSeq) -> None:
            if not math.isfinite(fetched[0]):
                self._losses_left = max(0, self._losses_left - 1)
                self._recorder.record_reading(Reading(next_seq(), call.seq, LOSS, LOSS, NOT_FINITE, str(fetched[0])))

        self._recorder.transfers.when_ready(self.name, [value], conclude, call=call, events=1)

    def _note_merged_heads(self, loss: Any, call: int) -> None:
        """Report attention that merges its heads across positions."""
        from traincheck.sources.gradients.merged_heads import merged_heads  # not before a backward

        for before, after, parameters in merged_heads(loss):
            self._heads_left = 0
            name, value = self._gradients.name_of(parameters), f"{list(before)} becomes {list(after)}"
            self._recorder.record_reading(Reading(self._recorder.next_seq(), call, name, ATTENTION, HEADS, value))

    def _note_shared_heads(self, loss: Any, call: int) -> None:
        """Report two networks that are one."""
        from traincheck.sources.gradients.shared_heads import SharedHead, shared_heads  # not before a backward

        with hidden_from_modes():
            shared = shared_heads(loss, self._gradients.modules())
        for sharing in shared:
            self._shared_left = 0
            if isinstance(sharing, SharedHead):
                name = f"{self._gradients.name_of_module(sharing.parent)}.{sharing.second}"
                value = f"it is the module {sharing.first}: both compute the same, and each result has a loss"
            else:
                name = self._gradients.name_of(sharing.parameters)
                value = f"it computes two equal results from one input, of which the program takes the {sharing.kind}"
            seq = self._recorder.next_seq()
            self._recorder.record_reading(Reading(seq, call, name, MODULE, SHARED_HEAD, value))

    def _facts_of_loss(self, *args: Any, **kwargs: Any) -> Facts:
        of_loss = _scaling_facts(*args, **kwargs)
        divisor = value_of(of_loss, "divided_by") if _ACCELERATE in sys.modules else None
        if not divisor:
            return of_loss
        from traincheck.sources.gradients.requested_accumulation import accumulation_before_update  # seldom used

        number, state = accumulation_before_update()
        return merged(of_loss, accumulation=state) if number == divisor else of_loss

    def _grad_begins(self, *args: Any, **kwargs: Any) -> _OpenBackward:
        create_graph = bool(kwargs.get("create_graph"))
        self._gradients.differentiates |= create_graph
        context = context_facts_with(create_graph=create_graph, within=self._call_context.within)
        return self._enter(GRAD, context, None, args, kwargs)

    def _enter(
        self,
        levels: tuple[str, ...],
        context: Facts,
        snapshot: Snapshot | None,
        args: Any,
        kwargs: Any,
        loss: Facts = (),
    ) -> _OpenBackward:
        call = self._recorder.enter(LIFECYCLE, levels, "", context)
        if snapshot is not None:
            self._gradients.record_states(call, snapshot)
        request = self._requests[levels]
        before = self._summaries.record_arguments(call, request, args, kwargs) if request is not None else None
        return _OpenBackward(call, snapshot, request, before, loss)

    def _ends(self, opened: _OpenBackward, result: Any) -> None:
        call, snapshot, request, before, loss = opened
        self._thread = 0
        followed = is_compared(self._recorder.steps)
        if call.seq < 0 or not self._recorder.watching:
            if followed:
                self._manual.backward_ends("")
            return
        if snapshot is not None:
            with hidden_from_modes():
                self._gradients.compare(snapshot, call.seq, backward=True)
        if request is None:
            self._recorder.leave(call, loss)
        else:
            self._recorder.leave(
                call, merged(self._summaries.record_result(call, request, before, result), **dict(loss))
            )
        if followed and call.levels is BACKWARD:
            self._manual.backward_ends(call.site)

    def _failed(self, opened: _OpenBackward) -> None:
        self._thread = 0
        if opened.call.seq >= 0:
            self._recorder.abandon(opened.call)


def _graph_flags(
    tensors: Any = None,
    grad_tensors: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    *args: Any,
    **kwargs: Any,
) -> tuple[bool, bool]:
    """Return retain_graph and create_graph as passed to `torch.autograd.backward`."""
    return bool(retain_graph), bool(create_graph)


def _scaling_facts(tensors: Any = None, *args: Any, **kwargs: Any) -> Facts:
    """Return what the last operations of a loss say, which multiply it and divide it by numbers.

    `scaled` says whether the loss was scaled up: one of them multiplies it by two or more. `divided_by` is the whole
    number of the last division, and `divided_twice` one by which two of them divide it. This reads only the graph that
    torch keeps.
    """
    loss = tensors[0] if isinstance(tensors, (list, tuple)) and tensors else tensors
    node = loss.grad_fn if isinstance(loss, torch.Tensor) else None
    largest = 0.0
    divisors: list[float] = []
    for _ in range(_MAX_CHAIN):
        if node is None or node.name() not in ("MulBackward0", "DivBackward0"):
            break
        if node.name() == "MulBackward0":
            largest = max(largest, *(_number(node, f"_saved_{side}", unread=2.0) for side in ("self", "other")))
        else:
            divisors.append(_number(node, "_saved_other", unread=0.0))
        node = next((before for before, _ in node.next_functions if before is not None), None)
    of_loss = facts(scaled=largest >= 2)
    if not divisors:
        return of_loss
    whole = [int(number) for number in divisors if number >= 2 and number.is_integer()]
    if whole and whole[-1] == divisors[-1] and _is_sum_of(node, whole[-1]):
        del whole[-1]  # a mean, written as a sum and a division
    if not whole:
        return of_loss
    twice = max((number for number in whole if whole.count(number) > 1), default=0)
    return merged(of_loss, divided_by=whole[0], **({"divided_twice": twice} if twice else {}))


def _is_sum_of(node: Any, count: int) -> bool:
    """Whether an operation ends a sum of so many terms, or sums a tensor that has as many rows or elements."""
    name = "" if node is None else node.name()
    if name.startswith("SumBackward"):
        try:
            sizes = tuple(node._saved_self_sym_sizes)
        except (AttributeError, RuntimeError):
            return False  # of another release of torch, or of a tensor without plain sizes
        return count in (*sizes, math.prod(sizes))
    terms = 1
    while node is not None and node.name() == "AddBackward0" and terms <= count:
        operands = [operand for operand, _ in node.next_functions if operand is not None]
        terms += len(operands) - 1  # `sum` begins with the number 0
        node = operands[0]
    return terms == count


def _number(node: Any, name: str, unread: float) -> float:
    """Return the constant factor that a node saved; 0 where it is not a plain number.

    `unread` stands for a number on an accelerator, because reading it would block. A factor there is mostly the scale
    of a scaler; a divisor there is no number of the program, which torch keeps on the CPU.
    """
    try:
        saved = getattr(node, name, None)
    except RuntimeError:
        return 0.0  # freed by an earlier backward
    if not isinstance(saved, torch.Tensor) or saved.numel() != 1 or saved.requires_grad or saved.grad_fn is not None:
        return float(saved) if isinstance(saved, (int, float)) else 0.0
    if saved.device.type != "cpu":
        return unread
    with hidden_from_modes():
        return abs(float(saved))
