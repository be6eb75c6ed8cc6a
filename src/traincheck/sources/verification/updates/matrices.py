"""Algorithms whose update of an element depends on others of its matrix: Adafactor and Muon."""

from __future__ import annotations

import math
from typing import Any

import torch

from traincheck.sources.verification.updates.adam_family import moving_average
from traincheck.sources.verification.updates.inputs import PARAMETER, UpdateInputs
from traincheck.sources.verification.updates.rounding import Rounded


def adafactor(x: UpdateInputs) -> dict[str, Rounded]:
    """Shazeer and Stern: Adafactor: Adaptive Learning Rates with Sublinear Memory Cost, as torch documents it."""
    least_square, least_scale = x.pair("eps")
    if least_square is None:
        least_square = 2 * x.parameter.precision.unit
    rate, weight = x.setting("lr"), x.steps ** x.setting("beta2_decay")
    parameter, gradient = x.decayed(decoupled=True)
    scale = (x.parameter * x.parameter).mean().sqrt().maximum(least_scale)
    square, results = gradient * gradient, {}
    if square.value.dim() > 1:  # type: ignore[union-attr]  # a tensor
        rows = moving_average(_of_shape(x, "row_var", square, -1), square.mean(-1), weight)
        columns = moving_average(_of_shape(x, "col_var", square, -2), square.mean(-2), weight)
        results = {"row_var": rows, "col_var": columns}
        variance = rows * columns / rows.mean(-2).maximum(least_square)
    else:
        variance = results["variance"] = moving_average(x.state("variance"), square, weight)
    change = gradient / variance.maximum(least_square * least_square).sqrt()
    size = ((change * change).mean().sqrt() / x.setting("d")).maximum(1.0)
    alpha = scale * _minimum(rate, 1 / math.sqrt(x.steps))
    return {PARAMETER: parameter - change * (alpha / size), **results}


def muon(x: UpdateInputs) -> dict[str, Rounded]:
    """The momentum of Muon. Its orthogonalization in bfloat16 has no useful bound, so the parameter is not compared."""
    return {"momentum_buffer": moving_average(x.state("momentum_buffer"), x.gradient, 1 - x.setting("momentum"))}


def _of_shape(x: UpdateInputs, name: str, square: Rounded, dim: int) -> Rounded:
    if x.has_state(name):
        return x.state(name)
    value = square.value.select(dim, 0).unsqueeze(dim)  # type: ignore[union-attr]  # a tensor
    return Rounded(torch.zeros_like(value), 0.0, square.precision)


def _minimum(rate: Any, other: float) -> float:
    return min(rate.value if isinstance(rate, Rounded) else rate, other)
