"""Internal faults never reach the program, and errors of the program pass through."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from observed_process import Seen, observing
from small_trainings import process_state, same, train
from traincheck.sources.data.loaders import LoaderSource
from traincheck.sources.functions.lifecycle import LifecycleSource
from traincheck.sources.functions.project_functions import ProjectFunctionSource
from traincheck.sources.gradients.autograd import AutogradSource
from traincheck.sources.modules.modules import ModuleSource
from traincheck.sources.optimizers.optimizers import OptimizerSource

STEP = "torch.optim.Optimizer.step"


# -- faults of ours --------------------------------------------------------------------------------------------------


def broken(*args: object, **kwargs: object) -> None:
    raise LookupError("a fault of ours")


FAULTS: list[tuple[type, str, str]] = [
    (OptimizerSource, "_step_begins", "optimizers"),
    (OptimizerSource, "_step_ends", "optimizers"),
    (OptimizerSource, "_record_parameters", "optimizers"),
    (OptimizerSource, "_built", "optimizers"),
    (OptimizerSource, "_clear_begins", "optimizers"),
    (OptimizerSource, "_clear_ends", "optimizers"),
    (ModuleSource, "_begins", "modules"),
    (ModuleSource, "_ends", "modules"),
    (ModuleSource, "_read_buffers", "modules"),
    (ModuleSource, "_switch_begins", "modules"),
    (ModuleSource, "_switch_ends", "modules"),
    (AutogradSource, "_begins", "autograd"),
    (AutogradSource, "_ends", "autograd"),
    (LifecycleSource, "_name_of", "lifecycle"),
    (LoaderSource, "_name", "loaders"),
    (LoaderSource, "_epoch_begins", "loaders"),
    (LoaderSource, "_index_ends", "loaders"),
    (LoaderSource, "_next_begins", "loaders"),
    (LoaderSource, "_next_ends", "loaders"),
    (LoaderSource, "_of_epoch", "loaders"),
    (LoaderSource, "_at_end", "loaders"),
    (ProjectFunctionSource, "_begins", "project"),
]


@pytest.mark.parametrize(("source", "method", "name"), FAULTS, ids=lambda value: getattr(value, "__name__", value))
def test_a_fault_of_a_source_is_reported_once_and_training_continues(
    source: type, method: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = train()
    before = process_state()
    monkeypatch.setattr(source, method, broken)
    with observing() as seen:
        assert same(train(), expected)
    assert [(fault_source, str(error)) for fault_source, error in seen.faults] == [(name, "a fault of ours")]
    assert process_state() == before


@pytest.mark.parametrize("method", ["enter", "leave"])
def test_a_recorder_that_fails_altogether_is_harmless(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from traincheck.sources.recording.recorder import Recorder

    expected = train()
    monkeypatch.setattr(Recorder, method, broken)
    with observing() as seen:
        assert same(train(), expected)
    names = [name for name, _ in seen.faults]
    assert len(names) == len(set(names)) and "functions" in names


def test_a_source_that_cannot_attach_is_reported_and_the_others_observe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AutogradSource, "attach", broken)
    before = process_state()
    with observing() as seen:
        train()
    assert process_state() == before
    assert seen.missing == ["autograd: LookupError: a fault of ours"]
    assert len(seen.named(STEP)) == 6


def test_a_failed_source_undoes_its_changes() -> None:
    from traincheck.sources.gradients import autograd
    from traincheck.testing import faults

    before = process_state()
    with faults.failing_at(autograd, "replace", after=1) as fault, observing() as seen:
        train()
    assert fault.times == 1 and process_state() == before
    assert [reason.split(":")[0] for reason in seen.missing] == ["autograd"]


# -- errors of the program


class Broken(nn.Module):
    """Raises in its forward or backward, on request."""

    fails = ""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.fails == "forward":
            raise ValueError("the user's own")
        y = self.inner(x)
        if self.fails == "backward":
            y.register_hook(self._raise)
        return y

    def _raise(self, gradient: torch.Tensor) -> None:
        raise ValueError("the user's own")


@pytest.mark.parametrize("fails", ["forward", "backward", "closure"])
def test_errors_of_the_program_pass_through_and_later_steps_are_whole(fails: str) -> None:
    with observing() as seen:
        outer = nn.Sequential(Broken(), nn.Linear(2, 1))
        optimizer = torch.optim.SGD(outer.parameters(), lr=0.1)

        def step(fails: str) -> None:
            outer[0].fails = fails

            def closure() -> float:
                optimizer.zero_grad()
                loss = outer(torch.ones(3, 2)).sum()
                loss.backward()
                if fails == "closure":
                    raise ValueError("the user's own")
                return loss.item()

            optimizer.step(closure)

        step("")
        with pytest.raises(ValueError, match="the user's own") as caught:
            step(fails)
        assert caught.traceback[-1].path.name == "test_faults.py"
        for _ in range(2):
            step("")
    assert seen.faults == []
    whole = [window for window in seen.windows if window.stage == "train"]
    shape = [[call.levels[-1] for call in window.calls if call.kind in ("lifecycle", "module")] for window in whole]
    assert shape[0] == shape[-1] and shape[0].count("torch.nn.Module.forward") == 4
    last = whole[-1]
    depths = {len(last.ancestors(call)) for call in last.calls if call.levels[-1] == STEP}
    assert depths == {0}
    outermost = [call for call in last.calls if call.receiver == "Sequential"]
    assert [dict(call.context)["outermost"] for call in outermost] == [True]


@pytest.mark.parametrize("fails", ["forward", "backward"])
def test_a_failing_step_does_not_bend_those_after_it(fails: str) -> None:
    def program(fails: str, steps: int) -> None:
        outer = nn.Sequential(Broken(), nn.Linear(2, 1))
        optimizer = torch.optim.SGD(outer.parameters(), lr=0.1)
        for number in range(steps):
            outer[0].fails = fails if number == 1 else ""
            try:
                optimizer.zero_grad()
                outer(torch.ones(3, 2)).sum().backward()
                optimizer.step()
            except ValueError:
                continue

    def shape(seen: Seen) -> list[tuple[str, str, int]]:
        window = next(window for window in reversed(seen.windows) if window.stage == "train")
        return [(call.name, call.receiver, len(window.ancestors(call))) for call in window.calls]

    with observing() as failed:
        program(fails, 5)
    with observing() as plain:
        program("", 4)
    assert shape(failed) == shape(plain)
    assert failed.faults == []
