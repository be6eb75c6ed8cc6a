"""Fingerprints the parameters and gradients used by an update on each rank, and the parameters of new optimizers.

TrainCheck takes these readings only in jobs of several ranks; relations/consistent/replicas.py compares them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed

from traincheck.sources.gradients.gradients import Held
from traincheck.sources.modules.variables import Variable
from traincheck.sources.recording.recorder import Recorder
from traincheck.sources.tensors.deferred_values import DeferredValue, is_on_host
from traincheck.sources.tensors.device_transfers import NextSeq
from traincheck.sources.tensors.reading import (
    SOME,
    ZERO,
    Fingerprint,
    deferred_fingerprints,
    fingerprints,
    local_tensor,
)
from traincheck.sources.tensors.reading import states as states_of
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import Reading
from traincheck.vocab.facts import Facts, facts, merged

SOURCE = "optimizers"
KIND = "parameter"
USED_DATA, USED_GRAD, FIRST_DATA = "used_data", "used_grad", "first_data"

_CONTEXT = {state: facts(kind=KIND, before=state) for state in (SOME, ZERO)}
_AVERAGED = {state: merged(context, data_parallel=True) for state, context in _CONTEXT.items()}


def several_ranks() -> bool:
    """Return whether torch.distributed is initialised with more than one rank."""
    distributed = torch.distributed
    return bool(distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1)


class ReplicaReadings:
    """Takes the readings before each update.

    `before` says whether the tensor is all zero (for a parameter: at its first reading). Non-finite gradients count as
    zero, because they have the same bits on all ranks whether or not these are replicas.
    """

    def __init__(self, demand: Demand, recorder: Recorder) -> None:
        self._recorder = recorder
        self._data = demand.takes_reading(KIND, USED_DATA)
        self._grad = demand.takes_reading(KIND, USED_GRAD)
        self._first = demand.takes_reading(KIND, FIRST_DATA)

    @property
    def should_read(self) -> bool:
        """Whether other ranks exist to compare with."""
        return (self._data or self._grad or self._first) and several_ranks()

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
        if self._data:
            firsts = [_state_at_first(variable, tensor) for variable, tensor in held]

            def conclude(resolved: list[int | None], next_seq: NextSeq) -> None:
                for name, fingerprint, first in zip(names, resolved, firsts, strict=True):
                    if fingerprint is not None:
                        self._record(next_seq(), call, name, USED_DATA, fingerprint, _CONTEXT[first])

            self._recorder.transfers.when_ready(SOURCE, data, conclude, events=len(names))
        if self._grad:
            with_grad = [
                index for index, state in enumerate(states) if state in _CONTEXT or type(state) is DeferredValue
            ]
            gradients = [held[index][1].grad for index in with_grad]
            averaged = [held[index][0].data_parallel for index in with_grad]
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

    def _record(self, seq: int, call: int, variable: str, attribute: str, value: int, context: Facts) -> None:
        self._recorder.record_reading(Reading(seq, call, variable, KIND, attribute, value, context=context))


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
