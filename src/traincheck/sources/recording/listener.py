"""Lets components follow the recorder: they override the methods of the events that they need.

The recorder calls listeners in the order in which they were added. An exception in a listener counts as a fault of the
source, or of the window, that is being recorded. Guard code that may fail (see `Recorder.guarded`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from traincheck.sources.recording.overhead import Lap
    from traincheck.sources.recording.step_tracker import Cut


class RecorderListener:
    """Does nothing at each event. Pass an instance of a subclass to `Recorder.add_listener`."""

    def between_calls(self) -> None:
        """The training thread is between two calls, so sources may be attached again here."""

    def suspicion_raised(self) -> None:
        """A rule was violated. Any thread may call this."""

    def window_closing(self, cut: Cut) -> None:
        """A window that was watched as a whole is about to close; events recorded now still belong to it."""

    def storage_names(self, stage: str) -> dict[str, str] | None:
        """Names of variables for storages to which the closing window gave numbers, by these numbers."""
        return None

    def window_measured(self, stage: str, watched: bool, lap: Lap) -> None:
        """A window took `lap`; `watched` is whether it was watched as a whole."""

    def window_closed(self, cut: Cut) -> None:
        """A window was closed, or left out, at `cut`, and the next one has begun."""

    def forward_awaited(self) -> None:
        """The next call of an outermost module may begin a step, see `StepTracker.awaits_forward`."""

    def optimizer_stepped(self) -> None:
        """An optimizer has updated parameters."""

    def source_switched(self, source: str, *, off: bool) -> None:
        """A source was switched off, or on again."""

    def autocast_changed(self, *, entered: bool) -> None:
        """A region of autocast begins or ends."""

    def scheduler_stepped(self, scheduler: Any) -> None:
        """A scheduler stepped in a compiled function, where patches of its `step` are suspended."""


class Listeners:
    """The listeners of a recorder, as one tuple of methods for each event.

    A tuple holds only methods that override the empty ones, for calls of empty methods would cost time in each step.
    `between_calls` is a single function, as the training loop calls it several times in a step.
    """

    def __init__(self) -> None:
        self._listeners: list[RecorderListener] = []
        self._select()

    def add(self, listener: RecorderListener) -> None:
        """Call the methods of `listener`, too. Adding it again changes nothing."""
        if not any(listener is added for added in self._listeners):
            self._listeners.append(listener)
            self._select()

    def remove(self, listener: RecorderListener) -> None:
        """No longer call the methods of `listener`."""
        self._listeners = [added for added in self._listeners if added is not listener]
        self._select()

    def _select(self) -> None:
        select = self._overrides
        self.between_calls: Callable[[], object] = _one_function(select("between_calls"))
        self.suspicion_raised: tuple[Callable[[], None], ...] = select("suspicion_raised")
        self.window_closing: tuple[Callable[[Cut], None], ...] = select("window_closing")
        self.storage_names: tuple[Callable[[str], dict[str, str] | None], ...] = select("storage_names")
        self.window_measured: tuple[Callable[[str, bool, Lap], None], ...] = select("window_measured")
        self.window_closed: tuple[Callable[[Cut], None], ...] = select("window_closed")
        self.forward_awaited: tuple[Callable[[], None], ...] = select("forward_awaited")
        self.optimizer_stepped: tuple[Callable[[], None], ...] = select("optimizer_stepped")
        self.source_switched: tuple[Callable[..., None], ...] = select("source_switched")
        self.autocast_changed: tuple[Callable[..., None], ...] = select("autocast_changed")
        self.scheduler_stepped: tuple[Callable[[Any], None], ...] = select("scheduler_stepped")

    def _overrides(self, event: str) -> tuple[Any, ...]:
        empty = getattr(RecorderListener, event)
        overriding = [listener for listener in self._listeners if getattr(type(listener), event) is not empty]
        return tuple(getattr(listener, event) for listener in overriding)


def _one_function(functions: tuple[Callable[[], object], ...]) -> Callable[[], object]:
    if len(functions) == 1:
        return functions[0]

    def call_all() -> None:
        for function in functions:
            function()

    return call_all if functions else _do_nothing


def _do_nothing() -> None:
    pass
