"""Proves that a source keeps the promises of `sources.base.Source` and of its declaration.

For the tests of a package that brings its own source::

    from traincheck.testing.sources import check_source

    def test_my_source() -> None:
        check_source("my_package.my_source:DECLARATION", train)

`train` is a small training that uses what the source observes. It seeds its random numbers, and returns what it
computed: tensors, or lists and dicts of them. Import the observed library before.
"""

from __future__ import annotations

import gc
import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from traincheck import plugins
from traincheck.errors import PluginError
from traincheck.testing import faults
from traincheck.testing.leftovers import differences, process_state
from traincheck.vocab.demand import EVERYTHING, NOTHING, Demand
from traincheck.vocab.events import SOURCE, Window
from traincheck.vocab.source_declaration import SourceDeclaration

Program = Callable[[], object]

_WITHOUT_TORCH = """
import importlib, sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")

sys.meta_path.insert(0, Blocker())
getattr(importlib.import_module(sys.argv[1]), sys.argv[2])
"""


class NotConforming(AssertionError):
    """A source breaks a promise. The message says which one, and what to do."""


def check_source(target: str, program: Program, project: str | None = None) -> int:
    """Check every promise of the source whose declaration is at `target` (`module:NAME`), as in its entry point.

    Returns the number of kinds of events that only this source reports. `project` is the folder of the program's own
    code (the working directory by default). Raises NotConforming for the first broken promise, and ValueError for a
    program that proves nothing.
    """
    declaration = _declaration(target)
    _works_without_torch(declaration, target)
    return _Check(declaration, program, project or str(Path.cwd())).run()


def _fail(promise: str, cure: str) -> NotConforming:
    return NotConforming(f"{promise}. {cure}.")


# -- the declaration -----------------------------------------------------------------------------------------------


def _declaration(target: str) -> SourceDeclaration:
    module, _, attribute = target.partition(":")
    declaration = getattr(importlib.import_module(module), attribute, None)
    if not isinstance(declaration, SourceDeclaration):
        raise _fail(f"{target} is no SourceDeclaration", "Make one, as in sources/template.py")
    if declaration.name in plugins.SOURCES:
        raise _fail(f"the name {declaration.name!r} belongs to a source of TrainCheck", "Take another name")
    try:
        plugins.source_declaration(declaration.name, target)
        plugins.source_class(declaration)
    except PluginError as error:
        raise _fail(
            f"{declaration.name} has no usable class ({error})", "Name it in `source` as module:Class"
        ) from error
    if not (declaration.apis or declaration.serves_api or declaration.readings or declaration.values):
        raise _fail(f"{declaration.name} declares nothing that it serves", "Name its APIs or its readings")
    if not declaration.observes or not declaration.absence:
        raise _fail(f"{declaration.name} describes itself to nobody", "Write `observes` and `absence`")
    return declaration


def _works_without_torch(declaration: SourceDeclaration, target: str) -> None:
    module, _, attribute = target.partition(":")
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_TORCH, module, attribute],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        reason = done.stderr.strip().splitlines()[-1:]
        raise _fail(
            f"the declaration of {declaration.name} cannot be imported without torch ({''.join(reason)})",
            "Import torch and the observed library inside `attach`: recordings are checked where they are missing",
        )


# -- behaviour -----------------------------------------------------------------------------------------------------


