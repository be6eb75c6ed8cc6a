"""Algorithms that divide by a root of squared gradients: Adagrad, Adadelta and RMSprop."""

from __future__ import annotations

from traincheck.sources.verification.updates.adam_family import moving_average
from traincheck.sources.verification.updates.inputs import PARAMETER, UpdateInputs
from traincheck.sources.verification.updates.rounding import Rounded


def adagrad(x: UpdateInputs) -> dict[str, Rounded]:
    """Duchi and others: Adaptive Subgradient Methods for Online Learning and Stochastic Optimization."""
    parameter, gradient = x.decayed(decoupled=False)
    total = x.state("sum", x.setting("initial_accumulator_value")) + gradient * gradient
    rate = x.on_device(x.setting("lr")) / (1 + (x.steps - 1) * x.setting("lr_decay"))
    return {PARAMETER: parameter - gradient / (total.sqrt() + x.setting("eps")) * rate, "sum": total}


def adadelta(x: UpdateInputs) -> dict[str, Rounded]:
    """Zeiler: ADADELTA: An Adaptive Learning Rate Method."""
    decay, eps = x.setting("rho"), x.setting("eps")
    parameter, gradient = x.decayed(decoupled=False)
    square = x.state("square_avg") * decay + gradient * gradient * (1 - decay)
    change = (x.state("acc_delta") + eps).sqrt() / (square + eps).sqrt() * gradient
    changes = x.state("acc_delta") * decay + change * change * (1 - decay)
    return {PARAMETER: parameter - change * x.setting("lr"), "square_avg": square, "acc_delta": changes}


def rmsprop(x: UpdateInputs) -> dict[str, Rounded]:
    """Tieleman and Hinton: Lecture 6.5 of Neural Networks for Machine Learning; centered as Graves does."""
    decay, momentum = x.setting("alpha"), x.setting("momentum")
    parameter, gradient = x.decayed(decoupled=False)
    square = x.state("square_avg") * decay + gradient * gradient * (1 - decay)
    results, variance = {"square_avg": square}, square
    if x.flag("centered"):
        average = results["grad_avg"] = moving_average(x.state("grad_avg"), gradient, 1 - decay)
        variance = square - average * average
    change = gradient / (variance.sqrt() + x.setting("eps"))
    if momentum > 0:
        change = results["momentum_buffer"] = x.state("momentum_buffer") * momentum + change
    return {PARAMETER: parameter - change * x.setting("lr"), **results}
