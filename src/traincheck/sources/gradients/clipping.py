"""Source `clipping`: torch's functions that clip gradients, with the norm before and after.

Note [The norm after clipping]
torch returns the norm before, and scales all gradients by a factor that follows from it. To add up large gradients once
more takes as long as the function itself. So this is done in the steps of the schedule in which a full collection reads
values (call_summaries.py); and in the others unless samples of all large gradients show that very factor.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from types import GeneratorType
from typing import Any, NamedTuple

import torch

from traincheck.sources.base import replace_everywhere
from traincheck.sources.gradients.gradients import Gradients, Snapshot
from traincheck.sources.recording.context_facts import circumstances, context_with
from traincheck.sources.recording.patches import Undo
from traincheck.sources.recording.recorder import OpenCall, Recorder
from traincheck.sources.tensors.call_summaries import in_schedule
from traincheck.sources.tensors.deferred_values import Pending, lies_here
from traincheck.sources.tensors.device_transfers import NextSeq
from traincheck.sources.tensors.reading import local, unseen
from traincheck.sources.tensors.spot_checks import is_large, sample
from traincheck.sources.tensors.value_facts import device_norms, euclidean_norm
from traincheck.vocab.demand import NUMBERS, Demand
from traincheck.vocab.events import LIFECYCLE
from traincheck.vocab.facts import Facts, FactValue, facts

HOME = "torch.nn.utils"
FUNCTIONS = {"clip_grad_norm_": "max_norm", "clip_grad_value_": "clip_value"}
"""The functions, with the name of the argument that is the limit."""


class _Begun(NamedTuple):
    """A call of a clipping function under way: `norm_type` is the norm that the limit is about."""

    call: OpenCall
    snapshot: Snapshot | None
    limit: Any
    norm_type: float


class ClippingSource:
    """Observes gradient clipping. What is clipped is the gradients that were handed in, not all of the program's."""

    name = "clipping"

    def __init__(self, gradients: Gradients) -> None:
        self._gradients = gradients

    def offers(self) -> str | None:
        return None

    def attach(self, demand: Demand, recorder: Recorder) -> ExitStack:
        self._recorder = recorder
        undo = Undo()
        for name, limit in FUNCTIONS.items():
            api = (f"{HOME}.{name}",)
            if demand.wants_call(api):
                states, values = demand.wants_state(api, "parameter.grad"), demand.wants_state(api, NUMBERS)
                replace_everywhere(undo, HOME, name, self._wrapped(api, limit, states=states, values=values))
        return undo

    def _wrapped(self, api: tuple[str], limit: str, *, states: bool, values: bool) -> Callable[[Any], Any]:
        guarded = self._recorder.guarded
        begins = guarded(self.name, functools.partial(self._begins, api, limit, states))
        ends, failed = guarded(self.name, self._ends), guarded(self.name, self._failed)
        noting = guarded(self.name, _noting)

        def decorate(function: Any) -> Any:
            @functools.wraps(function)
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                begun = begins(args, kwargs)
                if begun is None:
                    return function(*args, **kwargs)
                handed: list[Any] = []
                if values:
                    args, kwargs = noting(args, kwargs, handed) or (args, kwargs)
                try:
                    result = function(*args, **kwargs)
                except BaseException:
                    failed(begun)
                    raise
                ends(begun, result, handed if values else None)
                return result

            return wrapper

        return decorate

    def _begins(
        self, api: tuple[str], limit: str, states: bool, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> _Begun:
        snapshot = None
        if states:
            with unseen():
                scaled = limit == "max_norm"
                snapshot = self._gradients.read(self._gradients.trainable(), values=True, scaled=scaled)
        self._gradients.clip_begins()
        most = kwargs.get(limit, args[1] if len(args) > 1 else None)
        norm_type = math.inf
        told: dict[str, FactValue] = {key: value for key, value in kwargs.items() if isinstance(value, bool)}
        if limit == "max_norm":
            norm_type = float(kwargs.get("norm_type", args[2] if len(args) > 2 else 2.0))
            told["norm_type"] = norm_type
        if isinstance(most, (int, float)):
            told[limit] = float(most)
        call = self._recorder.enter(LIFECYCLE, api, "", circumstances(), facts(**told))
        return _Begun(call, snapshot, most, norm_type)

    def _ends(self, begun: _Begun, result: Any, handed: list[Any] | None) -> None:
        call, limit, norm_type = begun.call, begun.limit, begun.norm_type
        states, values = begun.snapshot is not None, handed is not None
        with unseen():
            if begun.snapshot is not None:
                self._gradients.compare(begun.snapshot, call.seq)
            norm = _norm_of(result)
            after = [] if handed is None else self._norms_after(begun, norm, handed)

            def conclude(known: list[Any], _: NextSeq) -> None:
                before = known[0]
                if states and isinstance(limit, (int, float)) and before is not None:
                    call.context = context_with(call.context, "exceeds", before > limit)
                if values:
                    call.result = _told(before, norm_over(known[1:], norm_type))

            self._recorder.transfers.when(self.name, [norm, *after], conclude, call=call)
        self._recorder.leave(call, call.result)
        if self._gradients.clipped is not None:
            self._gradients.clipped()

    def _norms_after(self, begun: _Begun, norm: Any, handed: list[Any]) -> list[Any]:
        """The norms of the gradients after clipping, or the one norm of all; each may be pending."""
        scheduled = in_schedule(self._recorder.steps.coming)
        factor = None if scheduled or type(norm) is Pending else _factor(begun.limit, norm)
        if factor is not None and _is_shown(factor, begun.snapshot, handed):
            return [factor * norm]
        after = [param.grad for param in handed if param.grad is not None]
        return [None] if any(hasattr(one, "_local_tensor") for one in after) else each_norm(after, begun.norm_type)

    def _failed(self, begun: _Begun) -> None:
        self._recorder.abandon(begun.call)


def _noting(args: tuple[Any, ...], kwargs: dict[str, Any], handed: list[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a clipping function, made so that the parameters it reads are put into `handed` as well.

    Parameters often come as a generator, which can be read once only; whatever comes is read by the function itself.
    """
    parameters = args[0] if args else kwargs.get("parameters")
    if isinstance(parameters, torch.Tensor):
        handed.append(parameters)
        return args, kwargs
    if isinstance(parameters, (list, tuple)):
        handed.extend(parameters)
        return args, kwargs
    if not isinstance(parameters, Iterable):
        return args, kwargs

    def noted(parameter: Any) -> Any:
        handed.append(parameter)
        return parameter

    def generator() -> Iterator[Any]:
        yield from map(noted, parameters)

    told: Any = generator() if isinstance(parameters, GeneratorType) else map(noted, parameters)
    return ((told, *args[1:]), kwargs) if args else (args, {**kwargs, "parameters": told})


def _factor(limit: Any, norm: float | None) -> float | None:
    """By what torch scales gradients of this norm, None where it is not finite or not known."""
    if norm is None or not math.isfinite(norm) or not isinstance(limit, (int, float)):
        return None
    return min(1.0, limit / (norm + 1e-6))


def _is_shown(factor: float, before: Snapshot | None, handed: list[Any]) -> bool:
    """Whether all large gradients that were handed in were scaled by this factor, as samples of them show; not so if
    none of them is large. Call under `unseen`."""
    if before is None:
        return False
    looks = {id(tensor): before.looks.get(place) for place, (_, tensor) in enumerate(before.held)}
    found: dict[tuple[torch.dtype, torch.device], list[tuple[torch.Tensor, torch.Tensor]]] = {}
    for param in handed:
        if param.grad is None or not is_large(param.grad):
            continue
        old, new = looks.get(id(param)), sample(param.grad)
        if not isinstance(old, torch.Tensor) or new is None or old.shape != new.shape:
            return False
        found.setdefault((new.dtype, new.device), []).append((old, new))
    return bool(found) and all(_are_scaled(pairs, factor) for pairs in found.values())


def _are_scaled(pairs: list[tuple[torch.Tensor, torch.Tensor]], factor: float) -> bool:
    old, new = (torch.cat(each) for each in zip(*pairs, strict=True))
    rounding = 4 * torch.finfo(new.dtype).eps
    return bool(torch.allclose(old * factor, new, rtol=rounding, atol=torch.finfo(new.dtype).tiny))


def _told(before: float | None, after: float | None) -> Facts:
    """The norm of the gradients before clipping (as it was returned) and after it."""
    found: dict[str, FactValue] = {}
    if before is not None:
        found["finite"] = math.isfinite(before)
        if found["finite"]:
            found["norm_before"] = before
    if after is not None:
        found.setdefault("finite", math.isfinite(after))
        if math.isfinite(after):
            found["norm_after"] = after
    return facts(**found)


def _norm_of(result: Any) -> Any:
    """The norm that was returned, which may be pending; None for that of shards, which only a collective operation
    could tell."""
    if type(result) is not torch.Tensor or local(result) is None or result.numel() != 1:
        return None
    return float(result) if lies_here(result) else Pending((result.detach().clone(),), float)


def norm_over(each: Sequence[float | None], norm_type: float) -> float | None:
    """The norm of a vector out of those of its parts, None where one of them is not known."""
    norms = [norm for norm in each if norm is not None]
    if len(norms) < len(each):
        return None
    if len(norms) < 2:
        return norms[0] if norms else 0.0
    return float(torch.linalg.vector_norm(torch.tensor(norms, dtype=torch.float64), norm_type))


def each_norm(gradients: list[torch.Tensor], norm_type: float) -> list[Any]:
    """The norm of each gradient, of a shard that of its part; None where one cannot be read. Those of accelerators are
    pending. Call under `unseen`."""
    found: list[Any] = list(device_norms(gradients, norm_type))
    for place, gradient in enumerate(gradients):
        dense = local(gradient) if found[place] is None else None
        if dense is not None and not dense.numel():
            found[place] = 0.0
        elif dense is not None and norm_type == 2:
            found[place] = euclidean_norm(dense)
        elif dense is not None:
            found[place] = float(torch.linalg.vector_norm(dense, norm_type))
    return found
