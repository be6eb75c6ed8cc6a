"""Copies the inputs of an update before it is made, and compares its result with an algorithm element by element."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch.optim import Optimizer

from traincheck.sources.tensors.reading import PLAIN, local_tensor
from traincheck.sources.verification.updates.algorithms import Algorithm
from traincheck.sources.verification.updates.bitsandbytes_optimizers import readable_state, settings_of
from traincheck.sources.verification.updates.inputs import PARAMETER, UpdateInputs
from traincheck.sources.verification.updates.rounding import Rounded

CHUNK = 1 << 16
"""Elements that are computed at a time, which bounds the memory of float64 numbers to some megabytes."""

MOST_STEPS = 1 << 24
"""Above this number, a counter of single precision does not advance by one."""

CLEAR = 8
"""A change of an element tells two algorithms apart if it is larger than this many times the bound on rounding."""


class Comparison(NamedTuple):
    """The comparison of one parameter with an algorithm: numbers of elements, and the element that is off most.

    `what` names the state that is off, empty for the parameter itself. `compared` of its `elements` have a finite
    bound; `clear` of these had to change by much more. Of the elements `off`, `unchanged` have their old value, and
    `stuck` have an old value that is neither zero nor an extreme: pruning and clipping keep elements there.
    """

    name: str
    group: int
    what: str
    elements: int
    compared: int
    clear: int
    off: int
    unchanged: int
    stuck: int
    value: float
    expected: float


NUMBERS = ("elements", "compared", "clear", "off", "unchanged", "stuck")


class ParameterBefore:
    """A parameter before an update: copies of its value, gradient and state, and the settings of its group.

    `elements` selects some of its elements, in their order in one dimension; None stands for the whole tensor. With
    `computes_gradient` the optimizer calls a function that computes the gradient, which is then the one after it.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        group: int,
        tensor: torch.Tensor,
        name: str,
        elements: slice | None = None,
        *,
        computes_gradient: bool = False,
    ) -> None:
        self.name, self._tensor, self._group, self._elements = name, tensor, group, elements
        self._optimizer = optimizer
        scale = getattr(optimizer, "grad_scale", None)  # of a GradScaler, for a fused optimizer
        self._scale = None if scale is None else float(scale)
        self._settings = settings_of(optimizer, group, tensor)
        self._before = _copied(self._now())
        self._grad = tensor.grad
        self._version = 0 if self._grad is None else self._grad._version
        self._gradient = None if computes_gradient else self._gradient_now().clone()

    @property
    def gradient_was_written(self) -> bool:
        """Whether the gradient was written to or replaced since. A fused optimizer that unscales it may do that."""
        grad = self._tensor.grad
        return grad is not self._grad or (self._scale is None and grad is not None and grad._version != self._version)

    def compare(self, algorithm: Algorithm) -> Comparison | None:
        """Compare the parameter and its state now with what the algorithm computes.

        Returns None where that is impossible: the tensors have other shapes now, or the algorithm needs all of a
        sharded parameter. Raises KeyError if the optimizer lacks a setting or a state of the algorithm.
        """
        whole = algorithm.whole_tensors
        if whole and (self._elements is not None or type(self._tensor) not in PLAIN):
            return None
        after = self._now()
        gradient = self._gradient_now() if self._gradient is None else self._gradient
        if not after.value.shape == gradient.shape == self._before.value.shape:
            return None
        chunks = [(self._before, gradient, after)] if whole else _chunks(self._before, gradient, after)
        return _summary([part for chunk in chunks for part in self._compare_chunk(algorithm, *chunk)])

    def _now(self) -> _Tensors:
        """The selected elements of the parameter and its state as they are now."""
        local = _memory(self._tensor)
        state, coarse = readable_state(self._optimizer.state.get(self._tensor, {}), self._elements)

        def select(value: Any) -> Any:
            value = _memory(value)
            is_whole = self._elements is None or not isinstance(value, torch.Tensor) or value.shape != local.shape
            return value if is_whole else value.reshape(-1)[self._elements]

        return _Tensors(select(local), {key: select(value) for key, value in state.items()}, coarse)

    def _gradient_now(self) -> torch.Tensor:
        gradient = _memory(self._tensor.grad)
        if gradient is None:
            return torch.empty(0)
        return gradient if self._elements is None else gradient.reshape(-1)[self._elements]

    def _compare_chunk(
        self, algorithm: Algorithm, before: _Tensors, gradient: torch.Tensor, after: _Tensors
    ) -> Iterator[Comparison]:
        inputs = UpdateInputs(before.value, gradient, before.state, self._settings, gradient_scale=self._scale)
        expected = algorithm.update(inputs)
        if "step" in after.state:
            expected["step"] = Rounded(inputs.steps, 0.0 if inputs.steps < MOST_STEPS else math.inf)
        for what, result in expected.items():
            if what in after.coarse:
                continue
            written, old = (
                tensors.value if what == PARAMETER else tensors.state.get(what) for tensors in (after, before)
            )
            if written is None:
                raise KeyError(what)
            tolerance = 0.0 if what == "step" else algorithm.tolerance
            yield self._compare_tensor(what, result, written, old, tolerance)

    def _compare_tensor(self, what: str, expected: Rounded, written: Any, old: Any, tolerance: float) -> Comparison:
        def double(number: Any) -> torch.Tensor:
            return torch.as_tensor(number, dtype=torch.float64, device=device).expand(shape)

        device = written.device if isinstance(written, torch.Tensor) else "cpu"
        shape = written.shape if isinstance(written, torch.Tensor) else ()
        new, value, error = map(double, (written, expected.value, expected.error))
        before = double(0.0 if old is None else old)
        if tolerance:
            error = error + (value - before).abs() * tolerance
        known = torch.isfinite(value) & torch.isfinite(error)
        off = known & ~((new - value).abs() <= error)  # which is also true of a result that is no number
        changes = known & ((value - before).abs() > CLEAR * error)
        unchanged, worst = off & (new == before) & (old is not None), (0.0, 0.0)
        stuck = unchanged
        if off.any():
            stuck = unchanged & (new != 0) & (new > new.min()) & (new < new.max())
            excess = ((new - value).abs() / error).nan_to_num(math.inf)
            index = torch.where(off, excess, -1.0).argmax()
            worst = float(new.reshape(-1)[index]), float(value.reshape(-1)[index])
        counts = zip(NUMBERS[1:], (known, changes, off, unchanged, stuck), strict=True)
        numbers = {"elements": value.numel(), **{key: int(elements.sum()) for key, elements in counts}}
        return Comparison(self.name, self._group, what, **numbers, value=worst[0], expected=worst[1])


