"""Source `project`: functions of the user's own code.

On Python 3.12 and later `sys.monitoring` reports them at no cost to other code; before that `sys.setprofile` does,
for the thread it is attached from.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from types import CodeType, FrameType
from typing import Any

from traincheck.sources.circumstances import circumstances
from traincheck.sources.names import main_name
from traincheck.sources.recorder import OpenCall, Recorder
from traincheck.sources.sites import Sites, qualified_name
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import PROJECT

_HIDDEN = ("<module>", "<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>", "<lambda>")
_GENERATOR = 0x20 | 0x80 | 0x200
"""Code flags of generators and coroutines: they are entered many times, and are no calls."""


class ProjectSource:
    """Observes calls of functions whose file belongs to the project (see `Sites`) or to a named package."""

    name = "project"

    def __init__(self, sites: Sites) -> None:
        self._sites = sites
        self._levels: dict[CodeType, tuple[str, ...] | None] = {}

    def offers(self) -> str | None:
        if sys.version_info < (3, 12) and sys.getprofile() is not None:
            return "another profiler is active (sys.setprofile)"
        return None

    def attach(self, demand: Demand, recorder: Recorder) -> ExitStack:
        self._demand = demand
        self._recorder = recorder
        undo = ExitStack()
        if not demand.everything and not any(_may_be_project(api) for api in demand.apis):
            return undo
        if sys.version_info >= (3, 12):
            self._monitor(undo)
        else:
            self._profile(undo)
        return undo

    def _told(self, code: CodeType, module: str) -> tuple[str, ...] | None:
        """The levels of a project function, None for code that is not observed."""
        if not self._sites.file_of(code) or code.co_name in _HIDDEN or code.co_flags & _GENERATOR:
            return None
        name = qualified_name(code)
        if "<locals>" in name or name.endswith((".forward", ".__init__")):
            return None  # a module's forward is observed as such
        levels = (f"{main_name() if module == '__main__' else module}.{name}",)
        return levels if self._demand.wants_call(levels) else None

    # -- before Python 3.12 ----------------------------------------------------------------------------------------

    def _profile(self, undo: ExitStack) -> None:
        recorder, known = self._recorder, self._levels
        opened: list[tuple[FrameType, OpenCall]] = []
        begins = recorder.guarded(self.name, self._begins)
        leave = recorder.guarded(self.name, recorder.leave)

        def profile(frame: FrameType, event: str, arg: Any) -> None:
            # Python calls this for everything that the thread does, C functions included: the common case goes first.
            if event == "call":
                code = frame.f_code
                levels = known.get(code, ())
                if levels == ():
                    if not recorder.active:
                        return  # the interpreter may be shutting down, with half of its modules gone
                    levels = known[code] = self._told(code, frame.f_globals.get("__name__", ""))
                if levels is not None:
                    call = begins(levels)
                    if call is not None:
                        opened.append((frame, call))
            elif event == "return" and opened and opened[-1][0] is frame:
                leave(opened.pop()[1])

        sys.setprofile(profile)

        def stop() -> None:
            if sys.getprofile() is profile:  # a profiler that came after us is not ours to remove
                sys.setprofile(None)

        undo.callback(stop)

    def _begins(self, levels: tuple[str, ...]) -> OpenCall:
        return self._recorder.enter(PROJECT, levels, "", circumstances())

    # -- Python 3.12 and later -------------------------------------------------------------------------------------

    def _monitor(self, undo: ExitStack) -> None:
        monitoring = sys.monitoring  # type: ignore[attr-defined]
        tool = next((tool for tool in (4, 3) if monitoring.get_tool(tool) is None), None)
        if tool is None:
            return
        events = monitoring.events
        recorder = self._recorder
        opened: list[tuple[CodeType, OpenCall]] = []
        begins = recorder.guarded(self.name, self._begins)
        leave = recorder.guarded(self.name, recorder.leave)

        def started(code: CodeType, offset: int) -> Any:
            levels = self._levels.get(code, ())
            if levels == ():
                module = sys._getframe(1).f_globals.get("__name__", "")
                levels = self._levels[code] = self._told(code, module)
            if levels is None:
                return monitoring.DISABLE
            call = begins(levels)
            if call is not None:
                opened.append((code, call))
            return None

        def returned(code: CodeType, offset: int, value: Any) -> Any:
            if self._levels.get(code) is None:
                return monitoring.DISABLE
            if opened and opened[-1][0] is code:
                leave(opened.pop()[1])
            return None

        def unwound(code: CodeType, offset: int, error: BaseException) -> None:
            if opened and opened[-1][0] is code:
                leave(opened.pop()[1])

        monitoring.use_tool_id(tool, "traincheck")
        monitoring.register_callback(tool, events.PY_START, started)
        monitoring.register_callback(tool, events.PY_RETURN, returned)
        monitoring.register_callback(tool, events.PY_UNWIND, unwound)
        monitoring.set_events(tool, events.PY_START | events.PY_RETURN | events.PY_UNWIND)

        def stop() -> None:
            monitoring.set_events(tool, 0)
            monitoring.free_tool_id(tool)

        undo.callback(stop)


def _may_be_project(api: str) -> bool:
    """Whether a demanded name can be a project function's (a module's forward is observed as such, see `_told`)."""
    return not api.startswith("torch.") and not api.endswith(".forward")
