"""Reports how large updates and gradients are, module by module, at some updates.

Note [Numbers without a scale]
All numbers are ratios, so they depend little on the width of a model or on the batch size:
* the change of the weights by an update, relative to the weights;
* the norm of the gradient, relative to that of all parameters of the model which the optimizer updates;
* the share of gradient elements that are not zero.
Modules at positions of a list count as one, so neither does the depth matter. Most programs lower the learning rate
towards the end of a run, and longer runs do so later. So the first number is what the update would be at the highest
rate so far.

Weights and zeros are read from some elements of each parameter, see spread_elements.py. TrainCheck copies them before
the update. Norms of gradients are those of all elements.

Note [Progress of a run]
Numbers change while a program trains, most of all in the beginning. So readers compare steps of about the same number.
A run that continues another one counts its steps from one again. TrainCheck skips an optimizer with a loaded state.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from traincheck.sources.gradients.gradients import Held
from traincheck.sources.optimizers.hyperparameters import SOURCE
from traincheck.sources.recording.recorder import Recorder
from traincheck.sources.tensors.deferred_values import DeferredValue, is_on_host
from traincheck.sources.tensors.device_transfers import NextSeq
from traincheck.sources.tensors.reading import hidden_from_modes
from traincheck.sources.tensors.spread_elements import MEASURED_STEPS, readable, spread_elements
from traincheck.vocab.bounded_cache import BoundedCache
from traincheck.vocab.demand import GRADIENT_SHARE, MAGNITUDES, MODEL, NONZERO_SHARE, UPDATE_RATIO
from traincheck.vocab.events import Reading, without_positions
from traincheck.vocab.facts import facts

MAX_MODULES = 64
"""Kinds of modules of a model that are reported."""
MAX_MODELS = 8
MIN_NONZERO = 16
"""Fewer gradient elements of those that are read say little about a share."""
LOWEST_RATE = 1 / 64
"""Below this share of the highest rate, rounding decides how large an update is."""

_CONTINUED = -1.0
"""Stands for the highest rate of an optimizer that continues another run."""

_CONTEXT = facts(kind=MODEL)

Place = tuple[str, str, torch.device]
"""A model, a kind of its modules, and a device."""


class _Sizes(NamedTuple):
    """Norms and counts of the parameters of one place."""

    elements: int
    gradient: float
    nonzero: float
    weights: float
    change: float


class _Weights(NamedTuple):
    """The parameters of one place, and a copy of some elements of these."""

    parameters: list[torch.Tensor]
    elements: torch.Tensor


class BeforeUpdate(NamedTuple):
    """What was read before an update. A delayed conclusion must not hold it, because it holds parameters."""

    places: dict[Place, _Weights]
    rate: float
    """The learning rate, relative to the highest one so far."""


class Magnitudes:
    """Reads numbers before and after updates."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._highest_rates: BoundedCache[str, float] = BoundedCache()  # by optimizer

    def read_before(
        self, name: str, optimizer: Any, held: Sequence[Held], rates: Collection[float]
    ) -> BeforeUpdate | None:
        """Read what an update may change; None if this is no step at which numbers are read. `rates` are the learning
        rates of the optimizer that is called `name`."""
        rate, highest = max(rates, default=0.0), self._highest_rates.get(name)
        if highest is None:
            initial = max(map(_initial_rate, optimizer.param_groups), default=0.0)
            highest = self._highest_rates.put(name, _CONTINUED if _continues(optimizer) else initial)
        if highest < rate and highest != _CONTINUED:
            highest = self._highest_rates.put(name, rate)
        if highest == _CONTINUED or self._recorder.steps.step not in MEASURED_STEPS:
            return None
        with hidden_from_modes():
            return BeforeUpdate(_read_weights(name, held), rate / highest if highest else 0.0)

    def read_after(self, before: BeforeUpdate, call: int) -> None:
        """Read the gradients, and the weights again, and report the numbers of each model. Call inside
        `hidden_from_modes()`. A closure computes gradients within the update, so they are not read before it."""
        places = list(before.places)
        values = [_sizes_of(weights) for weights in before.places.values()]
        rate = before.rate

        def conclude(fetched: list[_Sizes | None], next_seq: NextSeq) -> None:
            models: dict[str, list[tuple[str, _Sizes]]] = {}
            for (model, path, _), sizes in zip(places, fetched, strict=True):
                if sizes is not None:
                    models.setdefault(model, []).append((path, sizes))
            for model, of_model in sorted(models.items())[:MAX_MODELS]:
                lines = _lines(of_model, rate)
                if lines:
                    value = "\n".join(lines)
                    reading = Reading(next_seq(), call, model, MODEL, MAGNITUDES, value, context=_CONTEXT)
                    self._recorder.record_reading(reading)

        self._recorder.transfers.when_ready(SOURCE, values, conclude, events=MAX_MODELS)


