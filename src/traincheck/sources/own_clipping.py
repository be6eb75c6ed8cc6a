"""Own clipping: functions of the program that bound the norm of gradients, known by the name of their limit.

Many programs clip by code of their own: over shards, in a flat buffer, in an engine. What such a function is called
differs, but its limit is called `max_norm` or much like it. It is told as a call of torch's function, which it stands
in for, so that what holds of the one is asked of the other.

Known limitations: a function is left out that runs a backward or an update, or calls torch's function, or that answers
with True or False (it may only ask). Whose gradients it clips is told by its arguments; where they do not tell, those
that it has changed are looked at, and nothing is said of a call that changed none. A norm other than the Euclidean one
is not known of. Before Python 3.12 such functions are seen only where functions of the project are observed anyway.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from types import GeneratorType
from typing import Any, NamedTuple

import torch
from torch import nn

from traincheck.sources.circumstances import circumstances
from traincheck.sources.clipping import HOME, total_norm
from traincheck.sources.frames import local_values
from traincheck.sources.gradients import Gradients
from traincheck.sources.recorder import Recorder
from traincheck.sources.tensors import fingerprints, unseen
from traincheck.vocab.events import LIFECYCLE
from traincheck.vocab.facts import facts, merged

CLIP = f"{HOME}.clip_grad_norm_"
LIMITS = frozenset(("max_norm", "max_grad_norm", "max_gradient_norm", "clip_norm", "grad_clip_norm"))
"""What the limit of such a function is called."""

_PARAMETERS = nn.Module.parameters.__code__


class Begun(NamedTuple):
    """A call under way: its limit, the parameters whose gradients it may clip with the fingerprints of these, whether
    its arguments say that it is those, and what had been done until then."""

    limit: float
    parameters: list[torch.Tensor]
    before: list[int | None]
    told: bool
    done: tuple[int, ...]


class OwnClipping:
    """Looks at the gradients around calls of functions that have a limit among their arguments."""

    def __init__(self, gradients: Gradients) -> None:
        self._gradients = gradients

    @staticmethod
    def limit_of(names: tuple[str, ...]) -> str:
        """The argument that is the limit, empty where a function has none or several."""
        found = [name for name in names if name in LIMITS]
        return found[0] if len(found) == 1 else ""

    def begins(self, limit: object, arguments: Mapping[str, Any]) -> Begun | None:
        """Read the gradients before the call; None where there is nothing to clip, or no limit."""
        if isinstance(limit, bool) or not isinstance(limit, (int, float)) or not 0 < limit < math.inf:
            return None
        with unseen():
            living = [tensor for _, tensor in self._gradients.trainable() if tensor.grad is not None]
            by_id = {id(tensor): tensor for tensor in living} | {id(tensor.grad): tensor for tensor in living}
            handed = {id(one): one for value in arguments.values() for one in _tensors(value)}
            told = [by_id[key] for key in handed if key in by_id]
            parameters = told or living
            if not parameters:
                return None
            before = fingerprints([_gradient(one) for one in parameters])
            return Begun(float(limit), parameters, before, bool(told), self._gradients.done())

    def ends(self, begun: Begun, result: Any, recorder: Recorder) -> None:
        """Tell the call, with the norm after it."""
        if isinstance(result, bool) or self._gradients.done() != begun.done:
            return
        if any(one.grad is None for one in begun.parameters):
            return  # it does more than to clip
        with unseen():
            now = [_gradient(one) for one in begun.parameters]
            after = fingerprints(now)
            changed = [one for one, old, new in zip(now, begun.before, after, strict=True) if old != new]
            measured = now if begun.told else changed
            norm = total_norm(measured, 2.0) if measured else None
        if norm is None:
            return
        context = merged(circumstances(), exceeds=bool(changed))
        call = recorder.enter(LIFECYCLE, (CLIP,), "", context, facts(max_norm=begun.limit, norm_type=2.0))
        finite = math.isfinite(norm)
        recorder.leave(call, facts(finite=True, norm_after=norm) if finite else facts(finite=False))


def _gradient(parameter: torch.Tensor) -> torch.Tensor:
    assert parameter.grad is not None
    return parameter.grad


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """The parameters (or gradients) in an argument; a generator is not read, only asked what it will go through."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, nn.Module):
        yield from value.parameters()
    elif isinstance(value, torch.optim.Optimizer):
        yield from (tensor for group in value.param_groups for tensor in group["params"])
    elif type(value) in (list, tuple):
        yield from (one for one in value if isinstance(one, torch.Tensor))
    elif isinstance(value, GeneratorType) and value.gi_code is _PARAMETERS and value.gi_frame is not None:
        told = local_values(value.gi_frame, ("self", "recurse"))
        yield from told["self"].parameters(told.get("recurse", True))
