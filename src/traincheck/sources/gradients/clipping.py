"""Source `clipping`: records torch's gradient clipping functions, with the norm before and after.

Note [The norm after clipping]
torch returns the norm before clipping and scales all gradients by a factor derived from it. Computing the norm of large
gradients again takes as long as the clipping itself. TrainCheck therefore computes it only in the steps in which a full
collection reads values (call_summaries.py). In other steps it compares samples of all large gradients with the factor,
and computes the norm only where they disagree.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from types import GeneratorType
from typing import Any, NamedTuple

import torch

from traincheck.sources.base import replace, replace_everywhere, wrapping
from traincheck.sources.compile.compiled_calls import WhenImported, ignore_imports
from traincheck.sources.distributed.replica_readings import several_ranks
from traincheck.sources.gradients.custom_clipping import HOME, MEGATRON, MEGATRON_FUNCTION, ZERO, CustomClipping
from traincheck.sources.gradients.gradients import Gradients, Snapshot
from traincheck.sources.recording.context_facts import context_facts, with_fact
from traincheck.sources.recording.patches import UndoStack
from traincheck.sources.recording.recorder import OpenCall, Recorder
from traincheck.sources.tensors.call_summaries import in_schedule
from traincheck.sources.tensors.deferred_values import DeferredValue, is_on_host
from traincheck.sources.tensors.device_transfers import NextSeq
from traincheck.sources.tensors.reading import hidden_from_modes, local_tensor
from traincheck.sources.tensors.spot_checks import is_large, sample
from traincheck.sources.tensors.value_facts import gradient_norms, total_norm
from traincheck.vocab.builtin_rules import CLIPPING, SHARDS
from traincheck.vocab.demand import NUMBERS, Demand
from traincheck.vocab.events import LIFECYCLE
from traincheck.vocab.facts import Facts, FactValue, facts

FUNCTIONS = {"clip_grad_norm_": "max_norm", "clip_grad_value_": "clip_value"}
"""The functions, each with the name of its limit argument."""


class _OpenClipping(NamedTuple):
    """A clipping call under way. `norm_type` is the norm that the limit bounds."""

    call: OpenCall
    snapshot: Snapshot | None
    limit: Any
    norm_type: float


class ClippingSource:
    """Observes gradient clipping. The norms cover the gradients passed to the call, not every gradient of the
    program."""

    name = "clipping"

    def __init__(self, gradients: Gradients, when_imported: WhenImported = ignore_imports) -> None:
        self._gradients = gradients
        self._when_imported = when_imported

    def offers(self) -> str | None:
        return None

    def attach(self, demand: Demand, recorder: Recorder) -> ExitStack:
        self._recorder = recorder
        undo = UndoStack()
        if demand.takes_reading(CLIPPING, SHARDS):
            self._measure_shards(undo)
        for name, limit in FUNCTIONS.items():
            api = (f"{HOME}.{name}",)
            if demand.records_call(api):
                states, values = demand.observes_state(api, "parameter.grad"), demand.reads_values(api, NUMBERS)
                replace_everywhere(undo, HOME, name, self._wrapped(api, limit, states=states, values=values))
        if demand.reads_values((f"{HOME}.clip_grad_norm_",), NUMBERS):
            for module, optimizer in ZERO.items():
                imported = functools.partial(self._observe_zero, undo, module, optimizer)
                undo.callback(
                    self._when_imported(module, self._recorder.guarded(self.name, imported, always=True), None)
                )
        return undo

    def _observe_zero(self, undo: UndoStack, module: str, optimizer: str) -> None:
        """Record clipping of an optimizer of DeepSpeed like clipping of a program, see custom_clipping.py."""
        clipping, recorder = CustomClipping(self._gradients), self._recorder

        def begins(me: Any, part: Any, *args: Any, **kwargs: Any) -> Any:
            if not recorder.watching:
                return None
            gradients = me.fp32_partitioned_groups_flat[part] if isinstance(part, int) else part
            return clipping.begins(me.clip_grad, {"gradients": gradients})

        ends = recorder.guarded(self.name, lambda opened, result: clipping.ends(opened, result, recorder))
        observed = wrapping(recorder.guarded(self.name, begins), ends, lambda opened: None)
        replace(undo, getattr(sys.modules[module], optimizer), "unscale_and_clip_grads", observed)

    def _measure_shards(self, undo: UndoStack) -> None:
        """Measure how ranks clip gradients that are divided over them, see shard_norms.py."""
        replace_everywhere(undo, HOME, "clip_grad_norm_", self._measured(exact=True, norm_type=2))
        replace_everywhere(undo, HOME, "clip_grads_with_norm_", self._measured(exact=False))

        def imported() -> None:
            replace(undo, sys.modules[MEGATRON], MEGATRON_FUNCTION, self._measured(exact=False))

        undo.callback(self._when_imported(MEGATRON, self._recorder.guarded(self.name, imported, always=True), None))

    def _measured(self, *, exact: bool, norm_type: int | None = None) -> Callable[[Any], Any]:
        """Decorate a function (parameters, limit, ...). `exact`: it computes the norm of these parameters, and of no
        others. `norm_type` is the position of that argument."""

        def begins(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if not (self._recorder.watching and several_ranks() and in_schedule(self._recorder.steps.window_step)):
                return None
            from traincheck.sources.gradients import shard_norms  # not in a job of one process

            return shard_norms.begin(args, kwargs, exact=exact, norm_type=norm_type)

        begin = self._recorder.guarded(self.name, begins)
        end = self._recorder.guarded(self.name, lambda opened: opened.end(self._recorder))

        def decorate(function: Any) -> Any:
            @functools.wraps(function)
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                opened = begin(args, kwargs)
                result = function(*args, **kwargs)
                if opened is not None:
                    end(opened)
                return result

            return wrapper

        return decorate

    def _wrapped(self, api: tuple[str], limit: str, *, states: bool, values: bool) -> Callable[[Any], Any]:
        guarded = self._recorder.guarded
        begins = guarded(self.name, functools.partial(self._begins, api, limit, states))
        ends, failed = guarded(self.name, self._ends), guarded(self.name, self._failed)
        collecting = guarded(self.name, _collecting)

        def decorate(function: Any) -> Any:
            @functools.wraps(function)
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                opened = begins(args, kwargs)
                if opened is None:
                    return function(*args, **kwargs)
                parameters: list[Any] = []
                if values:
                    args, kwargs = collecting(args, kwargs, parameters) or (args, kwargs)
                try:
                    result = function(*args, **kwargs)
                except BaseException:
                    failed(opened)
                    raise
                ends(opened, result, parameters if values else None)
                return result

            return wrapper

        return decorate

    def _begins(
        self, api: tuple[str], limit: str, states: bool, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> _OpenClipping:
        snapshot = None
        if states:
            with hidden_from_modes():
                scaled = limit == "max_norm"
                snapshot = self._gradients.read(self._gradients.trainable(), values=True, scaled=scaled)
        self._gradients.clip_begins()
        most = kwargs.get(limit, args[1] if len(args) > 1 else None)
        norm_type = math.inf
        arguments: dict[str, FactValue] = {key: value for key, value in kwargs.items() if isinstance(value, bool)}
        if limit == "max_norm":
            norm_type = float(kwargs.get("norm_type", args[2] if len(args) > 2 else 2.0))
            arguments["norm_type"] = norm_type
        if isinstance(most, (int, float)):
            arguments[limit] = float(most)
        call = self._recorder.enter(LIFECYCLE, api, "", context_facts(), facts(**arguments))
        return _OpenClipping(call, snapshot, most, norm_type)

    def _ends(self, opened: _OpenClipping, result: Any, parameters: list[Any] | None) -> None:
        call, limit, norm_type = opened.call, opened.limit, opened.norm_type
        states, values = opened.snapshot is not None, parameters is not None
        with hidden_from_modes():
            measured = {} if opened.snapshot is None else self._gradients.compare(opened.snapshot, call.seq)
            norm = _norm_of(result)
            after = [] if parameters is None else self._norms_after(opened, norm, parameters, measured)

            def conclude(resolved: list[Any], _: NextSeq) -> None:
                before = resolved[0]
                if states and isinstance(limit, (int, float)) and before is not None:
                    call.context = with_fact(call.context, "exceeds", before > limit)
                if values:
                    call.result = _norm_facts(before, total_norm(resolved[1:], norm_type))

            self._recorder.transfers.when_ready(self.name, [norm, *after], conclude, call=call)
        self._recorder.leave(call, call.result)
        if self._gradients.on_clipped is not None:
            self._gradients.on_clipped()

    def _norms_after(
        self, opened: _OpenClipping, norm: Any, parameters: list[Any], measured: dict[int, DeferredValue]
    ) -> list[Any]:
        """Return the norm of each gradient after clipping, or one total norm. Each may be pending. `measured` are
        2-norms by the identity of the gradient."""
        scheduled = in_schedule(self._recorder.steps.window_step)
        factor = None if scheduled or type(norm) is DeferredValue else _factor(opened.limit, norm)
        if factor is not None and _is_shown(factor, opened.snapshot, parameters):
            return [factor * norm]
        after = [param.grad for param in parameters if param.grad is not None]
        if any(hasattr(gradient, "_local_tensor") for gradient in after):
            return [None]
        norms = [measured[id(gradient)] for gradient in after if id(gradient) in measured and opened.norm_type == 2]
        unmeasured = [gradient for gradient in after if id(gradient) not in measured or opened.norm_type != 2]
        return [*norms, *gradient_norms(unmeasured, opened.norm_type)]

    def _failed(self, opened: _OpenClipping) -> None:
        self._recorder.abandon(opened.call)


def _collecting(
    args: tuple[Any, ...], kwargs: dict[str, Any], collected: list[Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a clipping call, changed so that `collected` receives each parameter it reads.

    A generator of parameters can be read only once, so the clipping function itself does the reading.
    """
    parameters = args[0] if args else kwargs.get("parameters")
    if isinstance(parameters, torch.Tensor):
        collected.append(parameters)
        return args, kwargs
    if isinstance(parameters, (list, tuple)):
        collected.extend(parameters)
        return args, kwargs
    if not isinstance(parameters, Iterable):
        return args, kwargs

    def noted(parameter: Any) -> Any:
        collected.append(parameter)
        return parameter

    def generator() -> Iterator[Any]:
        yield from map(noted, parameters)

    observed: Any = generator() if isinstance(parameters, GeneratorType) else map(noted, parameters)
    return ((observed, *args[1:]), kwargs) if args else (args, {**kwargs, "parameters": observed})


