"""The inputs of an update of one parameter, in the form in which the algorithms read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from traincheck.sources.verification.updates.rounding import DOUBLE, SINGLE, Rounded, precision_of

PARAMETER = ""
"""The name of the parameter among the results of an algorithm; the others are names of optimizer state."""

SCALARS_ON_DEVICE = ("capturable", "fused", "differentiable")
"""Options with which optimizers compute with numbers in single precision, not in Python."""


class UpdateInputs:
    """The parameter, its gradient, the optimizer's state before the update and its settings.

    Raises KeyError where an algorithm asks for a setting that the optimizer does not have.
    """

    def __init__(
        self,
        parameter: torch.Tensor,
        gradient: torch.Tensor,
        state: Mapping[str, Any],
        settings: Mapping[str, Any],
        *,
        gradient_scale: float | None = None,
    ) -> None:
        self._state, self._settings = state, settings
        on_device = any(settings.get(option) for option in SCALARS_ON_DEVICE)
        self._scalars = SINGLE if on_device else DOUBLE
        self.parameter = _exact(parameter)
        scaled = _exact(gradient) if gradient_scale is None else _exact(gradient) / gradient_scale
        self.gradient = -scaled if settings.get("maximize") else scaled

    def state(self, name: str, initial: float = 0.0) -> Rounded:
        """A tensor of the optimizer's state, `initial` in each element before the first update."""
        value = self._state.get(name)
        if isinstance(value, torch.Tensor):
            return _exact(value)
        parameter = self.parameter
        return Rounded(torch.full_like(parameter.value, initial), 0.0, parameter.precision)

    def has_state(self, name: str) -> bool:
        """Whether the state has a tensor of this name."""
        return isinstance(self._state.get(name), torch.Tensor)

    def number_in_state(self, name: str, initial: float) -> Rounded:
        """A number that the optimizer keeps for each parameter, in a tensor of single precision."""
        value = self._state.get(name)
        return Rounded(initial if value is None else float(value), 0.0, SINGLE)

    @property
    def steps(self) -> float:
        """The number of updates of the parameter, this one included."""
        steps = self._state.get("step", 0 if self._is_first else self._settings.get("step", 0))
        return float(steps) + 1

    @property
    def _is_first(self) -> bool:
        return not self._state

    def setting(self, name: str) -> Any:
        """A setting; a number is exact if it is one of Python, and has single precision if it is a tensor's."""
        return self._number(self._settings[name])

    def pair(self, name: str) -> tuple[Any, Any]:
        """A setting of two numbers."""
        first, second = (self._number(number) for number in self._settings[name])
        if self.flag("fused"):  # the kernels for GPUs subtract a decay from one in single precision
            return self.on_device(first), self.on_device(second)
        return first, second

    def flag(self, name: str) -> bool:
        """Whether an option is set."""
        return bool(self._settings.get(name))

    def _number(self, value: Any) -> Any:
        return Rounded(float(value), 0.0, SINGLE) if isinstance(value, torch.Tensor) else value

    def on_device(self, number: Rounded | float) -> Rounded:
        """A number with the precision in which the optimizer computes with numbers."""
        if isinstance(number, Rounded):
            return number
        return Rounded(number, abs(number) * self._scalars.unit, self._scalars)

    def bias_correction(self, decay: Rounded | float) -> Rounded:
        """1 - decay ** steps."""
        return 1 - self.on_device(decay) ** self.steps

    def decayed(self, *, decoupled: bool) -> tuple[Rounded, Rounded]:
        """The parameter and the gradient after weight decay, which is applied to one of them."""
        decay = self.setting("weight_decay")
        parameter, gradient = self.parameter, self.gradient
        if not isinstance(decay, Rounded) and decay == 0:
            return parameter, gradient
        if decoupled:
            return parameter * (1 - self.on_device(self.setting("lr")) * decay), gradient
        return parameter, gradient + parameter * decay


def _exact(tensor: torch.Tensor) -> Rounded:
    precision = precision_of(tensor.dtype)
    return Rounded(tensor.to(torch.float64), 0.0, precision)
