"""Readings of the batch that a model is trained on, by fingerprint, in a job of several ranks.

Ranks are compared by them (see relations/batches.py). Since the same mistake shows in every step, a sample of fixed
steps is read. What is frozen in the model, which no update tells of, is read once and told with each batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import torch

from traincheck.sources.recorder import Recorder
from traincheck.sources.replica_readings import several_ranks
from traincheck.sources.summaries import MOST_INSIDE, in_schedule
from traincheck.sources.tensors import computed, fingerprints, unseen
from traincheck.sources.transfers import NextSeq
from traincheck.sources.values import readable
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import Reading
from traincheck.vocab.facts import facts

SOURCE = "modules"
KIND, BATCH, FROZEN = "module", "batch", "frozen"

LEAST_ELEMENTS = 8
"""A batch of fewer numbers may well be the same on two ranks by chance."""

_CONTEXT = facts(kind=KIND)


class BatchReadings:
    """Takes the readings; there are none where there is no other rank."""

    def __init__(self, demand: Demand, recorder: Recorder) -> None:
        self._recorder = recorder
        self._frozen: dict[str, int] = {}
        self.ask(demand)

    def ask(self, demand: Demand) -> None:
        """From now on take the readings that `demand` asks for."""
        self._wanted = demand.wants_reading(KIND, BATCH)

    @property
    def wanted(self) -> bool:
        """Whether what goes into the model is to be read now."""
        coming = self._recorder.steps.coming
        return self._wanted and in_schedule(coming) and several_ranks()

    def read(
        self, call: int, name: str, model: torch.nn.Module, args: Sequence[Any], keywords: Mapping[str, Any]
    ) -> None:
        """Read all tensors that `call` gives the model, as one value; nothing where one cannot be read."""
        with unseen():
            batch = list(_tensors((*args, *keywords.values())))
            if sum(tensor.numel() for tensor in batch) < LEAST_ELEMENTS or not all(map(readable, batch)):
                return
            values = computed(batch)
            frozen = self._frozen.get(name)
            if frozen is None:
                parameters = [parameter for parameter in model.parameters() if not parameter.requires_grad]
                frozen = self._frozen[name] = _together(fingerprints(parameters))

            def conclude(known: list[int | None], next_seq: NextSeq) -> None:
                if None not in known:
                    for what, value in ((BATCH, _together(known)), (FROZEN, frozen)):
                        self._recorder.reading(Reading(next_seq(), call, name, KIND, what, value, context=_CONTEXT))

            self._recorder.transfers.when(SOURCE, values, conclude, events=2)


def _together(values: Sequence[int | None]) -> int:
    """Several fingerprints as one number; it is the same in each process."""
    return hash(tuple(value or 0 for value in values)) & 0x7FFFFFFFFFFFFFFF


def _tensors(values: Sequence[Any]) -> Iterator[torch.Tensor]:
    """The tensors among `values`, also in a list, a tuple or a dict."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif type(value) in (list, tuple, dict):
            inner = value.values() if type(value) is dict else value
            yield from (item for item in islice(inner, MOST_INSIDE) if isinstance(item, torch.Tensor))
