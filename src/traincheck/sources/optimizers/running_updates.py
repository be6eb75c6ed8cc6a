"""Tracks the optimizer steps under way, with the state that each of them began with."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from traincheck.sources.gradients.gradients import Held
from traincheck.sources.optimizers.parameter_changes import ParameterBefore
from traincheck.sources.recording.recorder import OpenCall
from traincheck.sources.tensors.reading import Fingerprint, local_tensor

if TYPE_CHECKING:
    from traincheck.sources.optimizers.magnitudes import BeforeUpdate


Statistics = dict[int, tuple[int, ...]]
"""By parameter: the identity and the writes of each entry of the optimizer's state."""

GATHERING = 10
"""Updates in which an optimizer that is not of torch may gather statistics only, and change no parameter (ADOPT, SOAP,
and schedules with a rectified start)."""


def statistics_of(optimizer: Any) -> Statistics:
    """The state that an optimizer keeps for its parameters, as far as a change of it shows."""
    return {
        id(parameter): tuple(
            number
            for entry in (state.values() if isinstance(state, dict) else ())
            for number in (id(entry), entry._version if isinstance(entry, torch.Tensor) else 0)
        )
        for parameter, state in list(optimizer.state.items())
        if isinstance(parameter, torch.Tensor)
    }


class StateBeforeStep:
    """The state at the beginning of a step: the variables concerned and the states of their gradients
    (`initial_gradients` as first read). For variables at `state_indices` it includes the optimizer's state. With
    `whole`, all fingerprints were requested. `negligible` are the indices of variables whose gradients the optimizer
    ignores. `statistics` is what `statistics_of` returned, None for optimizers of torch and after the first updates.

    A delayed conclusion must not hold this object, because it holds parameters. It may hold the list `gradients`, which
    is updated in place.
    """

    __slots__ = (
        "gradients",
        "held",
        "initial_gradients",
        "magnitudes",
        "negligible",
        "parameters",
        "rates",
        "state",
        "state_indices",
        "statistics",
        "whole",
    )

    def __init__(self, held: Sequence[Held], gradients: list[Any], rates: dict[int, float]) -> None:
        self.held = held
        self.gradients = gradients
        self.initial_gradients = list(gradients)
        self.statistics: Statistics | None = None
        self.rates = rates
        self.magnitudes: BeforeUpdate | None = None
        self.parameters: list[ParameterBefore] = []
        self.whole = True
        self.state_indices: Sequence[int] = ()
        self.negligible: frozenset[int] = frozenset()
        self.state: dict[tuple[int, str], Fingerprint] = {}

    def gathered(self, now: Statistics) -> set[int]:
        """The indices of variables for which the update wrote to the optimizer's state, which is `now` after it."""
        earlier = self.statistics or {}
        ids = [id(tensor) for _, tensor in self.held]
        return {index for index, key in enumerate(ids) if now.get(key, ()) != earlier.get(key, ())}


class RunningUpdate(NamedTuple):
    """A step under way. `frame` is the function that called the step hook, because torch does not report a step that
    raised.

    A step outside the sample has neither `call` nor `before`. With `suppressed`, TrainCheck records nothing that runs
    inside.
    """

    call: OpenCall | None
    optimizer: str
    before: StateBeforeStep | None
    frame: FrameType
    thread: int
    suppressed: bool = False

    def is_running(self) -> bool:
        """Whether the step is still on the stack; a step of another thread counts as running."""
        return threading.get_ident() != self.thread or _is_on_stack(self.frame)


def closure_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The closure that a step was given; None without one. The first of `args` is the optimizer."""
    return next((arg for arg in (*args[1:], kwargs.get("closure")) if arg is not None), None)


def negligible_gradients(optimizer: Any, held: Sequence[Held]) -> frozenset[int]:
    """The indices of variables whose gradients the optimizer ignores by its own setting, as LBFGS does after
    convergence."""
    limits = [group.get("tolerance_grad", 0.0) for group in optimizer.param_groups]
    if not any(limits):
        return frozenset()
    groups = zip(optimizer.param_groups, limits, strict=True)
    limit_of = {id(param): limit for group, limit in groups for param in group["params"]}
    indices = set()
    for index, (_, tensor) in enumerate(held):
        gradient = None if tensor.grad is None else local_tensor(tensor.grad)
        if gradient is not None and gradient.numel() and gradient.abs().max() <= limit_of.get(id(tensor), 0.0):
            indices.add(index)
    return frozenset(indices)


def is_torch_optimizer(optimizer: Any) -> bool:
    """Whether a step of the optimizer runs code of torch only."""
    if not type(optimizer).__module__.startswith("torch.optim."):
        return False
    return not (optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks)


def hooked_frame() -> FrameType:
    """The frame that called the step hook: that of `step` itself."""
    frame = sys._getframe(1)
    while frame.f_back is not None and (
        frame.f_code.co_name == "<listcomp>" or str(frame.f_globals.get("__name__", "")).startswith("traincheck.")
    ):
        frame = frame.f_back
    return frame


def _is_on_stack(target: FrameType) -> bool:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame is not target:
        frame = frame.f_back
    return frame is target
