"""Source `buffers`: reads the buffers of a training model, so that TrainCheck can compare them across ranks.

relations/consistent/ranks/buffers.py compares the ranks. A wrapper that broadcasts buffers does so before it calls the
module inside, and each rank's own batch changes them during the call. So TrainCheck reads buffers at the first call of
their module in a step.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from traincheck.sources.distributed.replica_readings import several_ranks
from traincheck.sources.modules.module_calls import ModuleCalls
from traincheck.sources.modules.variables import VariableCatalog
from traincheck.sources.recording.recorder import Recorder
from traincheck.sources.tensors.device_transfers import NextSeq
from traincheck.sources.tensors.reading import deferred_fingerprints, hidden_from_modes
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import MODULE, NO_CALL, Reading
from traincheck.vocab.facts import facts

KIND, USED_DATA = "buffer", "used_data"

_CONTEXT = facts(kind=KIND)

_traced = torch._C._get_tracing_state


class BufferSource:
    """Fingerprints the buffers of each module at its first training call in a window.

    It attaches after the source `modules`, because its readings belong to calls of that source.
    """

    name = "buffers"

    def __init__(self, calls: ModuleCalls, catalog: VariableCatalog) -> None:
        self._calls = calls
        self._catalog = catalog
        self._window = -1
        self._read_modules: set[int] = set()

    def offers(self) -> str | None:
        return None

    def attach(self, demand: Demand, recorder: Recorder) -> ExitStack:
        self._recorder = recorder
        if demand.takes_reading(KIND, USED_DATA):
            self._calls.add_listener(recorder.guarded(self.name, self._read_buffers))
        return ExitStack()

    def _read_buffers(self, module: nn.Module, args: Any) -> None:
        if not module._buffers or not module.training or not torch.is_grad_enabled() or not several_ranks():
            return
        if self._window != self._recorder.window_index:
            self._window = self._recorder.window_index
            self._read_modules.clear()
        if id(module) in self._read_modules or _traced() is not None:
            return
        self._read_modules.add(id(module))
        buffers = {name: buffer for name, buffer in module._buffers.items() if buffer is not None}
        names = [*buffers]
        owner = self._catalog.module_name(module)
        enclosing = self._recorder.innermost_call()
        call = enclosing.seq if enclosing is not None and enclosing.kind == MODULE else NO_CALL

        def conclude(values: list[int | None], next_seq: NextSeq) -> None:
            for name, value in zip(names, values, strict=True):
                if value is not None:
                    reading = Reading(next_seq(), call, f"{owner}.{name}", KIND, USED_DATA, value, context=_CONTEXT)
                    self._recorder.record_reading(reading)

        with hidden_from_modes():
            values = deferred_fingerprints([*buffers.values()])
            self._recorder.transfers.when_ready(self.name, values, conclude, events=len(names))
