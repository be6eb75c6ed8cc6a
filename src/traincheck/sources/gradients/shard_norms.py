"""Measures on each rank by which factor clipping scales gradients that are divided over ranks.

A clipped gradient is one vector, also if its parts are on several ranks. So all of them scale their parts by the same
factor, which follows from the norm of the whole vector. Each rank records its factor and its share of the squared norm.
The command that compares ranks adds the shares (relations/periodic/shard_clipping.py), so the ranks exchange nothing.

A DTensor says how a gradient is divided. A part that several ranks hold counts once: each of them contributes a
fraction of its square. Megatron marks the parameters that are divided over the ranks of its tensor parallelism.

Known limitations: other gradients that are divided over ranks (flat buffers of an engine) do not say how.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from traincheck.sources.gradients.custom_clipping import MEGATRON, tensors_in_argument
from traincheck.sources.recording.recorder import Recorder
from traincheck.sources.tensors.device_transfers import NextSeq
from traincheck.sources.tensors.reading import hidden_from_modes
from traincheck.sources.tensors.value_facts import gradient_norms
from traincheck.vocab.builtin_rules import CLIPPING, SHARDS
from traincheck.vocab.events import NO_CALL, Reading
from traincheck.vocab.facts import facts

SOURCE = "clipping"
_MEGATRON_GROUPS = "megatron.core.parallel_state"

MAX_GRADIENTS = 10_000
"""Calls with more gradients are left out: each costs a reading."""


class _Parts(NamedTuple):
    """The gradients of a call, the ranks that hold parts of them, and how many ranks hold the same part of each.

    `is_whole` says that these ranks hold all gradients that the norm of the call is of.
    """

    gradients: list[torch.Tensor]
    ranks: tuple[int, ...]
    copies: list[int]
    is_whole: bool


class OpenShardClipping(NamedTuple):
    """A clipping call under way. `norms` are those of the local parts before it."""

    parameters: list[torch.Tensor]
    parts: _Parts
    limit: float
    norms: list[Any]
    is_euclidean: bool

    def end(self, recorder: Recorder) -> None:
        """Record the factor, and the share of the norm before the call."""
        with hidden_from_modes():
            now = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
            if len(now) < len(self.parameters):
                return
            ranks, copies, limit, is_euclidean = self.parts.ranks, self.parts.copies, self.limit, self.is_euclidean
            is_whole, count = self.parts.is_whole, len(now)

            def conclude(resolved: list[Any], next_seq: NextSeq) -> None:
                if any(norm is None or not math.isfinite(norm) for norm in resolved):
                    return
                before, after = (math.hypot(*norms) for norms in (resolved[:count], resolved[count:]))
                share = sum(norm * norm / same for norm, same in zip(resolved[:count], copies, strict=True))
                context = facts(limit=limit, share=share, whole=is_whole, euclidean=is_euclidean)
                name, factor = ",".join(map(str, ranks)), after / before if before else None
                recorder.record_reading(Reading(next_seq(), NO_CALL, name, CLIPPING, SHARDS, factor, context=context))

            recorder.transfers.when_ready(SOURCE, [*self.norms, *gradient_norms(now, 2.0)], conclude, events=1)


def begin(
    args: tuple[Any, ...], kwargs: dict[str, Any], *, exact: bool, norm_type: int | None
) -> OpenShardClipping | None:
    """Read the gradients before a call; None if they are not divided over ranks, or do not say how.

    See ClippingSource._measured.
    """
    limit = kwargs.get("max_norm", args[1] if len(args) > 1 else None)
    if isinstance(limit, bool) or not isinstance(limit, (int, float)) or not 0 < limit < math.inf:
        return None
    with hidden_from_modes():
        given = tensors_in_argument(args[0] if args else kwargs.get("parameters"))
        parameters = [tensor for tensor in given if tensor.grad is not None]
        parts = _parts_of(parameters, exact) if 0 < len(parameters) <= MAX_GRADIENTS else None
        if parts is None:
            return None
        norms = gradient_norms(parts.gradients, 2.0)
    order = 2 if norm_type is None else kwargs.get("norm_type", args[norm_type] if len(args) > norm_type else 2)
    return OpenShardClipping(parameters, parts, float(limit), norms, order == 2)


def _parts_of(parameters: Sequence[torch.Tensor], exact: bool) -> _Parts | None:
    """Return how the gradients are divided; None if they do not say it."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if all(hasattr(gradient, "device_mesh") for gradient in gradients):
        return _of_meshes(gradients, exact)
    if any(hasattr(gradient, "_local_tensor") for gradient in gradients) or MEGATRON not in sys.modules:
        return None
    return _of_megatron(parameters, gradients)


def _of_meshes(gradients: Sequence[Any], exact: bool) -> _Parts | None:
    meshes = {id(gradient.device_mesh): gradient.device_mesh for gradient in gradients}
    ranks = {tuple(sorted(mesh.mesh.flatten().tolist())) for mesh in meshes.values()}
    if len(ranks) != 1 or any(place.is_partial() for gradient in gradients for place in gradient.placements):
        return None
    copies = [
        math.prod(
            gradient.device_mesh.size(dim) for dim, place in enumerate(gradient.placements) if place.is_replicate()
        )
        for gradient in gradients
    ]
    return _Parts([gradient._local_tensor for gradient in gradients], ranks.pop(), copies, exact)


def _of_megatron(parameters: Sequence[Any], gradients: list[torch.Tensor]) -> _Parts | None:
    """How Megatron divides parameters over the ranks of its tensor parallelism. With no other ranks, no others have
    gradients of the norm. (Experts have a norm of their own.)"""
    groups = sys.modules.get(_MEGATRON_GROUPS)
    divided = [getattr(parameter, "tensor_model_parallel", False) for parameter in parameters]
    if groups is None or not any(divided):
        return None
    ranks = torch.distributed.get_process_group_ranks(groups.get_tensor_model_parallel_group())
    if len(ranks) < 2 or any(getattr(parameter, "shared", False) for parameter in parameters):
        return None
    is_whole = len(ranks) == torch.distributed.get_world_size()
    is_whole = is_whole and all(getattr(parameter, "allreduce", True) for parameter in parameters)
    copies = [1 if is_divided else len(ranks) for is_divided in divided]
    return _Parts(gradients, tuple(sorted(ranks)), copies, is_whole)
