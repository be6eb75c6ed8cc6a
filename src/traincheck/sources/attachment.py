"""Attaches the sources to the process, and exchanges their demand while the program trains.

Note [Reattachment]
To record some steps in full, TrainCheck detaches all sources and attaches them again with a demand for everything. The
training thread does that at a moment between two calls. Sources, recorder, catalog of names and step tracker stay the
same objects, so names and numbers continue, rules get the same events as before, and open calls are recorded to their
end. A function mode keeps its position in torch's stack. TrainCheck adds one only if no mode above or below it would be
left before it.
"""

from __future__ import annotations

import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import wraps
from typing import Any

import torch
from torch.compiler import is_compiling
from torch.utils._device import DeviceContext

from traincheck.sources.base import Source, replace
from traincheck.sources.recording.patches import PatchSuspension, UndoStack
from traincheck.sources.recording.recorder import Recorder
from traincheck.sources.tensors import hashing
from traincheck.vocab.demand import EVERYTHING, Demand

_MAX_FRAMES = 12
"""Frames to search for a running function of torch; a few lie between it and a wrapper of TrainCheck."""


class CannotReattach(Exception):
    """Sources cannot be reattached: at this moment, or (`permanent`) in this run."""

    def __init__(self, reason: str, *, permanent: bool = False) -> None:
        super().__init__(reason)
        self.permanent = permanent


class Attachment:
    """Attaches the sources that can observe here; `missing` names each of the others with its reason.

    `in_module_call` says whether the program is inside a call of a module. Closing `undo` detaches all sources.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        demand: Demand,
        recorder: Recorder,
        in_module_call: Callable[[], bool] = lambda: False,
    ) -> None:
        self.undo = ExitStack()
        self.missing: list[str] = []
        self.records_everything = False
        self._demand = demand
        self._recorder = recorder
        self._in_module_call = in_module_call
        self._thread = threading.get_ident()
        self._attached: list[Source] = []
        self._undo = ExitStack()
        self.undo.callback(hashing.stop_threads)
        self.undo.callback(self._detach)
        self._suspension = PatchSuspension(recorder.hooks.patches)
        recorder.sampling_gate.add_suspendable(self._suspension)
        self.undo.callback(recorder.sampling_gate.remove_suspendable, self._suspension)
        replace(self.undo.enter_context(UndoStack()), warnings, "_showwarnmsg", _with_places)
        for source in sources:
            reason = source.offers()
            if reason is None:
                try:
                    self._attach(source, demand)
                    self._attached.append(source)
                except Exception as error:
                    reason = f"{type(error).__name__}: {error}"
                    recorder.fault(source.name, error)
            if reason is not None:
                recorder.availability.mark_missing(source.name)
                self.missing.append(f"{source.name}: {reason}")

    def record_everything(self, on: bool) -> None:
        """Record everything from now on, or return to the demand of the rules. Raises CannotReattach.

        Call it on the training thread, between windows or calls. See Note [Reattachment].
        """
        if on == self.records_everything:
            return
        self._check_reattachable()
        recorder = self._recorder
        with recorder.reattachment():
            self._detach()
            recorder.clear_at_end()
            self.records_everything = on
            demand = self._demand | EVERYTHING if on else self._demand
            for source in self._attached:
                if source.offers() is not None:
                    continue  # the program has started a profiler since
                try:
                    self._attach(source, demand)
                except Exception as error:
                    recorder.fault(source.name, error)

    def _detach(self) -> None:
        undo, self._undo = self._undo, ExitStack()
        undo.close()
        self._recorder.hooks.forget_patches()

    def _attach(self, source: Source, demand: Demand) -> None:
        try:
            own = self._undo.enter_context(source.attach(demand, self._recorder))
        except Exception as error:
            _undo_attach(error)
            raise
        except BaseException as interrupt:  # belongs to the program
            _undo_attach(interrupt)
            self._detach()
            raise
        if isinstance(own, UndoStack):
            self._recorder.hooks.patches.append(own.patches)

    def _check_reattachable(self) -> None:
        if threading.get_ident() != self._thread:
            raise CannotReattach(
                "the program trains in another thread than the one that imported torch", permanent=True
            )
        if self._suspension.can_resume():
            self._suspension.resume()
        name = self._recorder.hooks.overridden_patch()
        if name:
            raise CannotReattach(f"the program has replaced {name} meanwhile", permanent=True)
        recorder = self._recorder
        suspended = is_compiling() or recorder.hooks.thread.suspended
        if suspended or recorder.updating or self._in_module_call() or _in_torch_function():
            raise CannotReattach("a call is under way")
        modes = torch.overrides._get_current_function_mode_stack()
        own = [index for index, mode in enumerate(modes) if type(mode).__module__.startswith("traincheck.")]
        if own != [len(modes) - 1] and not all(isinstance(mode, DeviceContext) for mode in modes):
            raise CannotReattach("the program is inside a torch function mode of its own")


def _with_places(show: Callable[[Any], None]) -> Callable[[Any], None]:
    """Wrap the function that shows a warning, so that it names a line of the program."""

    @wraps(show)
    def wrapper(message: Any) -> None:
        from traincheck.sources.recording.warning_places import show_in_program  # few programs warn

        show_in_program(show, message)

    return wrapper


def _in_torch_function() -> bool:
    """Whether a `__torch_function__` is among the frames that called this one."""
    frame = sys._getframe(1)
    for _ in range(_MAX_FRAMES):
        if frame.f_code.co_name == "__torch_function__":
            return True
        if frame.f_back is None:
            break
        frame = frame.f_back
    return False


def _undo_attach(error: BaseException) -> None:
    """Undo what a source had done when its `attach` failed: close the stack that it was about to return."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        undo = frame.f_locals.get("undo") if frame.f_code.co_name == "attach" else None
        if isinstance(undo, ExitStack):
            with suppress(Exception):
                undo.close()
