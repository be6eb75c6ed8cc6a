"""Source `updates`: compares what an optimizer wrote in a verified step with what its documented algorithm computes.

Before the update the source copies a share of the parameters with their gradients and state; parameters take turns.
After it, each element is compared within a bound on rounding (see updates/rounding.py).

Note [Updates with a closure]
An optimizer of torch calls the closure first, once, and then computes the update. So the source copies when the closure
returns: it passes one of its own that calls the closure of the program. What an optimizer of another library does
before the closure is not known, so its inputs are copied before the update, and a difference is left undecided.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from traincheck.sources.modules.variables import VariableCatalog
from traincheck.sources.optimizers.running_updates import (
    RunningUpdate,
    closure_of,
    hooked_frame,
    is_torch_optimizer,
)
from traincheck.sources.recording.patches import UndoStack
from traincheck.sources.recording.recorder import Recorder
from traincheck.sources.replay.state_snapshot import without_modes
from traincheck.sources.tensors.reading import hidden_from_modes
from traincheck.sources.verification.experiment_source import ExperimentSource
from traincheck.sources.verification.updates.judgement import Judgement, UpdateHistory
from traincheck.sources.verification.updates.selection import ParametersBefore, read_before
from traincheck.sources.verification.verified_steps import VerifiedSteps
from traincheck.vocab.verification import ALGORITHM, DISAGREES, UNDECIDED


@dataclass
class _Update:
    """An update under way, with copies of its inputs (None before its closure returns), and what else may explain its
    result."""

    running: RunningUpdate
    optimizer: Optimizer
    history: UpdateHistory
    before: ParametersBefore | None
    other_explanation: str
    site: str


class UpdateSource(ExperimentSource):
    """Compares the first update of each optimizer in a verified step."""

    name = "updates"
    experiments = (ALGORITHM,)

    def __init__(self, catalog: VariableCatalog, steps: VerifiedSteps) -> None:
        super().__init__(steps)
        self._catalog = catalog
        self._histories: dict[str, UpdateHistory] = {}
        self._updates: list[_Update] = []  # an optimizer may step inside the step of another

    def _observe(self, undo: UndoStack, recorder: Recorder) -> None:
        begin, end = recorder.guarded(self.name, self._begins), recorder.guarded(self.name, self._ends)

        def update_begins(optimizer: Any, args: Any, kwargs: Any) -> Any:
            """Return other arguments of the step, or None: see Note [Updates with a closure]."""
            return begin(optimizer, args, kwargs) if self._verifies(recorder.steps.window_step) else None

        def update_ends(optimizer: Any, args: Any, kwargs: Any) -> None:
            if self._updates:
                end(optimizer, args, kwargs)

        recorder.hooks.add(undo, register_optimizer_step_pre_hook(update_begins), update_begins)
        recorder.hooks.add(undo, register_optimizer_step_post_hook(update_ends), update_ends)

    def _on_detach(self) -> None:
        self._updates.clear()

    def _begins(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._updates = [update for update in self._updates if update.running.is_running()]
        if any(update.optimizer is optimizer for update in self._updates):
            return None  # the `step` of a subclass calls that of its base class
        recorder = self._recorder
        if not recorder.hooks.in_one_thread:
            return None
        name, step = self._catalog.add_optimizer(optimizer), recorder.steps.window_step
        history = self._histories.get(name)
        if history is None or history.optimizer() is not optimizer:
            history = self._histories[name] = UpdateHistory(optimizer)
        if step == history.last_step:
            return None
        history.last_step = step
        if history.ended:
            self._reporter.report(name, UNDECIDED, history.ended)
            return None
        with self._hidden():
            if _is_skipped(optimizer):
                return None
        running = RunningUpdate(None, name, None, hooked_frame(), threading.get_ident())
        closure = closure_of(args, kwargs)
        computes_later = closure is not None and is_torch_optimizer(optimizer)
        explanation = self._other_explanation(optimizer, None if computes_later else closure)
        update = _Update(running, optimizer, history, None, explanation, recorder.sites.here())
        self._updates.append(update)
        if computes_later:
            return _with_closure(args, kwargs, closure, recorder.guarded(self.name, lambda: self._read(update)))
        self._read(update, computes_gradient=closure is not None)
        return None

    def _read(self, update: _Update, *, computes_gradient: bool = False) -> None:
        """Copy the inputs of an update. With `computes_gradient` a closure computes gradients after this."""
        history = update.history
        with self._hidden():
            update.before = read_before(
                update.optimizer,
                self._name_of,
                history.next,
                computes_gradient=computes_gradient,
                whole_tensors=history.needs_whole_tensors,
            )
        history.next = update.before.next

    def _ends(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not self._updates or self._updates[-1].running.frame is not hooked_frame():
            return
        update = self._updates.pop()
        name = update.running.optimizer
        if update.before is None:
            self._reporter.report(name, UNDECIDED, "its closure did not return")
            return
        try:
            with self._hidden():
                judgement = update.history.judge(update.before, update.other_explanation)
        except RuntimeError as error:  # the device has no float64, or no memory
            judgement = Judgement(UNDECIDED, str(error).partition("\n")[0])
        if judgement is None:
            return
        verdict, found, first = judgement
        if verdict == DISAGREES:
            found = f"in step {update.history.last_step}, {found}"
        self._reporter.report(name, verdict, found, first=first, site=update.site)

    def _other_explanation(self, optimizer: Optimizer, closure: Any) -> str:
        """What may change parameters or gradients during a step besides the optimizer, empty without it."""
        if closure is not None:
            return "it was given a closure"
        if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
            return "the program has registered hooks of its step"
        if not self._recorder.hooks.are_only_step_hooks():
            return "the program has registered hooks of all optimizers"
        return ""

    @contextmanager
    def _hidden(self) -> Iterator[None]:
        """Hide computations from modes of the program, and from TrainCheck."""
        here = self._recorder.hooks.thread
        here.suspended = True
        try:
            with without_modes(), hidden_from_modes():
                yield
        finally:
            here.suspended = False

    def _name_of(self, parameter: torch.Tensor) -> str:
        variable = self._catalog.find(parameter)
        return "a parameter" if variable is None else variable.name


def _with_closure(args: tuple[Any, ...], kwargs: dict[str, Any], closure: Any, returned: Callable[[], Any]) -> Any:
    """The arguments of a step, with a closure that calls the program's one and then `returned`."""

    @functools.wraps(closure)
    def observed(*inner: Any, **keywords: Any) -> Any:
        result = closure(*inner, **keywords)
        returned()
        return result

    replaced = [observed if argument is closure else argument for argument in args]
    return tuple(replaced), {key: observed if value is closure else value for key, value in kwargs.items()}


def _is_skipped(optimizer: Optimizer) -> bool:
    """Whether a GradScaler tells the optimizer to leave out this update."""
    found_inf = getattr(optimizer, "found_inf", None)
    return found_inf is not None and bool(found_inf)
