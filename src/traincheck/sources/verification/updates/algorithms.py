"""The documented algorithms by the optimizer that states them, and those that another optimizer may follow."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from traincheck.sources.verification.updates.adam_family import adam, adamax, adamw, nadam, radam
from traincheck.sources.verification.updates.bitsandbytes_optimizers import TOLERANCE, stated_algorithm
from traincheck.sources.verification.updates.gradient_descent import asgd, lion, rprop, sgd
from traincheck.sources.verification.updates.inputs import UpdateInputs
from traincheck.sources.verification.updates.matrices import adafactor, muon
from traincheck.sources.verification.updates.rounding import Rounded
from traincheck.sources.verification.updates.squared_gradients import adadelta, adagrad, rmsprop


class Algorithm(NamedTuple):
    """An algorithm of an optimizer. `update` gives the parameter and the state after an update, by name.

    Unless it uses `whole_tensors`, it treats each element by itself. A result may be off by rounding, and by the share
    `tolerance` of the element's change.
    """

    name: str
    update: Callable[[UpdateInputs], dict[str, Rounded]]
    whole_tensors: bool = False
    tolerance: float = 0.0


SGD, ADAM, ADAMW, LION = (
    Algorithm("SGD", sgd),
    Algorithm("Adam", adam),
    Algorithm("AdamW", adamw),
    Algorithm("Lion", lion),
)

_OF_TORCH = {
    algorithm.name: algorithm
    for algorithm in (
        SGD,
        ADAM,
        ADAMW,
        Algorithm("Adamax", adamax),
        Algorithm("NAdam", nadam),
        Algorithm("RAdam", radam),
        Algorithm("Adagrad", adagrad),
        Algorithm("Adadelta", adadelta),
        Algorithm("RMSprop", rmsprop),
        Algorithm("Rprop", rprop),
        Algorithm("ASGD", asgd),
        Algorithm("Adafactor", adafactor, whole_tensors=True),
        Algorithm("Muon", muon, whole_tensors=True),
    )
}
"""By the name of the class in `torch.optim`."""

CANDIDATES = (ADAMW, ADAM, SGD, LION, *(_OF_TORCH[name] for name in ("RMSprop", "Adagrad", "Adadelta", "Adamax")))
"""Algorithms that an optimizer of another library may follow, in the order in which they are tried."""


_OF_BITSANDBYTES = {algorithm.name: algorithm._replace(tolerance=TOLERANCE) for algorithm in (ADAMW, LION)}


def documented(optimizer: torch.optim.Optimizer) -> Algorithm | None:
    """The algorithm that torch or bitsandbytes documents for this optimizer; None if its `step` is not theirs."""
    step: Any = inspect.unwrap(type(optimizer).step)
    if stated := stated_algorithm(optimizer, step):
        return _OF_BITSANDBYTES[stated]
    algorithm = _OF_TORCH.get(type(optimizer).__name__)
    if algorithm is None or type(optimizer) is not getattr(torch.optim, algorithm.name, None):
        return None
    return algorithm if step.__module__.startswith("torch.optim.") else None
