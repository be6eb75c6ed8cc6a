"""Fingerprints the parameters and gradients used by an update on each rank, and the parameters of new optimizers.

TrainCheck takes these readings only in jobs of several ranks; relations/consistent/ranks/replicas.py compares them.

Note [Averaging by hand]
A wrapper averages the gradients of its parameters, so replicas use equal gradients. A program that calls `all_reduce`
on a gradient, over all ranks and after the last backward, means the same: all ranks hold the same gradient, and the
update is to use it. This holds for the bias of a layer as well if its matrix was averaged (`bias` to `weight`, as
layers of torch name them). Such a matrix is no shard, so each rank computes the whole output, to which the bias is
added. In tensor parallelism a bias can be averaged without its matrix, so the reverse does not hold.

Other layers may be personal: each rank trains its own head on a body that all ranks share. But a parameter is a replica
if the program broadcasts it to all ranks before the training and deals one dataset out to them with a
`DistributedSampler`. If an update uses averaged gradients of some parameters, it is to use those of such replicas as
well.

Known limitations: gradients that a program averages in a copy, or assigns again afterwards, are not recognized.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed
from torch.utils.data.distributed import DistributedSampler

from traincheck.sources.gradients.gradients import Gradients, Held
from traincheck.sources.modules.variables import Variable
from traincheck.sources.recording.recorder import Recorder
from traincheck.sources.tensors.deferred_values import DeferredValue, is_on_host
from traincheck.sources.tensors.device_transfers import NextSeq
from traincheck.sources.tensors.reading import (
    PLAIN,
    SOME,
    ZERO,
    Fingerprint,
    deferred_fingerprints,
    fingerprints,
    hidden_from_modes,
    local_tensor,
    same_part,
)
from traincheck.sources.tensors.reading import states as states_of
from traincheck.vocab.builtin_rules import REPLICA
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import Reading
from traincheck.vocab.facts import Facts, facts, merged

if TYPE_CHECKING:
    from traincheck.sources.distributed.early_replicas import EarlyReplicas

SOURCE = "optimizers"
KIND = "parameter"
USED_DATA, USED_GRAD, FIRST_DATA = "used_data", "used_grad", "first_data"

_CONTEXT = {state: facts(kind=KIND, before=state) for state in (SOME, ZERO)}
_AVERAGED = {state: merged(context, data_parallel=True) for state, context in _CONTEXT.items()}


def several_ranks() -> bool:
    """Return whether torch.distributed is initialised with more than one rank."""
    distributed = torch.distributed
    return bool(distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1)


_Memory = tuple[torch.UntypedStorage, tuple[int, int]]
"""A storage, and a range of its bytes."""

MAX_STORAGES = 50_000
"""Maximum storages with known ranges. Beyond it, further gradients count as not averaged."""


class FilledMemory:
    """The memory that collectives of all ranks have filled with the same values.

    Weak references keep the small records of storages, so that no address is reused, but not the memory.
    """

    def __init__(self) -> None:
        self._ranges: dict[int, list[tuple[int, int]]] = {}

    def __bool__(self) -> bool:
        return bool(self._ranges)

    def add(self, memory: _Memory) -> None:
        """Add a range."""
        storage, span = memory
        if storage._cdata not in self._ranges:
            if len(self._ranges) >= MAX_STORAGES:
                return
            self._ranges[storage._weak_ref()] = []
        self._ranges[storage._cdata].append(span)

    def holds(self, tensor: torch.Tensor | None) -> bool:
        """Whether a collective has filled all of a tensor. Call under `hidden_from_modes`."""
        memory = _memory_of(tensor)
        if memory is None:
            return False
        storage, (start, end) = memory
        return any(first <= start and end <= last for first, last in self._ranges.get(storage._cdata, ()))

    def forget(self) -> None:
        """Release all records."""
        for address in self._ranges:
            torch.UntypedStorage._free_weak_ref(address)
        self._ranges.clear()


class HandAveraging:
    """Finds the gradients that a program averages, or is to average, by itself. See Note [Averaging by hand]."""

    def __init__(self, gradients: Gradients) -> None:
        self.gradients = gradients
        self._backwards = 0
        self._reduced = FilledMemory()  # since the last backward
        self._broadcast = FilledMemory()  # before the first update
        self._deals = False

    def collective_ends(self, tensors: Any) -> None:
        """Note that a collective of all ranks has filled one or several tensors with the same values."""
        if not several_ranks():
            return
        self._expire()
        has_updated = self.gradients.counts()[2] > 0
        with hidden_from_modes():
            for tensor in tensors if isinstance(tensors, (list, tuple)) else (tensors,):
                memory = _memory_of(tensor)
                if memory is not None:
                    self._reduced.add(memory)
                    if not has_updated:
                        self._broadcast.add(memory)

    def epoch_begins(self, loader: Any) -> None:
        """Note whether a loader deals its dataset out to all ranks."""
        sampler = vars(loader).get("sampler")
        self._deals = (
            isinstance(sampler, DistributedSampler)
            and several_ranks()
            and sampler.num_replicas == torch.distributed.get_world_size()
        )

    def averaged(self, held: Sequence[Held]) -> list[bool]:
        """Whether all ranks are to use the same gradient of each variable in an update. Call under
        `hidden_from_modes`."""
        self._expire()
        averaged = (
            [False] * len(held) if not self._reduced else [self._reduced.holds(tensor.grad) for _, tensor in held]
        )
        if not any(averaged):
            return averaged
        biases = {
            (_name_of_bias(variable.name), tensor.shape[:1])
            for (variable, tensor), is_averaged in zip(held, averaged, strict=True)
            if is_averaged and tensor.dim() > 1
        }
        return [
            is_averaged
            or (bool(variable.holders) and (variable.name, tensor.shape) in biases)
            or (bool(variable.holders) and self._deals and self._broadcast.holds(tensor))
            for (variable, tensor), is_averaged in zip(held, averaged, strict=True)
        ]

    def forget(self) -> None:
        """Release all records."""
        self._reduced.forget()
        self._broadcast.forget()

    def _expire(self) -> None:
        backwards = self.gradients.counts()[0]
        if backwards != self._backwards:
            self._reduced.forget()
            self._backwards = backwards


def _name_of_bias(weight: str) -> str:
    """The name of the bias that belongs to a weight, as layers of torch name them: `bias_ih_l0` to `weight_ih_l0`."""
    layer, dot, name = weight.rpartition(".")
    return f"{layer}{dot}{name.replace('weight', 'bias')}"


def _memory_of(tensor: Any) -> _Memory | None:
    """The memory of a plain, dense tensor, None for any other object."""
    if type(tensor) not in PLAIN or tensor.layout is not torch.strided or not tensor.numel():
        return None
    try:
        storage = tensor.untyped_storage()
    except (RuntimeError, NotImplementedError):
        return None
    extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    if extent != tensor.numel() or not storage._cdata:
        return None
    start, size = tensor.storage_offset(), tensor.element_size()
    return storage, (start * size, (start + extent) * size)


class ReplicaReadings:
    """Takes the readings before each update.

    `before` says whether the tensor is all zero (for a parameter: at its first reading). Non-finite gradients count as
    zero, because they have the same bits on all ranks whether or not these are replicas.
    """

    def __init__(self, demand: Demand, recorder: Recorder, by_hand: HandAveraging) -> None:
        self._recorder = recorder
        self._by_hand = by_hand
        self._data = demand.takes_reading(KIND, USED_DATA)
        self._grad = demand.takes_reading(KIND, USED_GRAD)
        self._first = demand.takes_reading(KIND, FIRST_DATA)
        self._follows_first = demand.takes_reading(KIND, REPLICA)  # updates
        self._early: EarlyReplicas | None = None

    @property
    def should_read(self) -> bool:
        """Whether other ranks exist to compare with."""
        return (self._data or self._grad or self._first or self._follows_first) and several_ranks()

    def built(self, held: Sequence[Held], call: int) -> None:
        """Read the variables of a new optimizer. Call under `hidden_from_modes`."""
        if self._first:
            for (variable, tensor), value in zip(held, fingerprints([tensor for _, tensor in held]), strict=True):
                if value is not None:
                    seq = self._recorder.next_seq()
                    self._record(
                        seq, call, variable.name, FIRST_DATA, value, _CONTEXT[_state_at_first(variable, tensor)]
                    )

    def step_begins(
        self, held: Sequence[Held], data: Sequence[Fingerprint], states: Sequence[str | DeferredValue], call: int
    ) -> None:
        """Read the variables of an optimizer; `data` are their fingerprints, `states` the states of their gradients.

        Call under `hidden_from_modes`.
        """
        names = [variable.name for variable, _ in held]
        if self._follows_first:
            self._follow_first(held, data, call)
        if self._data:
            firsts = [_state_at_first(variable, tensor) for variable, tensor in held]

            def conclude(resolved: list[int | None], next_seq: NextSeq) -> None:
                for name, fingerprint, first in zip(names, resolved, firsts, strict=True):
                    if fingerprint is not None:
                        self._record(next_seq(), call, name, USED_DATA, fingerprint, _CONTEXT[first])

            self._recorder.transfers.when_ready(SOURCE, data, conclude, events=len(names))
        if self._grad:
            with_grad = [
                index
                for index, state in enumerate(states)
                if (state in _CONTEXT or type(state) is DeferredValue) and _is_used(held[index][1])
            ]
            gradients = [held[index][1].grad for index in with_grad]
            by_hand = self._by_hand.averaged([held[index] for index in with_grad])
            averaged = [held[index][0].data_parallel or by_hand[number] for number, index in enumerate(with_grad)]
            grads = deferred_fingerprints(gradients)
            not_finite = _are_not_finite(gradients)

            def conclude_grads(resolved: list[Any], next_seq: NextSeq) -> None:
                for number, index in enumerate(with_grad):
                    fingerprint, state = resolved[number], ZERO if not_finite else resolved[number + len(with_grad)]
                    if fingerprint is not None:
                        context = (_AVERAGED if averaged[number] else _CONTEXT)[state]
                        self._record(next_seq(), call, names[index], USED_GRAD, fingerprint, context)

            values = [*grads, *(states[index] for index in with_grad)]
            self._recorder.transfers.when_ready(SOURCE, values, conclude_grads, events=len(with_grad))

    def _follow_first(self, held: Sequence[Held], data: Sequence[Fingerprint], call: int) -> None:
        if self._early is None:
            from traincheck.sources.distributed.early_replicas import EarlyReplicas  # not without several ranks

            self._early = EarlyReplicas(self._recorder, self._by_hand.gradients)
        self._early.step_begins(held, data, call)
        self._follows_first = not self._early.is_over

    def _record(self, seq: int, call: int, variable: str, attribute: str, value: int, context: Facts) -> None:
        self._recorder.record_reading(Reading(seq, call, variable, KIND, attribute, value, context=context))


def _is_used(tensor: torch.Tensor) -> bool:
    """Return whether an update uses the gradient as it is on this rank."""
    return tensor.grad is not None and same_part(tensor, tensor.grad)


def _are_not_finite(gradients: Sequence[torch.Tensor]) -> bool:
    """Return whether the gradients of an update are not finite, judged by one element of the first local gradient.

    Clipping by a non-finite norm spreads to every gradient.
    """
    dense = next(
        (dense for gradient in gradients if (dense := local_tensor(gradient)) is not None and dense.numel()), None
    )
    if dense is None or not is_on_host(dense) or not dense.is_floating_point():
        return False
    return not math.isfinite(dense[(0,) * dense.dim()].item())


def _state_at_first(variable: Variable, tensor: torch.Tensor) -> str:
    if USED_DATA not in variable.last_readings:
        variable.last_readings[USED_DATA] = states_of([tensor])[0]
    return str(variable.last_readings[USED_DATA])
