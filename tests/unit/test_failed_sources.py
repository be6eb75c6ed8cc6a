"""A source that fails or is switched off during a run causes no false alarm; its rules are reported as not judged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from observed_process import Seen, observing
from recorded_runs import write_run
from traincheck import plugins
from traincheck.checking.engine import Engine
from traincheck.checking.offline import check_folder
from traincheck.checking.results import combine
from traincheck.inference.learn import learn
from traincheck.invariants.book import Book
from traincheck.sources.checkpoints.checkpoints import CheckpointSource
from traincheck.sources.data.loaders import LoaderSource
from traincheck.sources.functions.lifecycle import LifecycleSource
from traincheck.sources.functions.project_functions import ProjectFunctionSource
from traincheck.sources.gradients.autograd import AutogradSource
from traincheck.sources.gradients.clipping import ClippingSource
from traincheck.sources.modules.module_state import ModuleStateSource
from traincheck.sources.modules.modules import ModuleSource
from traincheck.sources.optimizers.optimizers import OptimizerSource
from traincheck.sources.recording.call_sites import CallSites
from traincheck.sources.recording.listener import RecorderListener
from traincheck.sources.recording.recorder import Recorder
from traincheck.sources.registry import attach, build
from traincheck.sources.tensors.call_summaries import CallSummaries
from traincheck.vocab.demand import EVERYTHING
from traincheck.vocab.events import FAILED, SOURCE, Window
from traincheck.vocab.finding import NOT_OBSERVED, PASSED

SCRIPT = "train.py"
EPOCHS, BATCHES = 4, 4


def scale(outputs: torch.Tensor, factor: float) -> torch.Tensor:
    return outputs * factor


def train(seed: int, after: Callable[[int], object] = lambda step: None, *, clears: bool = True) -> None:
    """A run with calls for every source; `after` is called after each step, with its number."""
    torch.manual_seed(seed)
    layers = (nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.1), nn.Linear(8, 1))
    model = nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    x = torch.randn(BATCHES * 4, 4)
    loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=4, shuffle=True)
    step = 0
    for _ in range(EPOCHS):
        model.train()
        for batch, target in loader:
            step += 1
            if clears or step < 9:
                optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                outputs = scale(model(batch), 0.5)
            nn.functional.mse_loss(outputs.float(), target).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            after(step)
        schedule.step()
        model.eval()
        with torch.no_grad():
            scale(model(x), 0.5)
        model.load_state_dict(model.state_dict())


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Book:
    home = tmp_path_factory.mktemp("good")
    for seed in (1, 2, 3):
        with observing() as seen:
            train(seed)
        write_run(home / str(seed), SCRIPT, seen.windows, started=f"2026-01-0{seed}T03:04:05+00:00")
    learned = learn([home / str(seed) for seed in (1, 2, 3)]).book
    assert len(learned.invariants) > 40
    return learned


def violated(book: Book, windows: list[Window]) -> set[str]:
    engine = Engine(book.invariants)
    for window in windows:
        engine.feed(window)
    return {f"{violation.step} {violation.invariant.sentence}" for violation in engine.outcome.violations}


def without_source_readings(windows: list[Window]) -> list[Window]:
    """The windows without the readings that name disabled sources."""
    return [
        replace(window, index=index, readings=tuple(reading for reading in window.readings if reading.kind != SOURCE))
        for index, window in enumerate(windows)
    ]


FAULTS: list[tuple[type, str]] = [
    (OptimizerSource, "_step_begins"),
    (OptimizerSource, "_step_ends"),
    (OptimizerSource, "_record_parameters"),
    (OptimizerSource, "_clear_begins"),
    (OptimizerSource, "_clear_ends"),
    (ModuleSource, "_begins"),
    (ModuleSource, "_ends"),
    (ModuleSource, "_read_buffers"),
    (ModuleSource, "_switch_begins"),
    (AutogradSource, "_begins"),
    (AutogradSource, "_ends"),
    (LifecycleSource, "_name_of"),
    (ClippingSource, "_begins"),
    (ClippingSource, "_ends"),
    (CheckpointSource, "_state_begins"),
    (ModuleStateSource, "_read_module"),
    (LoaderSource, "_next_begins"),
    (LoaderSource, "_next_ends"),
    (LoaderSource, "_of_epoch"),
    (ProjectFunctionSource, "_begins"),
    (CallSummaries, "_summaries"),
]


def failing_from(step: list[int], original: Any, at: int) -> Callable[..., Any]:
    def method(*args: Any, **kwargs: Any) -> Any:
        if step[0] >= at:
            raise LookupError("a fault in a source")
        return original(*args, **kwargs)

    return method


@pytest.mark.parametrize(("source", "method"), FAULTS, ids=lambda value: getattr(value, "__name__", value))
def test_a_fault_during_a_run_causes_no_false_alarm(
    source: type, method: str, book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = [0]
    monkeypatch.setattr(source, method, failing_from(step, getattr(source, method), at=6))
    with observing() as seen:
        train(4, lambda number: step.__setitem__(0, number))
    assert len(seen.faults) == 1
    assert violated(book, seen.windows) == set()
    engine = Engine(book.invariants)
    for window in seen.windows:
        engine.feed(window)
    reasons = [absence.why for absence in engine.outcome.absences]
    if source is OptimizerSource:  # without it no step ends, so no window follows
        assert not reasons
    else:
        assert reasons == [FAILED] and engine.outcome.suspended, "some rule depends on it"


def test_unreported_absence_would_cause_false_alarms(book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    step = [0]
    monkeypatch.setattr(ClippingSource, "_begins", failing_from(step, ClippingSource._begins, at=6))
    with observing() as seen:
        train(4, lambda number: step.__setitem__(0, number))
    assert violated(book, without_source_readings(seen.windows)) != set() == violated(book, seen.windows)


def switching(source: str, off: int, on: int, *, clears: bool = True) -> Seen:
    """A run in which a source is switched off after one step, and on again after another."""
    step = [0]
    with observing() as seen:
        recorder = seen.recorder

        class Switch(RecorderListener):
            def window_closed(self, cut: object) -> None:
                if step[0] == off:
                    recorder.switch(source, off=True)
                if step[0] == on:
                    recorder.switch(source, off=False)

        recorder.add_listener(Switch())
        train(5, lambda number: step.__setitem__(0, number), clears=clears)
    assert seen.faults == []
    return seen


DECLARED = plugins.load(plugins.SOURCE_GROUP, plugins.SOURCES)
SWITCHABLE = [name for name, declaration in DECLARED.items() if declaration.can_be_switched_off]


@pytest.mark.parametrize("source", SWITCHABLE)
def test_a_source_that_is_switched_off_and_on_causes_no_false_alarm(source: str, book: Book) -> None:
    seen = switching(source, 5, 9)
    assert violated(book, seen.windows) == set()
    off = [window for window in seen.windows if source in window.off]
    assert off and {window.step for window in off} <= {6, 7, 8, 9}
    assert len(seen.windows) < seen.windows[-1].index + 1, "windows in which it changed are left out"
    assert source not in seen.windows[-1].off


def test_rules_of_other_sources_are_judged_while_one_is_off(book: Book) -> None:
    seen = switching("functions", 5, 99, clears=False)
    violations = violated(book, seen.windows)
    assert any(line.startswith("9 ") and "clear" in line for line in violations), violations


def test_the_report_names_the_source_that_was_off_and_offline_agrees(tmp_path: Path, book: Book) -> None:
    seen = switching("clipping", 5, 99)
    engine = Engine(book.invariants)
    for window in seen.windows:
        engine.feed(window)
    live = combine(book, book.invariants, [engine.outcome], unobserved={})
    offline = check_folder(write_run(tmp_path / "run", SCRIPT, seen.windows), book)
    assert live.report.not_observed == offline.report.not_observed
    assert "source clipping was switched off at step 7: what rests on it was not judged" in live.report.not_observed
    assert live.verdicts == offline.verdicts
    verdicts = {verdict for rule, verdict in live.verdicts if "clip_grad_norm_" in rule.sentence}
    assert verdicts == {NOT_OBSERVED}
    assert PASSED in {verdict for _, verdict in live.verdicts}


def test_rules_are_judged_again_after_their_source_was_off(book: Book) -> None:
    seen = switching("clipping", 5, 9)
    engine = Engine(book.invariants)
    for window in seen.windows:
        engine.feed(window)
    checked = combine(book, book.invariants, [engine.outcome], unobserved={})
    assert not engine.outcome.suspended
    (description,) = (line for line in checked.report.not_observed if "clipping" in line)
    assert description.endswith("not judged then, and observed again from step 11 on")


def test_learning_ignores_the_steps_in_which_a_source_was_off(tmp_path: Path, book: Book) -> None:
    seen = switching("clipping", 5, 9)
    home = write_run(tmp_path / "run", SCRIPT, seen.windows)
    again = learn([home]).book
    assert not any("does not" in rule.sentence and "clip" in rule.sentence for rule in again.invariants)


def test_a_source_that_cannot_attach_causes_no_false_alarm(book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ClippingSource, "attach", failing_from([9], None, at=0))
    with observing() as seen:
        train(4)
    assert violated(book, seen.windows) == set()


def test_a_source_that_was_never_attached_is_not_switched_on() -> None:
    recorder = Recorder(CallSites(()), lambda window: None, lambda source, error: None)
    recorder.availability.mark_missing("clipping")
    recorder.switch("clipping", off=False)
    assert "clipping" in recorder.availability.disabled
    undo, _ = attach(build(recorder, lambda: None), EVERYTHING, recorder)
    undo.close()
