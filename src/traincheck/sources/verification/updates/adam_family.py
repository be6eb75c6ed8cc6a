"""Adam and its variants: Adam, AdamW, Adamax, NAdam and RAdam, as `torch.optim` documents them."""

from __future__ import annotations

import math

import torch

from traincheck.sources.verification.updates.inputs import PARAMETER, UpdateInputs
from traincheck.sources.verification.updates.rounding import Rounded


def moving_average(old: Rounded, new: Rounded, weight: Rounded | float) -> Rounded:
    """The moving average in which the new value has this weight."""
    return old + (new - old) * weight


def adam(x: UpdateInputs) -> dict[str, Rounded]:
    """Kingma and Ba: Adam: A Method for Stochastic Optimization; with AMSGrad, and weight decay of either kind."""
    return _adam(x, decoupled=x.flag("decoupled_weight_decay"))


def adamw(x: UpdateInputs) -> dict[str, Rounded]:
    """Loshchilov and Hutter: Decoupled Weight Decay Regularization."""
    return _adam(x, decoupled=True)


def _adam(x: UpdateInputs, *, decoupled: bool) -> dict[str, Rounded]:
    beta1, beta2 = x.pair("betas")
    parameter, gradient = x.decayed(decoupled=decoupled)
    average = moving_average(x.state("exp_avg"), gradient, 1 - beta1)
    square = x.state("exp_avg_sq") * beta2 + gradient * gradient * (1 - beta2)
    results = {"exp_avg": average, "exp_avg_sq": square}
    if x.flag("amsgrad"):
        square = results["max_exp_avg_sq"] = x.state("max_exp_avg_sq").maximum(square)
    divisor = square.sqrt() / x.bias_correction(beta2).sqrt() + x.setting("eps")
    rate = x.on_device(x.setting("lr")) / x.bias_correction(beta1)
    return {PARAMETER: parameter - average / divisor * rate, **results}


def adamax(x: UpdateInputs) -> dict[str, Rounded]:
    """Adam with the infinity norm."""
    beta1, beta2 = x.pair("betas")
    parameter, gradient = x.decayed(decoupled=False)
    average = moving_average(x.state("exp_avg"), gradient, 1 - beta1)
    norm = (x.state("exp_inf") * beta2).maximum(abs(gradient) + x.setting("eps"))
    rate = x.on_device(x.setting("lr")) / x.bias_correction(beta1)
    return {PARAMETER: parameter - average / norm * rate, "exp_avg": average, "exp_inf": norm}


def nadam(x: UpdateInputs) -> dict[str, Rounded]:
    """Dozat: Incorporating Nesterov Momentum into Adam."""
    beta1, beta2 = x.pair("betas")
    rate = x.on_device(x.setting("lr"))
    parameter, gradient = x.decayed(decoupled=x.flag("decoupled_weight_decay"))
    momentum, momentum_next = (
        (1 - x.on_device(0.96) ** (steps * x.setting("momentum_decay")) * 0.5) * beta1
        for steps in (x.steps, x.steps + 1)
    )
    product = x.number_in_state("mu_product", 1.0) * momentum
    average = moving_average(x.state("exp_avg"), gradient, 1 - beta1)
    square = x.state("exp_avg_sq") * beta2 + gradient * gradient * (1 - beta2)
    divisor = (square / x.bias_correction(beta2)).sqrt() + x.setting("eps")
    of_gradient = gradient * (rate * (1 - momentum) / (1 - product)) / divisor
    of_average = average * (rate * momentum_next / (1 - product * momentum_next)) / divisor
    return {
        PARAMETER: parameter - of_gradient - of_average,
        "exp_avg": average,
        "exp_avg_sq": square,
        "mu_product": product,
    }


def radam(x: UpdateInputs) -> dict[str, Rounded]:
    """Liu and others: On the Variance of the Adaptive Learning Rate and Beyond."""
    beta1, beta2 = x.pair("betas")
    parameter, gradient = x.decayed(decoupled=x.flag("decoupled_weight_decay"))
    average = moving_average(x.state("exp_avg"), gradient, 1 - beta1)
    square = x.state("exp_avg_sq") * beta2 + gradient * gradient * (1 - beta2)
    correction = x.bias_correction(beta2)
    longest = 2 / (1 - x.on_device(beta2)) - 1
    length = longest - x.on_device(beta2) ** x.steps * (2 * x.steps) / correction
    change = average / x.bias_correction(beta1) * x.on_device(x.setting("lr"))
    if abs(length.value - 5) <= length.error:  # rounding decides whether this update is rectified
        change = Rounded(change.value, torch.full_like(change.value, math.inf), change.precision)
    elif length.value > 5:
        rectified = (length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)
        change = change * (rectified.sqrt() * correction.sqrt()) / (square.sqrt() + x.setting("eps"))
    return {PARAMETER: parameter - change, "exp_avg": average, "exp_avg_sq": square}
