"""Reports how large the outputs of modules are: their root mean square, at some steps.

Only modules with parameters of their own count, because others follow from them. Modules at positions of a list count
as one. See Note [Numbers without a scale] in sources/optimizers/magnitudes.py for the other numbers.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from traincheck.sources.recording.recorder import Recorder
from traincheck.sources.tensors.deferred_values import DeferredValue, is_on_host
from traincheck.sources.tensors.device_transfers import NextSeq
from traincheck.sources.tensors.reading import hidden_from_modes
from traincheck.sources.tensors.spread_elements import readable, spread_elements
from traincheck.vocab.demand import MAGNITUDES, MODEL, OUTPUT_SIZE
from traincheck.vocab.events import Reading, without_positions
from traincheck.vocab.facts import facts

SOURCE = "modules"

MAX_CALLS = 256
"""Calls of modules that are measured in one call of a model."""

MIN_ELEMENTS = 64
"""Smaller outputs, such as one number for each sample, are often large or small by chance."""

_CONTEXT = facts(kind=MODEL)


class OutputSizes:
    """Measures the modules that one call of a model calls, and takes one reading at its end."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._sizes: list[tuple[str, float | DeferredValue]] = []

    def add(self, module: str, output: Any) -> None:
        """Measure the output of a module, if that is a tensor."""
        if len(self._sizes) >= MAX_CALLS or not isinstance(output, torch.Tensor) or torch.jit.is_tracing():
            return
        with hidden_from_modes():
            dense = readable(output)
            if dense is None or dense.numel() < MIN_ELEMENTS:
                return
            elements = spread_elements([dense])
            size = torch.linalg.vector_norm(elements) / math.sqrt(elements.numel())
            self._sizes.append((module, float(size) if is_on_host(dense) else DeferredValue((size,), float)))

    def report(self, call: int, model: str) -> None:
        """Report the outputs in `call` of an outermost module."""
        sizes, self._sizes = self._sizes, []
        paths = [without_positions(module.removeprefix(model))[1:] for module, _ in sizes]

        def conclude(fetched: list[float], next_seq: NextSeq) -> None:
            by_path: dict[str, list[float]] = {}
            for path, size in zip(paths, fetched, strict=True):
                by_path.setdefault(path, []).append(size)
            means = {path: math.hypot(*several) / math.sqrt(len(several)) for path, several in sorted(by_path.items())}
            lines = [f"{OUTPUT_SIZE} {mean:.3g} {path}" for path, mean in means.items() if 0 < mean < math.inf]
            if lines:
                text = "\n".join(lines)
                reading = Reading(next_seq(), call, model, MODEL, MAGNITUDES, text, context=_CONTEXT)
                self._recorder.record_reading(reading)

        with hidden_from_modes():
            self._recorder.transfers.when_ready(SOURCE, [size for _, size in sizes], conclude, events=1)
