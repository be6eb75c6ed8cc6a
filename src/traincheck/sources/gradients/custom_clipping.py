"""Recognises clipping functions of the program by the name of their limit, and records them like torch's.

Many programs clip with their own code: over shards, in a flat buffer, in an engine. The names of these functions
differ, but their limit is called `max_norm` or similar. It is an argument, or an attribute of the object whose method
clips. TrainCheck records the call as a call of torch's function, so that rules about one apply to the other. It also
checks that a call scaled all gradients of an optimizer by the same factor.

Known limitations:
* A function is ignored if it runs a backward or an update, calls torch's function, or returns True or False.
* The arguments say which gradients a call clips. Where they do not, only changed gradients count, and a call that
  changes none is ignored.
* A call meant for some gradients of an optimizer, without receiving them, looks as if it had missed the rest.
* Only the Euclidean norm is supported.
* Before Python 3.12, TrainCheck sees these functions only while it observes functions of the project.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from types import CodeType, GeneratorType
from typing import Any, NamedTuple

import torch
from torch import nn

from traincheck.sources.gradients.gradients import Gradients, Held
from traincheck.sources.recording.context_facts import context_facts
from traincheck.sources.recording.frames import argument_names, local_values
from traincheck.sources.recording.recorder import Recorder
from traincheck.sources.tensors.deferred_values import fetch_values
from traincheck.sources.tensors.reading import hidden_from_modes
from traincheck.sources.tensors.spot_checks import Probe, changed, probe
from traincheck.sources.tensors.value_facts import gradient_norms, total_norm
from traincheck.vocab.call_kinds import words_of
from traincheck.vocab.events import LIFECYCLE
from traincheck.vocab.facts import FactValue, facts, merged

HOME = "torch.nn.utils"
CLIP = f"{HOME}.clip_grad_norm_"
LIMITS = frozenset(("max_norm", "max_grad_norm", "max_gradient_norm", "clip_norm", "grad_clip_norm"))
"""Names of the limit in such functions."""

ZERO = {
    "deepspeed.runtime.zero.stage_1_and_2": "DeepSpeedZeroOptimizer",
    "deepspeed.runtime.zero.stage3": "DeepSpeedZeroOptimizer_Stage3",
}
"""The optimizers of DeepSpeed that clip by `gradient_clipping` of its configuration, by their module."""
MEGATRON, MEGATRON_FUNCTION = "megatron.core.optimizer.clip_grads", "clip_grad_by_total_norm_fp32"
"""The function of Megatron that clips, and its module."""

TOLERANCE = 2e-2
"""Factors that differ by no more than this are equal up to rounding: a bfloat16 has 8 bits."""

MAX_NAMES = 3
"""Gradients named in a finding."""

_OBJECT = "self"
_PARAMETERS = nn.Module.parameters.__code__


class OpenCustomClipping(NamedTuple):
    """A clipping call under way.

    `held` are the parameters whose gradients it may clip, `before` and `norms` their gradients before the call.
    `from_arguments` says that the arguments name these parameters. `counts` are the backwards, clippings and updates so
    far.
    """

    limit: float
    held: list[Held]
    before: list[Probe]
    norms: list[float | None]
    from_arguments: bool
    counts: tuple[int, ...]

    def gradients(self) -> list[torch.Tensor]:
        """Return the gradients that exist now."""
        return [tensor.grad for _, tensor in self.held if tensor.grad is not None]


class CustomClipping:
    """Compares gradients around calls of functions that have a limit among their arguments."""

    def __init__(self, gradients: Gradients) -> None:
        self._gradients = gradients

    @staticmethod
    def limit_of(code: CodeType) -> str:
        """Return the limit argument, or `self` where the object may hold the limit; empty for other functions."""
        limits = [name for name in argument_names(code) if name in LIMITS]
        if not limits and code.co_varnames[: code.co_argcount][:1] == (_OBJECT,) and "clip" in words_of(code.co_name):
            return _OBJECT
        return limits[0] if len(limits) == 1 else ""

    def begins(self, limit: object, arguments: Mapping[str, Any]) -> OpenCustomClipping | None:
        """Read the gradients before the call; return None without gradients or without a limit.

        `limit` is the value that `limit_of` named, `arguments` are all others.
        """
        if not isinstance(limit, (int, float)):
            limit = _limit_within(limit)
        if isinstance(limit, bool) or not isinstance(limit, (int, float)) or not 0 < limit < math.inf:
            return None
        with hidden_from_modes():
            living = [(variable, tensor) for variable, tensor in self._gradients.trainable() if tensor.grad is not None]
            by_id = {id(tensor): held for held in living for tensor in (held[1], held[1].grad)}
            parameters = {id(tensor): tensor for value in arguments.values() for tensor in tensors_in_argument(value)}
            trainable = [by_id[key] for key in parameters if key in by_id]
            opened = OpenCustomClipping(
                float(limit), trainable or living, [], [], bool(trainable), self._gradients.counts()
            )
            if not opened.held:
                return None
            now = opened.gradients()
            return opened._replace(before=probe(now), norms=fetch_values(gradient_norms(now, 2.0)))

    def ends(self, opened: OpenCustomClipping, result: Any, recorder: Recorder) -> None:
        """Record the call, with the norm after it."""
        if isinstance(result, bool) or self._gradients.counts() != opened.counts:
            return
        with hidden_from_modes():
            now = opened.gradients()
            if len(now) < len(opened.held):
                return  # the call does more than clip
            after = fetch_values(gradient_norms(now, 2.0))
            changes = zip(fetch_values(changed(opened.before, now)), opened.norms, after, strict=True)
            different = [is_changed or _norm_changed(old, new) for is_changed, old, new in changes]
            clipped = [index for index, is_changed in enumerate(different) if is_changed or opened.from_arguments]
            shards = any(hasattr(now[index], "_local_tensor") for index in clipped)
            norm = total_norm([after[index] for index in clipped], 2.0) if clipped and not shards else None
            scaled = _scaled(opened, different, after)
        if norm is None:
            return
        context = merged(context_facts(), exceeds=any(different))
        call = recorder.enter(LIFECYCLE, (CLIP,), "", context, facts(max_norm=opened.limit, norm_type=2.0))
        finite = math.isfinite(norm)
        recorder.leave(call, facts(finite=True, norm_after=norm, **scaled) if finite else facts(finite=False))


def _norm_changed(old: float | None, new: float | None) -> bool:
    """Return whether a norm changed: a function of the program may bound only a few elements."""
    return old is not None and new is not None and abs(new - old) > 0


def _limit_within(value: Any) -> object:
    """Return the limit stored as an attribute of an object; None where it has none or several. Runs no code of it."""
    limits = [attribute for name, attribute in getattr(value, "__dict__", {}).items() if name in LIMITS]
    return limits[0] if len(limits) == 1 else None


def _scaled(opened: OpenCustomClipping, changed: list[bool], after: list[float | None]) -> dict[str, FactValue]:
    """Return whether the call scaled all gradients of the affected optimizers by one factor, and name those left out.

    Returns nothing where no gradient changed, or where each gradient was bounded separately and ends at the limit.
    """
    gradients = list(zip(opened.held, opened.norms, after, changed, strict=True))
    optimizers = set[str]().union(*(variable.holders for (variable, _), _, _, is_changed in gradients if is_changed))
    bounded = [new for _, _, new, is_changed in gradients if is_changed and new is not None]
    factors = {
        variable.name: new / old
        for (variable, _), old, new, _ in gradients
        if variable.holders & optimizers and old and new is not None
    }
    if not factors or all(abs(new - opened.limit) <= TOLERANCE * opened.limit for new in bounded):
        return {}
    if max(factors.values()) - min(factors.values()) <= TOLERANCE * max(factors.values()):
        return {"alike": True}
    left_out = [name for name, factor in factors.items() if factor == 1]
    more = f" and {len(left_out) - MAX_NAMES} more" if len(left_out) > MAX_NAMES else ""
    return {"alike": False, "left_out": ", ".join(left_out[:MAX_NAMES]) + more}


def tensors_in_argument(value: Any) -> Iterator[torch.Tensor]:
    """Yield the parameters (or gradients) in an argument. A generator is not consumed; its frame names the module."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, nn.Module):
        yield from value.parameters()
    elif isinstance(value, torch.optim.Optimizer):
        yield from (tensor for group in value.param_groups for tensor in group["params"])
    elif type(value) in (list, tuple):
        yield from (entry for entry in value if isinstance(entry, torch.Tensor))
    elif isinstance(value, GeneratorType) and value.gi_code is _PARAMETERS and value.gi_frame is not None:
        frame_locals = local_values(value.gi_frame, ("self", "recurse"))
        yield from frame_locals["self"].parameters(frame_locals.get("recurse", True))