class _Check:
    def __init__(self, declaration: SourceDeclaration, program: Program, project: str) -> None:
        self._declaration, self._program, self._project = declaration, program, project
        self._name = declaration.name
        self._packages = {api.split(".", 1)[0] for api in declaration.apis if not api.startswith("*")}
        self._expected: object = None

    def run(self) -> int:
        self._expected = _exact(self._program())
        if _exact(self._program()) != self._expected:
            raise ValueError("the program computes something else each time, so nothing is proven: seed it")
        without = self._observe(EVERYTHING, "without it", attached=False)  # also loads what every source imports
        before = self._state()
        with faults.watching() as callbacks:
            windows = self._observe(EVERYTHING, "under a demand for everything")
        self._leaves_nothing(before, "It")
        kinds = self._serves_what_it_declares(windows, without)
        self._attaches_on_demand(before)
        own = {callback: calls for callback, calls in callbacks.items() if callback.source == self._name}
        self._keeps_faults_to_itself(own)
        self._leaves_nothing(before, "After a fault, it")
        return kinds

    def _observe(self, demand: Demand, where: str, *, attached: bool = True, may_fail: bool = False) -> list[Window]:
        """The windows of one run of the program, which must compute what it computes unobserved."""
        from traincheck.sources.recording.call_sites import CallSites
        from traincheck.sources.recording.recorder import Recorder
        from traincheck.sources.registry import attach, build_all

        gc.collect()
        gc.freeze()  # sources look for modules that exist already
        windows: list[Window] = []
        errors: list[BaseException] = []

        def on_fault(source: str, error: BaseException) -> None:
            if source == self._name:
                errors.append(error)

        recorder = Recorder(CallSites((self._project,)), windows.append, on_fault)
        extra = (self._declaration,) if attached else ()
        built = build_all(recorder, lambda: None, _when_imported, installed=False, extra=extra)
        undo, missing = attach(built.sources, demand, recorder)
        try:
            computed = _exact(self._program())
        except Exception as error:
            raise _fail(
                f"{where}, {self._name} makes the program raise {error!r}", "Guard every callback (`Recorder.guarded`)"
            ) from error
        finally:
            recorder.finish()
            undo.close()
            gc.unfreeze()
        if not may_fail and (errors or any(reason.startswith(f"{self._name}:") for reason in missing)):
            raise _fail(f"{where}, {self._name} fails: {(errors or missing)[0]}", "Fix that first") from next(
                iter(errors), None
            )
        if computed != self._expected:
            raise _fail(
                f"{where}, the program computes something else while {self._name} observes it",
                "Read what you need, and change, draw and synchronise nothing",
            )
        return windows

    def _state(self) -> Mapping[str, object]:
        gc.collect()  # objects of the program that nothing holds any more may have finalizers
        return process_state(self._packages)

    def _leaves_nothing(self, before: Mapping[str, object], subject: str) -> None:
        left = differences(before, self._state())
        if left:
            raise _fail(
                f"{subject} leaves changes in the process: {', '.join(sorted(left)[:3])}",
                "Put everything back in the undo stack that `attach` returns",
            )

    def _serves_what_it_declares(self, windows: Sequence[Window], without: Sequence[Window]) -> int:
        own = set(_kinds(windows)) - set(_kinds(without))
        if not own:
            raise ValueError(f"{self._name} reports nothing in this program, so nothing is proven")
        module = plugins.source_class(self._declaration).__module__
        for event, names in sorted(own):
            if names[0].startswith(f"{module}."):
                continue  # its own code, where that lies in the project
            if event == "reading":
                declared = self._declaration.serves_reading(*names)
            else:
                declared = any(map(self._declaration.serves_call, names))
            if not declared:
                raise _fail(
                    f"{self._name} reports a {event} of {'.'.join(names) if event == 'reading' else names[0]}, which "
                    "it does not declare",
                    "Name it in `apis` or `readings` of the declaration",
                )
        return len([names for _, names in own if not names[0].startswith(f"{module}.")])

    def _attaches_on_demand(self, before: Mapping[str, object]) -> None:
        """A source that nothing rests on changes nothing, also while the program is observed."""
        from traincheck.sources.recording.call_sites import CallSites
        from traincheck.sources.recording.recorder import Recorder
        from traincheck.sources.registry import attach, build_all

        self._observe(NOTHING, "under an empty demand")
        if self._declaration.serves(NOTHING):
            return
        recorder = Recorder(CallSites((self._project,)), lambda window: None, lambda source, error: None)
        built = build_all(recorder, lambda: None, _when_imported, installed=False, extra=(self._declaration,))
        undo, _ = attach([source for source in built.sources if source.name == self._name], NOTHING, recorder)
        with undo:
            self._leaves_nothing(before, "Under an empty demand, it")

    def _keeps_faults_to_itself(self, callbacks: Mapping[faults.Callback, int]) -> None:
        if not any(callbacks.values()):
            raise _fail(f"{self._name} guards no callback", "Pass every callback through `Recorder.guarded`")
        for callback in callbacks:
            with faults.failing(callback, MemoryError):
                self._observe(EVERYTHING, f"after a fault in {callback.function}", may_fail=True)
        with faults.failing_at(plugins.source_class(self._declaration), "attach"):
            self._observe(EVERYTHING, "after a fault in `attach`", may_fail=True)


def _when_imported(
    name: str, ready: Callable[[], Any], around: Callable[[], Callable[[], None]] | None
) -> Callable[[], None]:
    """Libraries are imported before a check, so nothing waits for an import."""
    if name in sys.modules:
        ready()
    return lambda: None


def _kinds(windows: Sequence[Window]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The kinds of events in these windows: calls and changes by the names of the call, readings by theirs."""
    for window in windows:
        for call in window.calls:
            yield "call", call.levels
            if window.changes_of.get(call.seq):
                yield "change", call.levels
        for reading in window.readings:
            if reading.kind != SOURCE:
                yield "reading", (reading.kind, reading.attribute)


def _exact(value: Any) -> object:
    """A value in which equal means bit-identical."""
    if hasattr(value, "detach"):
        torch: Any = sys.modules["torch"]
        dense = value.detach().cpu().contiguous().reshape(-1)
        return str(value.dtype), tuple(value.shape), bytes(dense.view(torch.uint8).tolist())
    if isinstance(value, Mapping):
        return {key: _exact(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_exact(entry) for entry in value]
    return repr(value) if isinstance(value, float) else value
