"""Describes how a program treats its parameters: trainable or frozen, in an optimizer or not, the group's settings.

Note [What people tune]
A line describes the parameters of one name in all modules of a list, such as `layers.*.weight`. Learning rates are
relative to the highest one of the optimizer, and weight decay is on or off, so another rate or another strength of the
decay is the same treatment. So are another width, depth or class of optimizer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from traincheck.sources.modules.variables import Variable, VariableCatalog
from traincheck.vocab.events import without_positions

NO_MODULE = "no module"
"""Stands for the model of parameters that only an optimizer holds."""

RATES = ("initial_lr", "lr")
"""The entries of a parameter group with its rate. A scheduler keeps the first one, and changes the second."""
DECAY = "weight_decay"


def describe(
    catalog: VariableCatalog, groups_by_optimizer: Mapping[str, list[dict[str, Any]]]
) -> dict[str, tuple[str, ...]]:
    """The lines about the parameters of each outermost module; `groups_by_optimizer` are the settings of its groups."""
    settings = _settings_by_parameter(catalog, groups_by_optimizer)
    lines: dict[str, set[str]] = {}
    for variable, tensor in catalog.living():
        if variable.owned or variable.holders:
            model, path = _place(variable)
            lines.setdefault(model, set()).add(f"{path} is {', '.join(_words(variable, tensor, settings))}")
    return {model: tuple(sorted(of_model)) for model, of_model in lines.items()}


def _place(variable: Variable) -> tuple[str, str]:
    """The outermost module of a parameter, and its path inside; equal for all copies of a model."""
    if not variable.owned:
        return NO_MODULE, "parameter"
    model, _, path = variable.name.partition(".")
    return model.partition("#")[0], without_positions(f".{path}")[1:]


def _words(variable: Variable, tensor: torch.Tensor, settings: Mapping[int, str]) -> Iterator[str]:
    yield "trainable" if tensor.requires_grad else "frozen"
    if tensor.dtype is not torch.float32:
        yield str(tensor.dtype).removeprefix("torch.")
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
        for group, settings, rate in zip(optimizer.param_groups, groups, rates, strict=False):
            words = []
            if highest and rate is not None and rate != highest:
                words.append(f"rate x{rate / highest:.3g}")
            if DECAY in settings:
                words.append("decayed" if settings[DECAY] else "not decayed")
            for param in group["params"]:
                texts[id(param)] = f" ({', '.join(words)})" if words else ""
    return texts


def _rate(settings: Mapping[str, Any]) -> float | None:
    rates = [settings[name] for name in RATES if isinstance(settings.get(name), (int, float))]
    return float(rates[0]) if rates else None
