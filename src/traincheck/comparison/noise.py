"""How far a run is from repetitions of itself: the noise that a difference to another run has to exceed.

Some kernels add in another order in each run, so their results differ although nothing was changed. The bound of Note
[What rounding explains] does not know the kernel. So the noise is measured: the same program was recorded several
times.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from traincheck.comparison.difference import ANOTHER, GRADIENTS, NUMBERS, Difference
from traincheck.comparison.step_comparison import StepComparison
from traincheck.vocab.operations import Operation, StepOperations

EXCEEDS = 4.0
"""A difference has to exceed the largest one among repetitions by this factor, as a few do not show the worst."""


class OperationKey(NamedTuple):
    """Identifies an operation of a step: `number` counts those with equal phase, name and module."""

    phase: str
    name: str
    module: str
    number: int


Noise = dict[OperationKey, float]
"""The largest distances of results among repetitions, by operation. Those with equal bits have none."""


def is_noise(origin: Difference) -> bool:
    """Whether an origin among repetitions of a run is noise: an operation returns slightly other numbers."""
    return origin.kind in (NUMBERS, GRADIENTS) and origin.results <= ANOTHER


def noise_of(repetitions: Iterable[StepComparison]) -> Noise:
    """The noise of a step, from its comparison with each repetition."""
    noise: Noise = {}
    for compared in repetitions:
        keys = _keys(compared.a.operations)
        for (index, _), judged in zip(compared.pairs, compared.judged, strict=True):
            if judged.results > 0 and math.isfinite(judged.results):
                noise[keys[index]] = max(noise.get(keys[index], 0.0), judged.results)
    return noise


def explained_by(noise: Mapping[OperationKey, float], step: StepOperations) -> dict[int, float]:
    """How much noise explains of the distance of a value, by the number of the value."""
    keys = zip(step.operations, _keys(step.operations), strict=True)
    known = ((operation, noise[key]) for operation, key in keys if key in noise)
    return {value: EXCEEDS * distance for operation, distance in known for value in operation.outputs}


def _keys(operations: Iterable[Operation]) -> list[OperationKey]:
    seen: Counter[tuple[str, str, str]] = Counter()
    keys = []
    for operation in operations:
        key = operation.phase, operation.name, operation.module
        keys.append(OperationKey(*key, seen[key]))
        seen[key] += 1
    return keys
