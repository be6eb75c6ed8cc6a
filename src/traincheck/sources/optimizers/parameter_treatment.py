"""Describes how a program treats its parameters: trainable or frozen, in an optimizer or not, the group's settings.

Note [What people tune]
A line describes the parameters of one name in all modules of a list, such as `layers.*.weight`. Learning rates are
relative to the highest one of the optimizer, and weight decay is on or off, so another rate or another strength of the
decay is the same treatment. So are another width, depth or class of optimizer. A schedule may move groups by different
factors. They depend on the length of the run, so a line says only whether another group has a larger one at first.

The state of an optimizer has a precision of its own: 8 bits to save memory, or 32 bits beside a parameter in bfloat16.
A line names the dtypes that differ from the parameter's. Only tensors with as many elements as the parameter count.

A model that outlives its optimizer is no longer trained, and when the optimizer goes is up to the garbage collector.
So parameters whose last optimizer is gone are not described.

Two parameters of one model that begin with the same random values were drawn with the same seed, or copied. Values are
read at the first description only, because training moves them apart. Models in different optimizers are not compared:
a program may train again in one process, with the same seed, while the first optimizer waits for the garbage collector.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from traincheck.sources.modules.variables import Variable, VariableCatalog
from traincheck.sources.tensors.deferred_values import DeferredValue, is_on_host
from traincheck.sources.tensors.reading import deferred_fingerprints, dtype_name, local_tensor
from traincheck.vocab.events import without_positions

NO_MODULE = "no module"
"""Stands for the model of parameters that only an optimizer holds."""

RATES = ("initial_lr", "lr")
"""The entries of a parameter group with its rate. A scheduler keeps the first one, and changes the second."""
DECAY = "weight_decay"
SAME_FACTOR = 1e-6
"""Factors of schedules that differ relatively by less are the same."""

MIN_ELEMENTS = 8
"""Smaller parameters may begin with the same values by chance."""


class ParameterTreatment:
    """Remembers which parameters began with the same values as another one of their model."""

    def __init__(self, catalog: VariableCatalog) -> None:
        self._catalog = catalog
        self._first_values: dict[str, int | None] = {}

    def first_values(self) -> dict[str, int | DeferredValue | None]:
        """The fingerprints of parameters that are new here, perhaps deferred; None for values that say nothing.

        Equal constants (biases of zero) say nothing, nor do small parameters. Call inside `hidden_from_modes()`.
        """
        new = [
            (variable.name, tensor) for variable, tensor in self._described() if variable.name not in self._first_values
        ]
        values: dict[str, int | DeferredValue | None] = dict.fromkeys(name for name, _ in new)
        large = [(name, tensor) for name, tensor in new if tensor.numel() >= MIN_ELEMENTS]
        for (name, tensor), value in zip(large, deferred_fingerprints([t for _, t in large]), strict=True):
            values[name] = _unless_constant(tensor, value)
        return values

    def keep_first_values(self, values: Mapping[str, int | None]) -> None:
        """Keep the values of `first_values`, once they are fetched."""
        self._first_values.update(values)

    def describe(self, groups_by_optimizer: Mapping[str, list[dict[str, Any]]]) -> dict[str, tuple[str, ...]]:
        """The lines about the parameters of each outermost module; `groups_by_optimizer` are the settings of its
        groups."""
        settings = _settings_by_parameter(self._catalog, groups_by_optimizer)
        described = [(*_place(variable), variable, tensor) for variable, tensor in self._described()]
        begun = [
            (model, self._first_values.get(variable.name), variable.holders) for model, _, variable, _ in described
        ]
        times, of_any = Counter(begun), Counter((model, value) for model, value, _ in begun)
        lines: dict[str, set[str]] = {}
        for model, path, variable, tensor in described:
            words = list(_words(variable, tensor, settings))
            value = self._first_values.get(variable.name)
            of_others = times[model, value, frozenset()]
            equal = times[model, value, variable.holders] + of_others if variable.holders else of_any[model, value]
            if value is not None and equal > 1:
                words.append("begins with the values of another one")
            lines.setdefault(model, set()).add(f"{path} is {', '.join(words)}")
        return {model: tuple(sorted(of_model)) for model, of_model in lines.items()}

    def _described(self) -> Iterator[tuple[Variable, torch.Tensor]]:
        return (
            (variable, tensor)
            for variable, tensor in self._catalog.living()
            if variable.holders or (variable.owned and not variable.released)
        )


def _unless_constant(tensor: torch.Tensor, value: int | DeferredValue | None) -> int | DeferredValue | None:
    """`value`, or None if the first elements of the tensor are all the same."""
    dense = local_tensor(tensor.detach())
    if dense is None or value is None or not dense.numel():
        return None
    first = dense.reshape(-1)[:MIN_ELEMENTS] if dense.is_contiguous() else dense.reshape(-1)
    constant = (first == first[0]).all()
    if is_on_host(dense) and not isinstance(value, DeferredValue):
        return None if bool(constant) else value
    numbers, interpret = value if isinstance(value, DeferredValue) else ((), lambda: value)
    return DeferredValue((constant, *numbers), lambda same, *fetched: None if same else interpret(*fetched))


def _place(variable: Variable) -> tuple[str, str]:
    """The outermost module of a parameter, and its path inside; equal for all copies of a model."""
    if not variable.owned:
        return NO_MODULE, "parameter"
    model, _, path = variable.name.partition(".")
    return model.partition("#")[0], without_positions(f".{path}")[1:]


def _words(variable: Variable, tensor: torch.Tensor, settings: Mapping[int, str]) -> Iterator[str]:
    yield "trainable" if tensor.requires_grad else "frozen"
    if tensor.dtype is not torch.float32:
        yield dtype_name(tensor.dtype)
    if len(variable.aliases) > 1:
        yield "shared"
    if not variable.holders:
        yield "in no optimizer"
    elif len(variable.holders) > 1:
        yield "in several optimizers"
    else:
        yield f"in an optimizer{settings.get(id(tensor), '')}"


def _settings_by_parameter(
    catalog: VariableCatalog, groups_by_optimizer: Mapping[str, list[dict[str, Any]]]
) -> dict[int, str]:
    """What is special about the group of each parameter, by the id of the parameter."""
    texts: dict[int, str] = {}
    for name, optimizer in catalog.optimizers():
        groups = groups_by_optimizer.get(name, [])
        rates = [_rate(group) for group in groups]
        highest = max((rate for rate in rates if rate is not None), default=0.0)
        factors = [_factor(group) for group in groups]
        largest = max((factor for factor in factors if factor is not None), default=0.0)
        states = getattr(optimizer, "state", {})  # a wrapper may have none
        for group, settings, rate, factor in zip(optimizer.param_groups, groups, rates, factors, strict=False):
            words = []
            if highest and rate is not None and rate != highest:
                words.append(f"rate x{rate / highest:.3g}")
            if factor is not None and factor < largest * (1 - SAME_FACTOR):
                words.append("lowered by its schedule")
            if DECAY in settings:
                words.append("decayed" if settings[DECAY] else "not decayed")
            for param in group["params"]:
                of_state = _state_precision(param, states.get(param))
                texts[id(param)] = f" ({', '.join([*words, *of_state])})" if words or of_state else ""
    return texts


def _state_precision(param: torch.Tensor, state: Any) -> list[str]:
    """The dtypes of the optimizer's state for a parameter that are not the parameter's, in words."""
    tensors = [value for value in state.values() if isinstance(value, torch.Tensor)] if isinstance(state, dict) else []
    dtypes = {value.dtype for value in tensors if value.numel() == param.numel() > 1} - {param.dtype}
    return [f"state in {' and '.join(sorted(map(dtype_name, dtypes)))}"] if dtypes else []


def _rate(settings: Mapping[str, Any]) -> float | None:
    rates = _rates(settings)
    return rates[0] if rates else None


def _factor(settings: Mapping[str, Any]) -> float | None:
    """The present rate as a multiple of the one that a schedule began with; None without a schedule."""
    rates = _rates(settings)
    return rates[1] / rates[0] if len(rates) == len(RATES) and rates[0] else None


def _rates(settings: Mapping[str, Any]) -> list[float]:
    return [float(settings[name]) for name in RATES if isinstance(settings.get(name), (int, float))]