class _Tensors(NamedTuple):
    """A parameter and its state, at one time. States in `coarse` keep few bits, so their results are not compared."""

    value: torch.Tensor
    state: Mapping[str, Any]
    coarse: frozenset[str] = frozenset()

    def map(self, function: Callable[[Any], Any]) -> _Tensors:
        """The results of a function for the parameter and for each entry of its state."""
        state = {key: function(value) for key, value in self.state.items()}
        return _Tensors(function(self.value), state, self.coarse)


def _chunks(
    before: _Tensors, gradient: torch.Tensor, after: _Tensors
) -> Iterator[tuple[_Tensors, torch.Tensor, _Tensors]]:
    """Yield the tensors before the update, the gradient and the tensors after it, of some elements at a time."""
    shape = before.value.shape

    def real(value: Any) -> Any:
        """All elements in one dimension, two for a complex number."""
        if not isinstance(value, torch.Tensor) or value.shape != shape:
            return value
        flat = value.reshape(-1)
        return torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat

    before, gradient, after = before.map(real), real(gradient), after.map(real)
    for begin in range(0, len(before.value), CHUNK):

        def cut(value: Any, begin: int = begin) -> Any:
            is_elementwise = isinstance(value, torch.Tensor) and value.shape == before.value.shape
            return value[begin : begin + CHUNK] if is_elementwise else value

        yield before.map(cut), cut(gradient), after.map(cut)


def _summary(parts: list[Comparison]) -> Comparison | None:
    """One comparison for all chunks: that of the parameter if elements of it are off, otherwise of its state."""
    if not parts:
        return None
    wrong = [part for part in parts if part.off]
    what = min((part.what for part in wrong), key=lambda name: name != PARAMETER, default=parts[0].what)
    chosen = [part for part in parts if part.what == what]
    first = next((part for part in chosen if part.off), chosen[0])
    return first._replace(**{key: sum(getattr(part, key) for part in chosen) for key in NUMBERS})


def _memory(value: Any) -> Any:
    return local_tensor(value) if isinstance(value, torch.Tensor) else value


def _copied(tensors: _Tensors) -> _Tensors:
    return tensors.map(lambda value: value.clone() if isinstance(value, torch.Tensor) else value)
