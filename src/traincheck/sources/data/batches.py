"""Fingerprints the batch that a model trains on, so that ranks of a job and the steps of one rank can be compared.

repeated_batches.py in relations/consistent/ compares the steps of one rank, as long as batches are small, and
ranks/batches.py there compares ranks. The same mistake shows in every step, so TrainCheck reads only a fixed sample of
steps for it. Frozen parameters of the model never appear in updates; they are read once and recorded with each batch.
Each reading also says whether the model gathers its parameters from all ranks (FSDP), so that each rank computes with
the whole model, or computes with parts of them (tensor parallelism with DTensor).
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
KIND, BATCH, FROZEN, CONTENT = "module", "batch", "frozen", "content"

MIN_ELEMENTS = 8
"""Smaller batches may be equal on two ranks, or in two steps, by chance."""
MAX_ELEMENTS = 4_000_000
"""Larger batches cost too much to read in each step."""

_CONTEXT = facts(kind=KIND)
_OF_GATHERED, _OF_PARTS = facts(kind=KIND, gathered=True), facts(kind=KIND, gathered=False)


class BatchReadings:
    """Takes the readings: those of one rank in each step, and those that ranks compare in a sample of steps."""

    def __init__(self, demand: Demand, recorder: Recorder) -> None:
        self._recorder = recorder
        self._models: dict[str, tuple[int, Facts]] = {}  # by model: frozen parameters, context
        self._largest: dict[str, int] = {}  # by model: elements of the largest batch
        self.set_demand(demand)

    def set_demand(self, demand: Demand) -> None:
        """Take the readings that `demand` requests from now on."""
        self._compares_ranks = demand.takes_reading(KIND, BATCH)
        self._compares_steps = demand.takes_reading(KIND, CONTENT)

    @property
    def should_read(self) -> bool:
        """Whether to read the input of the model in this step."""
        return (self._compares_steps or self._reads_for_ranks()) and not torch.jit.is_tracing()

    def _reads_for_ranks(self) -> bool:
        return self._compares_ranks and in_schedule(self._recorder.steps.window_step) and several_ranks()

    def read(
        self, call: int, name: str, model: torch.nn.Module, args: Sequence[Any], keywords: Mapping[str, Any]
    ) -> None:
        """Read all tensors passed to the model in `call`, as one value; skip calls with an unreadable tensor."""
        with hidden_from_modes():
            batch = list(tensors_of_call((*args, *keywords.values())))
            elements = sum(tensor.numel() for tensor in batch)
            largest = self._largest[name] = max(elements, self._largest.get(name, 0))
            # The last batch of a pass may hold so few samples that it comes again by chance.
            attributes = [CONTENT] if self._compares_steps and largest // 2 <= elements <= MAX_ELEMENTS else []
            if self._reads_for_ranks():
                attributes += [BATCH, FROZEN]
            if elements < MIN_ELEMENTS or not attributes or not all(map(readable, batch)):
                return
            values = deferred_fingerprints(batch)
            frozen, context = self._model(name, model) if FROZEN in attributes else (0, _CONTEXT)

            def conclude(resolved: list[int | None], next_seq: NextSeq) -> None:
                if None not in resolved:
                    content = _combined(resolved)
                    for attribute in attributes:
                        value = frozen if attribute == FROZEN else content
                        self._recorder.record_reading(
                            Reading(next_seq(), call, name, KIND, attribute, value, context=context)
                        )

            self._recorder.transfers.when_ready(SOURCE, values, conclude, events=len(attributes))

    def _model(self, name: str, model: torch.nn.Module) -> tuple[int, Facts]:
        """The fingerprint of the frozen parameters of a model, and the context of its readings."""
        if name not in self._models:
            parameters = [parameter for parameter in model.parameters() if not parameter.requires_grad]
            context = _OF_GATHERED if _is_gathered(model) else _OF_PARTS if _has_parts(model) else _CONTEXT
            self._models[name] = _combined(fingerprints(parameters)), context
        return self._models[name]


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


def _has_parts(model: torch.nn.Module) -> bool:
    """Return whether the model holds parts of its parameters."""
    placements = [getattr(parameter, "placements", ()) for parameter in model.parameters()]
    return any(not placed.is_replicate() for places in placements for placed in places)


def _combined(values: Sequence[int | None]) -> int:
    """Combine several fingerprints into one number, the same in each process."""
    return hash(tuple(value or 0 for value in values)) & 0x7FFFFFFFFFFFFFFF


def tensors_of_call(values: Sequence[Any]) -> Iterator[torch.Tensor]:
    """Yield the tensors among `values`, including those in a list, a tuple or a dict."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif type(value) in (list, tuple, dict):
            inner = value.values() if type(value) is dict else value
            yield from (item for item in islice(inner, MAX_NESTED_TENSORS) if isinstance(item, torch.Tensor))
