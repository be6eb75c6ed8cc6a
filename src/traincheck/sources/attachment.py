"""Attachment: the sources as they are attached now, and how another demand is put in place of theirs in mid-run.

Note [Attached anew]
To look closer for some steps, all sources are taken off and attached again with a demand for everything, by the thread
that trains, at a moment at which it is between calls. The sources, the recorder, the catalog of names and the step
tracker are the same ones, and what a source knows stays with it: so names and numbers stay, what rules need is told as
before (and more besides), and what is open is told to its end. A function mode keeps its place; a new one is put on
only where no other mode lies above or below that would be left before it.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress

import torch
from torch.compiler import is_compiling
from torch.utils._device import DeviceContext

from traincheck.sources.base import Source
from traincheck.sources.recording.patches import Undo
from traincheck.sources.recording.recorder import Recorder
from traincheck.sources.tensors import hashing
from traincheck.vocab.demand import EVERYTHING, Demand

_DEEPEST = 12
"""Frames that are looked through for a function of torch under way; between it and our wrapper there are a few."""


class Hindrance(Exception):
    """Why sources cannot be attached anew: for now, or (`for_good`) in this run."""

    def __init__(self, why: str, *, for_good: bool = False) -> None:
        super().__init__(why)
        self.for_good = for_good


class Attachment:
    """Attaches what can be attached of `sources`; `missing` tells which could not, and why."""

    def __init__(
        self,
        sources: Sequence[Source],
        demand: Demand,
        recorder: Recorder,
        amid_module: Callable[[], bool] = lambda: False,
    ) -> None:
        self.undo = ExitStack()
        self.missing: list[str] = []
        self.closer = False
        self._demand = demand
        self._recorder = recorder
        self._amid_module = amid_module
        self._thread = threading.get_ident()
        self._attached: list[Source] = []
        self._undo = ExitStack()
        self.undo.callback(hashing.dismiss)
        self.undo.callback(self._take_off)
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
                recorder.absences.begin_without(source.name)
                self.missing.append(f"{source.name}: {reason}")

    def look_closer(self, closer: bool) -> None:
        """Observe everything from now on, or only what was asked for again. Raises Hindrance.

        Call it between windows or calls, on the thread that trains.
        """
        if closer == self.closer:
            return
        self._hindered()
        recorder = self._recorder
        recorder.changing = True
        try:
            self._take_off()
            recorder.last_words.clear()  # each source says them again
            self.closer = closer
            demand = self._demand | EVERYTHING if closer else self._demand
            for source in self._attached:
                if source.offers() is not None:
                    continue  # a profiler of the program's own has come since
                try:
                    self._attach(source, demand)
                except Exception as error:
                    recorder.fault(source.name, error)
        finally:
            recorder.changing = False

    def _take_off(self) -> None:
        undo, self._undo = self._undo, ExitStack()
        undo.close()
        self._recorder.hooks.forget_replaced()

    def _attach(self, source: Source, demand: Demand) -> None:
        try:
            own = self._undo.enter_context(source.attach(demand, self._recorder))
        except Exception as error:
            _take_back(error)
            raise
        except BaseException as interrupt:  # of the program's
            _take_back(interrupt)
            self._take_off()
            raise
        if isinstance(own, Undo):
            self._recorder.hooks.replaced.append(own.replaced)

    def _hindered(self) -> None:
        if threading.get_ident() != self._thread:
            raise Hindrance("the program trains in another thread than the one that imported torch", for_good=True)
        name = self._recorder.hooks.displaced()
        if name:
            raise Hindrance(f"the program has replaced {name} meanwhile", for_good=True)
        recorder = self._recorder
        aside = is_compiling() or recorder.hooks.here.aside
        if aside or recorder.updating or self._amid_module() or _amid_function():
            raise Hindrance("a call is under way")
        modes = torch.overrides._get_current_function_mode_stack()
        ours = [place for place, mode in enumerate(modes) if type(mode).__module__.startswith("traincheck.")]
        if ours != [len(modes) - 1] and not all(isinstance(mode, DeviceContext) for mode in modes):
            raise Hindrance("the program is inside a torch function mode of its own")


def _amid_function() -> bool:
    """Whether we were called from within a function of torch that a mode has been asked about."""
    frame = sys._getframe(1)
    for _ in range(_DEEPEST):
        if frame.f_code.co_name == "__torch_function__":
            return True
        if frame.f_back is None:
            break
        frame = frame.f_back
    return False


def _take_back(error: BaseException) -> None:
    """Take back what a source had done when its `attach` failed: that is in the stack which it was about to return."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        undo = frame.f_locals.get("undo") if frame.f_code.co_name == "attach" else None
        if isinstance(undo, ExitStack):
            with suppress(Exception):
                undo.close()
