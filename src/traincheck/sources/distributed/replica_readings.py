"""Readings of what an update is given on each rank: the parameters and the gradients that it uses, by fingerprint; and
of the parameters that an optimizer was built with.

They are taken only in a job of several ranks, which are compared by them (see relations/consistent/replicas.py).
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
from traincheck.sources.tensors.deferred_values import Pending, lies_here
from traincheck.sources.tensors.device_transfers import NextSeq
from traincheck.sources.tensors.reading import SOME, ZERO, Computed, computed, fingerprints, local
from traincheck.sources.tensors.reading import states as states_of
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import Reading
from traincheck.vocab.facts import facts

SOURCE = "optimizers"
KIND = "parameter"
USED_DATA, USED_GRAD, FIRST_DATA = "used_data", "used_grad", "first_data"

_CONTEXT = {state: facts(kind=KIND, before=state) for state in (SOME, ZERO)}


def several_ranks() -> bool:
    """Whether there are other ranks in this job, as torch.distributed knows by now."""
    distributed = torch.distributed
    return bool(distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1)


class ReplicaReadings:
    """Takes the readings before each update. `before` tells whether the tensor is all zero (of a parameter: whether it
    was when it was first read). Gradients that are not finite count as zero: they have the same bits on all ranks,
    replicas or not."""

    def __init__(self, demand: Demand, recorder: Recorder) -> None:
        self._recorder = recorder
        self._data = demand.wants_reading(KIND, USED_DATA)
        self._grad = demand.wants_reading(KIND, USED_GRAD)
        self._first = demand.wants_reading(KIND, FIRST_DATA)

    @property
    def wanted(self) -> bool:
        """Whether there are other ranks to be compared with."""
        return (self._data or self._grad or self._first) and several_ranks()

    def built(self, held: Sequence[Held], call: int) -> None:
        """Read the variables of an optimizer that was built just now. Call under `unseen`."""
        if self._first:
            for (variable, tensor), value in zip(held, fingerprints([tensor for _, tensor in held]), strict=True):
                if value is not None:
                    seq = self._recorder.next_seq()
                    self._tell(seq, call, variable.name, FIRST_DATA, value, _state_at_first(variable, tensor))

    def step_begins(
        self, held: Sequence[Held], data: Sequence[Computed], states: Sequence[str | Pending], call: int
    ) -> None:
        """Read the variables of an optimizer; `data` are their fingerprints, `states` those of their gradients.

        Call under `unseen`.
        """
        names = [variable.name for variable, _ in held]
        if self._data:
            firsts = [_state_at_first(variable, tensor) for variable, tensor in held]

            def conclude(known: list[int | None], next_seq: NextSeq) -> None:
                for name, fingerprint, first in zip(names, known, firsts, strict=True):
                    if fingerprint is not None:
                        self._tell(next_seq(), call, name, USED_DATA, fingerprint, first)

            self._recorder.transfers.when(SOURCE, data, conclude, events=len(names))
        if self._grad:
            with_grad = [place for place, state in enumerate(states) if state in _CONTEXT or type(state) is Pending]
            gradients = [held[place][1].grad for place in with_grad]
            grads = computed(gradients)
            not_finite = _are_not_finite(gradients)

            def conclude_of_grads(known: list[Any], next_seq: NextSeq) -> None:
                for number, place in enumerate(with_grad):
                    fingerprint, state = known[number], ZERO if not_finite else known[number + len(with_grad)]
                    if fingerprint is not None:
                        self._tell(next_seq(), call, names[place], USED_GRAD, fingerprint, state)

            values = [*grads, *(states[place] for place in with_grad)]
            self._recorder.transfers.when(SOURCE, values, conclude_of_grads, events=len(with_grad))

    def _tell(self, seq: int, call: int, variable: str, attribute: str, value: int, state: str) -> None:
        self._recorder.reading(Reading(seq, call, variable, KIND, attribute, value, context=_CONTEXT[state]))


def _are_not_finite(gradients: Sequence[torch.Tensor]) -> bool:
    """Whether the gradients of an update are not finite, judged by one element of the first gradient that is here:
    clipping by a norm that is not finite spreads to every gradient."""
    dense = next((found for one in gradients if (found := local(one)) is not None and found.numel()), None)
    if dense is None or not lies_here(dense) or not dense.is_floating_point():
        return False
    return not math.isfinite(dense[(0,) * dense.dim()].item())


def _state_at_first(variable: Variable, tensor: torch.Tensor) -> str:
    if USED_DATA not in variable.read:
        variable.read[USED_DATA] = states_of([tensor])[0]
    return str(variable.read[USED_DATA])
