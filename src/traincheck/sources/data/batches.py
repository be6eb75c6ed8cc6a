"""Fingerprints the batch that a model trains on, so that ranks of a job can be compared.

relations/consistent/batches.py compares the readings. The same mistake shows in every step, so TrainCheck reads only a
fixed sample of steps. Frozen parameters of the model never appear in updates; they are read once and recorded with each
batch. Each reading also says whether the model gathers its parameters from all ranks (FSDP), so that each rank computes
with the whole model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import torch

from traincheck.sources.distributed.replica_readings import several_ranks
from traincheck.sources.recording.recorder import Recorder
from traincheck.sources.tensors.call_summaries import MAX_NESTED_TENSORS, in_schedule
from traincheck.sources.tensors.device_transfers import NextSeq
from traincheck.sources.tensors.reading import deferred_fingerprints, fingerprints, hidden_from_modes
from traincheck.sources.tensors.value_facts import readable
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import Reading
from traincheck.vocab.facts import Facts, facts

SOURCE = "modules"
KIND, BATCH, FROZEN = "module", "batch", "frozen"

MIN_ELEMENTS = 8
"""Smaller batches may be equal on two ranks by chance."""

_CONTEXT = facts(kind=KIND)
_OF_GATHERED = facts(kind=KIND, gathered=True)


class BatchReadings:
    """Takes the readings, in jobs of several ranks."""

    def __init__(self, demand: Demand, recorder: Recorder) -> None:
        self._recorder = recorder
        self._models: dict[str, tuple[int, Facts]] = {}  # by model: frozen parameters, context
        self.set_demand(demand)

    def set_demand(self, demand: Demand) -> None:
        """Take the readings that `demand` requests from now on."""
        self._enabled = demand.takes_reading(KIND, BATCH)

    @property
    def should_read(self) -> bool:
        """Whether to read the input of the model in this step."""
        coming = self._recorder.steps.window_step
        return self._enabled and in_schedule(coming) and several_ranks()

    def read(
        self, call: int, name: str, model: torch.nn.Module, args: Sequence[Any], keywords: Mapping[str, Any]
    ) -> None:
        """Read all tensors passed to the model in `call`, as one value; skip calls with an unreadable tensor."""
        with hidden_from_modes():
            batch = list(_tensors((*args, *keywords.values())))
            if sum(tensor.numel() for tensor in batch) < MIN_ELEMENTS or not all(map(readable, batch)):
                return
            values = deferred_fingerprints(batch)
            if name not in self._models:
                parameters = [parameter for parameter in model.parameters() if not parameter.requires_grad]
                context = _OF_GATHERED if _is_gathered(model) else _CONTEXT
                self._models[name] = _combined(fingerprints(parameters)), context
            frozen, context = self._models[name]

            def conclude(resolved: list[int | None], next_seq: NextSeq) -> None:
                if None not in resolved:
                    for attribute, value in ((BATCH, _combined(resolved)), (FROZEN, frozen)):
                        self._recorder.record_reading(
                            Reading(next_seq(), call, name, KIND, attribute, value, context=context)
                        )

            self._recorder.transfers.when_ready(SOURCE, values, conclude, events=2)


def _is_gathered(model: torch.nn.Module) -> bool:
    """Return whether FSDP gathers all parameters of a model from all ranks.

    On a mesh of several dimensions, ranks may share the model as well (tensor parallelism).
    """
    names = {cls.__name__ for cls in type(model).__mro__ if cls.__module__.startswith("torch.distributed.")}
    ranks = torch.distributed.get_world_size()
    if "FullyShardedDataParallel" in names:
        return bool(model.process_group.size() == ranks)
    meshes = [getattr(parameter, "device_mesh", None) for parameter in model.parameters()]
    whole = (mesh is not None and mesh.ndim == 1 and mesh.size() == ranks for mesh in meshes)
    return "FSDPModule" in names and all(whole)


def _combined(values: Sequence[int | None]) -> int:
    """Combine several fingerprints into one number, the same in each process."""
    return hash(tuple(value or 0 for value in values)) & 0x7FFFFFFFFFFFFFFF


def _tensors(values: Sequence[Any]) -> Iterator[torch.Tensor]:
    """Yield the tensors among `values`, including those in a list, a tuple or a dict."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif type(value) in (list, tuple, dict):
            inner = value.values() if type(value) is dict else value
            yield from (item for item in islice(inner, MAX_NESTED_TENSORS) if isinstance(item, torch.Tensor))