def _continues(optimizer: Any) -> bool:
    """Whether an optimizer that has made no update here has a state, except for one that its constructor made."""
    states = optimizer.state.values()
    return any(len(state) and not _is_step_zero(state.get("step")) for state in states if hasattr(state, "get"))


def _is_step_zero(step: Any) -> bool:
    if isinstance(step, torch.Tensor):
        return bool(step.numel() == 1 and step.is_cpu and step.item() == 0)
    return isinstance(step, (int, float)) and step == 0


def _initial_rate(group: dict[str, Any]) -> float:
    """The rate that a scheduler starts from; 0 if there is none."""
    rate = group.get("initial_lr")
    return float(rate) if isinstance(rate, (int, float)) else 0.0


def _read_weights(name: str, held: Sequence[Held]) -> dict[Place, _Weights]:
    """Read the parameters that the optimizer `name` holds, place by place."""
    parameters: dict[Place, list[torch.Tensor]] = {}
    for variable, tensor in held:
        if variable.owned and name in variable.holders and tensor.requires_grad and readable(tensor) is not None:
            model, _, path = variable.name.partition(".")
            module = without_positions(f".{path}")[1:].rpartition(".")[0]
            parameters.setdefault((model, module, tensor.device), []).append(tensor)
    return {place: _Weights(tensors, spread_elements(tensors)) for place, tensors in parameters.items()}


def _sizes_of(weights: _Weights) -> _Sizes | DeferredValue | None:
    """The sizes of one place after the update, deferred if they lie on a device; None if they cannot be read."""
    before, after = weights.elements, _dense(weights.parameters)
    gradients = _dense([tensor.grad for tensor in weights.parameters if tensor.grad is not None])
    if not after or not gradients:
        return None
    now, graded = spread_elements(after), spread_elements(gradients)
    if now.shape != before.shape or not now.device == graded.device == before.device:
        return None
    norms = torch.stack([norm.to(torch.float32) for norm in torch._foreach_norm(gradients)])
    numbers = [
        torch.linalg.vector_norm(norms),
        torch.count_nonzero(graded),
        *torch._foreach_norm([before, now - before]),
    ]
    numbers = [number.to(torch.float32) for number in numbers]
    sizes = partial(_Sizes, graded.numel())
    return sizes(*torch.stack(numbers).tolist()) if is_on_host(before) else DeferredValue(tuple(numbers), sizes)


def _dense(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors as plain ones with memory; none at all if that is not possible."""
    dense = [plain for plain in map(readable, tensors) if plain is not None]
    return dense if len(dense) == len(tensors) else []


def _lines(places: Sequence[tuple[str, _Sizes]], rate: float) -> list[str]:
    """The numbers of one model: what is measured, the number, and the kind of module."""
    modules: dict[str, list[_Sizes]] = {}
    for path, sizes in places:
        modules.setdefault(path, []).append(sizes)
    whole = math.hypot(*(sizes.gradient for _, sizes in places))
    lines = []
    for path, several in sorted(modules.items())[:MAX_MODULES]:
        weights = math.hypot(*(sizes.weights for sizes in several))
        change = math.hypot(*(sizes.change for sizes in several)) / rate if rate >= LOWEST_RATE else 0.0
        gradient = math.hypot(*(sizes.gradient for sizes in several))
        nonzero, elements = sum(sizes.nonzero for sizes in several), sum(sizes.elements for sizes in several)
        for quantity, part, total in (
            (UPDATE_RATIO, change, weights),
            (GRADIENT_SHARE, gradient if len(modules) > 1 else 0.0, whole),
            (NONZERO_SHARE, nonzero if nonzero >= MIN_NONZERO else 0.0, elements),
        ):
            if part > 0 and total > 0 and math.isfinite(part / total):
                lines.append(f"{quantity} {part / total:.3g} {path}")
    return lines
