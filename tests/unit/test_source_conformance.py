"""The conformance kit for sources: the template passes it, and each broken promise is found and named with its cure."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

import tiny_optim
from observed_process import observing
from traincheck import plugins
from traincheck.errors import PluginError
from traincheck.sources import registry
from traincheck.sources.base import UndoStack, wrapping
from traincheck.sources.base import replace as put
from traincheck.sources.template import DECLARATION, TinyOptimSource
from traincheck.testing.sources import NotConforming, check_source
from traincheck.vocab.demand import ALL, COMPUTATION, Demand
from traincheck.vocab.events import MISSING, NO_CALL, Reading
from traincheck.vocab.facts import value_of

TESTS = str(Path(__file__).parents[1])
UPDATE = "torch.optim.Optimizer.step"


def train() -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
    optimizer = tiny_optim.SignSGD(model.parameters(), lr=0.01)
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


def test_the_template_conforms() -> None:
    assert check_source("traincheck.sources.template:DECLARATION", train, TESTS) == 2  # the call, and its changes


# -- broken promises -------------------------------------------------------------------------------------------------


@pytest.fixture
def package() -> Iterator[ModuleType]:
    """A module for a source, as a package would bring it."""
    module = ModuleType("odd_source")
    sys.modules["odd_source"] = module
    yield module
    del sys.modules["odd_source"]


def broken(package: ModuleType, monkeypatch: pytest.MonkeyPatch, cls: type, **fields: Any) -> str:
    """The target of a declaration of `cls`, which is importable."""
    monkeypatch.setattr("traincheck.testing.sources._works_without_torch", lambda declaration, target: None)
    package.Odd = cls  # type: ignore[attr-defined]
    package.DECLARATION = replace(DECLARATION, source="odd_source:Odd", **fields)  # type: ignore[attr-defined]
    return "odd_source:DECLARATION"


class LeavesHook(TinyOptimSource):
    def attach(self, demand: Demand, recorder: Any) -> ExitStack:
        undo = super().attach(demand, recorder)
        nn.Linear.left_behind = len  # type: ignore[attr-defined]
        return undo


class DrawsNumbers(TinyOptimSource):
    def attach(self, demand: Demand, recorder: Any) -> ExitStack:
        undo = UndoStack()
        draws = recorder.guarded(self.name, lambda *args: torch.rand(1))
        put(undo, tiny_optim.SignSGD, "step", wrapping(draws, lambda *_: None, lambda _: None))
        return undo


class ReportsMore(TinyOptimSource):
    def attach(self, demand: Demand, recorder: Any) -> ExitStack:
        undo = super().attach(demand, recorder)

        def report(optimizer: Any) -> None:
            recorder.record_reading(Reading(recorder.next_seq(), NO_CALL, "x", "optimizer", "odd", 1))

        report = recorder.guarded(self.name, report)
        put(undo, tiny_optim.SignSGD, "zero_grad", wrapping(report, lambda *_: None, lambda _: None))
        return undo


class Unguarded(TinyOptimSource):
    def attach(self, demand: Demand, recorder: Any) -> ExitStack:
        undo = UndoStack()

        def report(optimizer: Any) -> Any:
            return recorder.enter("lifecycle", ("tiny_optim.SignSGD.step",))

        leave = lambda call, result: recorder.leave(call)  # noqa: E731
        put(undo, tiny_optim.SignSGD, "step", wrapping(report, leave, recorder.abandon))
        return undo


class Raises(TinyOptimSource):
    def attach(self, demand: Demand, recorder: Any) -> ExitStack:
        undo = super().attach(demand, recorder)

        def report(optimizer: Any) -> None:
            raise ZeroDivisionError

        put(undo, tiny_optim.SignSGD, "zero_grad", wrapping(report, lambda *_: None, lambda _: None))
        return undo


@pytest.mark.parametrize(
    ("cls", "message"),
    [
        (LeavesHook, "leaves changes in the process: .*left_behind.*undo stack"),
        (DrawsNumbers, "computes something else while tiny_optim observes it"),
        (ReportsMore, "reports a reading of optimizer.odd, which it does not declare"),
        (Unguarded, "guards no callback"),
        (Raises, "makes the program raise ZeroDivisionError.*Guard every callback"),
    ],
)
def test_a_broken_promise_is_found(
    cls: type, message: str, package: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = broken(package, monkeypatch, cls)
    try:
        with pytest.raises(NotConforming, match=message):
            check_source(target, train, TESTS)
    finally:
        if hasattr(nn.Linear, "left_behind"):
            del nn.Linear.left_behind


def test_a_declaration_is_checked_itself(package: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    for fields, message in (
        ({"name": "functions"}, "belongs to a source of TrainCheck"),
        ({"name": "other"}, "no usable class"),
        ({"apis": ()}, "declares nothing that it serves"),
        ({"absence": ""}, "describes itself to nobody"),
    ):
        with pytest.raises(NotConforming, match=message):
            check_source(broken(package, monkeypatch, TinyOptimSource, **fields), train, TESTS)


def test_a_declaration_is_imported_without_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = Path(sys.modules["traincheck.sources.template"].__file__ or "").read_text(encoding="utf-8")
    (tmp_path / "needs_torch.py").write_text(text.replace("import sys\n", "import sys\nimport torch\n"))
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(NotConforming, match=r"cannot be imported without torch.*inside `attach`"):
        check_source("needs_torch:DECLARATION", train, TESTS)


def test_a_program_that_proves_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="something else each time"):
        check_source("traincheck.sources.template:DECLARATION", lambda: torch.rand(1), TESTS)
    with pytest.raises(ValueError, match="reports nothing"):
        check_source("traincheck.sources.template:DECLARATION", lambda: None, TESTS)


# -- in the registry -------------------------------------------------------------------------------------------------


def test_every_built_source_is_declared() -> None:
    offered = [offer.source for offer in registry.offers()]
    declarations = plugins.load(plugins.SOURCE_GROUP, plugins.SOURCES)
    verifying = {name for name, declaration in declarations.items() if declaration.serves_reading(COMPUTATION, ALL)}
    on_request = {"copies"}  # like verification, it observes only where rules or a recording ask for it
    assert set(offered) == set(plugins.SOURCES) - verifying - on_request - {"summaries"}


def adding(monkeypatch: pytest.MonkeyPatch, **targets: str) -> None:
    """Have packages add sources."""
    added = plugins.added
    extensions = tuple(targets.items())
    monkeypatch.setattr(plugins, "added", lambda group: extensions if group == plugins.SOURCE_GROUP else added(group))


def test_an_installed_source_reports_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    adding(monkeypatch, tiny_optim="traincheck.sources.template:DECLARATION")
    plugins.check(plugins.SOURCE_GROUP)
    with observing(Demand.of_calls(UPDATE, changes=("parameter.data",))) as seen:
        train()
    assert seen.faults == [] and seen.missing == []
    assert [window.step for window in seen.windows if window.stage == "train"] == [1, 2, 3, 4]
    calls = seen.named("tiny_optim.SignSGD.step")
    assert [call.receiver for call in calls] == ["tiny_optim.SignSGD"] * 4
    assert not seen.named("manual.update"), "the update is reported once"
    changes = seen.around(UPDATE)
    assert {change.variable for change in changes} == {
        f"Sequential.{name}" for name in ("0.weight", "0.bias", "2.weight", "2.bias")
    }
    assert all(change.changed and value_of(change.context, "lr") == "positive" for change in changes)


class BrokenRate(float):
    def __mul__(self, other: object) -> float:
        raise ZeroDivisionError


def test_an_update_that_raises_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    adding(monkeypatch, tiny_optim="traincheck.sources.template:DECLARATION")
    with observing() as seen:
        model = nn.Linear(2, 1)
        optimizer = tiny_optim.SignSGD(model.parameters(), lr=BrokenRate(0.01))
        for _ in range(2):
            model(torch.ones(1, 2)).sum().backward()
            with pytest.raises(ZeroDivisionError):
                optimizer.step()
    assert seen.faults == [] and [call.end for call in seen.named(UPDATE)] == [NO_CALL, NO_CALL]
    assert seen.recorder.steps.counts(0)["updates"] == 0


def test_a_source_that_cannot_be_used_stops_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, target, message in (
        ("functions", "traincheck.sources.template:DECLARATION", "both traincheck.sources.functions.*claim it"),
        ("tiny_optim", "traincheck.sources.template:TinyOptimSource", "is no SourceDeclaration"),
        ("other", "traincheck.sources.template:DECLARATION", "calls itself 'tiny_optim'"),
        ("tiny_optim", "nowhere:DECLARATION", "cannot be imported"),
    ):
        adding(monkeypatch, **{name: target})
        with pytest.raises(PluginError, match=message):
            plugins.check(plugins.SOURCE_GROUP)


def test_a_source_that_fails_later_is_missing_and_the_rest_observes(monkeypatch: pytest.MonkeyPatch) -> None:
    adding(monkeypatch, odd="nowhere:DECLARATION")
    with observing() as seen:
        train()
    (reason,) = seen.missing
    assert reason.startswith("odd: PluginError") and seen.windows[-1].off == {"odd": MISSING}


@pytest.mark.parametrize("fails", [False, True])
def test_a_library_that_imports_torch_first_is_ready_when_its_import_ends(
    fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Importing torch starts TrainCheck, so a library may be half imported when its source waits for it."""
    (tmp_path / "half_imported.py").write_text(
        "from traincheck.runtime.launching import import_hooks\n"
        "import builtins, sys\n"
        "ready = lambda: builtins.seen.append(sys.modules['half_imported'].Late)\n"
        "import_hooks.when_imported('half_imported', ready)\n"
        f"{'1 / 0' if fails else ''}\n"
        "class Late: pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    seen: list[type] = []
    monkeypatch.setattr("builtins.seen", seen, raising=False)
    if fails:
        with pytest.raises(ZeroDivisionError):
            importlib.import_module("half_imported")
        assert seen == []
        return
    module = importlib.import_module("half_imported")
    assert seen == [module.Late] and type(module.__spec__) is ModuleSpec
    del sys.modules["half_imported"]