def _factor(limit: Any, norm: float | None) -> float | None:
    """Return the factor by which torch scales gradients of this norm; None where the norm is not finite or unknown."""
    if norm is None or not math.isfinite(norm) or not isinstance(limit, (int, float)):
        return None
    return min(1.0, limit / (norm + 1e-6))


def _is_shown(factor: float, before: Snapshot | None, parameters: list[Any]) -> bool:
    """Return whether samples show that the call scaled all large gradients by this factor; False if none is large.

    Call under `hidden_from_modes`.
    """
    if before is None:
        return False
    probes = {id(tensor): before.probes.get(index) for index, (_, tensor) in enumerate(before.held)}
    pairs_by_type: dict[tuple[torch.dtype, torch.device], list[tuple[torch.Tensor, torch.Tensor]]] = {}
    for param in parameters:
        if param.grad is None or not is_large(param.grad):
            continue
        old, new = probes.get(id(param)), sample(param.grad)
        if not isinstance(old, torch.Tensor) or new is None or old.shape != new.shape:
            return False
        pairs_by_type.setdefault((new.dtype, new.device), []).append((old, new))
    return bool(pairs_by_type) and all(_are_scaled(group, factor) for group in pairs_by_type.values())


def _are_scaled(pairs: list[tuple[torch.Tensor, torch.Tensor]], factor: float) -> bool:
    old, new = (torch.cat(values) for values in zip(*pairs, strict=True))
    rounding = 4 * torch.finfo(new.dtype).eps
    return bool(torch.allclose(old * factor, new, rtol=rounding, atol=torch.finfo(new.dtype).tiny))


def _norm_facts(before: float | None, after: float | None) -> Facts:
    """Return the norm before clipping (as returned by the call) and after it, as facts."""
    norms: dict[str, FactValue] = {}
    if before is not None:
        norms["finite"] = math.isfinite(before)
        if norms["finite"]:
            norms["norm_before"] = before
    if after is not None:
        norms.setdefault("finite", math.isfinite(after))
        if math.isfinite(after):
            norms["norm_after"] = after
    return facts(**norms)


def _norm_of(result: Any) -> Any:
    """Return the norm that the call returned, which may be pending; None for shards, whose norm needs a collective."""
    if type(result) is not torch.Tensor or local_tensor(result) is None or result.numel() != 1:
        return None
    return float(result) if is_on_host(result) else DeferredValue((result.detach().clone(),), float)
