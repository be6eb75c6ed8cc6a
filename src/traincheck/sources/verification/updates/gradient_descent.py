"""Algorithms that follow the gradient or its sign: SGD, ASGD, Rprop and Lion."""

from __future__ import annotations

from traincheck.sources.verification.updates.adam_family import moving_average
from traincheck.sources.verification.updates.inputs import PARAMETER, UpdateInputs
from traincheck.sources.verification.updates.rounding import SINGLE, Rounded


def sgd(x: UpdateInputs) -> dict[str, Rounded]:
    """Gradient descent with momentum, as `torch.optim.SGD` documents it."""
    momentum = x.setting("momentum")
    parameter, gradient = x.decayed(decoupled=False)
    results = {}
    if momentum != 0:
        buffer = gradient
        if x.has_state("momentum_buffer"):
            buffer = x.state("momentum_buffer") * momentum + gradient * (1 - x.setting("dampening"))
        results["momentum_buffer"] = buffer
        gradient = gradient + buffer * momentum if x.flag("nesterov") else buffer
    return {PARAMETER: parameter - gradient * x.setting("lr"), **results}


def asgd(x: UpdateInputs) -> dict[str, Rounded]:
    """Polyak and Juditsky: Acceleration of Stochastic Approximation by Averaging."""
    decay, rate = x.setting("lambd"), x.setting("lr")
    parameter, gradient = x.decayed(decoupled=False)
    rate_now, weight = x.number_in_state("eta", _float(rate)), x.number_in_state("mu", 1.0)
    new = parameter * (1 - rate_now * decay) - gradient * rate_now
    results = {PARAMETER: new, "ax": moving_average(x.state("ax"), new, weight)}
    rate, weight = _single(rate), _single(1 / max(1.0, x.steps - x.setting("t0")))
    return {**results, "eta": rate / (rate * decay * x.steps + 1) ** x.setting("alpha"), "mu": weight}


def rprop(x: UpdateInputs) -> dict[str, Rounded]:
    """Riedmiller and Braun: A Direct Adaptive Method for Faster Backpropagation Learning."""
    shrinks, grows = x.pair("etas")
    least, most = x.pair("step_sizes")
    direction = (x.gradient * x.state("prev")).sign()
    # A product with zero is exact; the error is that of an underflow.
    direction = direction.where((x.gradient.value != 0) & (x.state("prev").value != 0), 0.0)
    old = x.state("step_size", _float(x.setting("lr")))
    factor = (old * grows).where(direction.value > 0, (old * shrinks).where(direction.value < 0, old))
    size = Rounded(factor.value, factor.error + direction.error, factor.precision).clamp(least, most)
    kept = Rounded(x.gradient.value, direction.error, x.gradient.precision).where(direction.value >= 0, 0.0)
    kept = Rounded(kept.value, direction.error, kept.precision)
    step = Rounded(kept.value.sign(), direction.error, kept.precision)  # type: ignore[union-attr]  # a tensor
    return {PARAMETER: x.parameter - step * size, "prev": kept, "step_size": size}


def lion(x: UpdateInputs) -> dict[str, Rounded]:
    """Chen and others: Symbolic Discovery of Optimization Algorithms."""
    beta1, beta2 = x.pair("betas")
    parameter, gradient = x.decayed(decoupled=True)
    average = x.state("exp_avg")
    step = moving_average(average, gradient, 1 - beta1).sign()
    return {PARAMETER: parameter - step * x.setting("lr"), "exp_avg": moving_average(average, gradient, 1 - beta2)}


def _float(number: Rounded | float) -> float:
    return float(number.value) if isinstance(number, Rounded) else float(number)


def _single(number: Rounded | float) -> Rounded:
    """A number that an optimizer computes or keeps in single precision."""
    return Rounded(_float(number), abs(_float(number)) * SINGLE.unit, SINGLE)
