"""Tests the experiment `round_trip`: checkpoints that restore the run agree, and those that do not are found."""

from __future__ import annotations

import copy
import gc
import io
import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

import traincheck
from traincheck.sources.verification.round_trips import model_outputs
from traincheck.trace.folder import RunFolder
from traincheck.vocab.facts import value_of
from traincheck.vocab.verification import AGREES, DISAGREES, KIND, ROUND_TRIP, UNDECIDED

STEPS, EVERY, SAVES = 12, 4, (6, 12)


@pytest.fixture(autouse=True)
def nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_outputs, "has_compiled_code", lambda: False)


class Outcome(NamedTuple):
    """The verdicts about the model and about the optimizer, what is wrong, and the diagnoses of the report."""

    model: list[str]
    optimizer: list[str]
    found: list[str]
    first: list[str]
    diagnoses: list[str]


def checked(folder: Path, steps: Iterator[object]) -> Outcome:
    gc.collect()
    gc.freeze()  # TrainCheck looks for existing modules: those of other tests would take their names
    with traincheck.checked(folder / "run", packs="none", verify_every=EVERY, record="all", budget="1/1"):
        for _ in steps:
            pass
    readings = [
        reading
        for _, windows in RunFolder.open(folder / "run").windows()
        for window in windows
        for reading in window.readings
        if (reading.kind, reading.attribute) == (KIND, ROUND_TRIP.name)
    ]
    report = json.loads((folder / "run" / "report.json").read_text())
    assert "round_trip" not in str(report["not_observed"])
    return Outcome(
        [str(reading.value) for reading in readings if reading.variable.partition("#")[0] == "Net"],
        [str(reading.value) for reading in readings if reading.variable.partition("#")[0] == "Adam"],
        [str(value_of(reading.context, "found")) for reading in readings if reading.value != AGREES],
        [str(value_of(reading.context, "first")) for reading in readings if reading.value != AGREES],
        [finding["diagnosis"] for finding in report["findings"]],
    )


class Net(nn.Module):
    """A model whose calls keep an average of its inputs, in one of several ways."""

    def __init__(self, keeps: str = "persistent") -> None:
        super().__init__()
        self.keeps = keeps
        self.body = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5))
        if keeps == "attribute":
            self.average = torch.zeros(8)
        else:
            self.register_buffer("average", torch.zeros(8), persistent=keeps == "persistent")
        self.calls = 0
        self.cache: torch.Tensor | None = None
        self.hidden = torch.zeros(1, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.calls += 1
            self.average = self.average.lerp(x.mean(0), 0.1)
        if self.cache is None:
            self.cache = torch.arange(8.0).cos()
        if self.keeps == "hidden":
            self.hidden = (self.hidden + x).tanh().detach()
            x = x + self.hidden
        return self.body(x - self.average) * self.cache


Save = Callable[[int, nn.Module, torch.optim.Optimizer], Any]


def training(keeps: str, save: Save) -> Iterator[nn.Module]:
    torch.manual_seed(0)
    model = Net(keeps)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(1, STEPS + 1):
        optimizer.zero_grad()
        model(torch.randn(16, 8) + 1).square().mean().backward()
        optimizer.step()
        saved = save(step, model, optimizer)
        if step in SAVES:
            torch.save(saved, io.BytesIO())
        yield model


def both(step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    return {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}


CORRECT: dict[str, tuple[str, Save]] = {
    "both": ("persistent", both),
    "copies": ("persistent", lambda *args: copy.deepcopy(both(*args))),
    "weights only": ("persistent", lambda step, model, optimizer: model.state_dict()),
    "saved beside": (
        "attribute",
        lambda step, model, optimizer: {"model": model.state_dict(), "extra": [model.average]},
    ),
    "hidden state of a batch": (
        "hidden",
        lambda step, model, optimizer: {**both(step, model, optimizer), "average": model.average},
    ),
    "whole model": ("attribute", lambda step, model, optimizer: model),
}


@pytest.mark.parametrize("name", CORRECT)
def test_correct_checkpoints_agree_and_training_is_undisturbed(name: str, tmp_path: Path) -> None:
    *_, alone = training(*CORRECT[name])
    seen: list[nn.Module] = []
    outcome = checked(tmp_path, (seen.append(model) for model in training(*CORRECT[name])))
    assert outcome.model == [AGREES, AGREES]
    assert set(outcome.optimizer) <= {AGREES} and bool(outcome.optimizer) is (
        name in ("both", "copies", "hidden state of a batch")
    )
    assert outcome.diagnoses == []
    state, other = alone.state_dict(), seen[-1].state_dict()
    assert all(torch.equal(value, other[key]) for key, value in state.items())
    assert alone.calls == seen[-1].calls and torch.equal(alone.average, seen[-1].average)


@pytest.mark.parametrize("keeps", ["non-persistent", "attribute"])
def test_state_that_the_file_lacks(keeps: str, tmp_path: Path) -> None:
    outcome = checked(tmp_path, training(keeps, both))
    assert outcome.model[0] == DISAGREES and set(outcome.optimizer) == {AGREES}
    assert outcome.first[0] == "Net.average"
    kind = "an attribute" if keeps == "attribute" else "a buffer with persistent=False"
    assert outcome.found[0] == (
        f"calls of the model change average, which is {kind}; the file lacks it, so the outputs of a model that loads "
        "the file differ"
    )
    assert outcome.diagnoses == ["checkpoint-does-not-restore-the-run"]


def test_a_state_of_the_optimizer_from_an_earlier_step(tmp_path: Path) -> None:
    earlier: list[Any] = []

    def save(step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
        earlier.append(copy.deepcopy(optimizer.state_dict()))
        return {"model": model.state_dict(), "optimizer": earlier[max(0, len(earlier) - 3)]}

    outcome = checked(tmp_path, training("persistent", save))
    assert outcome.model[0] == AGREES and outcome.optimizer[0] == DISAGREES
    assert outcome.first[0] == "Net.body.0.weight"
    assert "step of Net.body.0.weight in the saved state of Adam is not the optimizer's" in outcome.found[0]
    assert outcome.diagnoses == ["checkpoint-does-not-restore-the-run"]


def test_a_learning_rate_from_before_the_schedule(tmp_path: Path) -> None:
    def save(step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
        saved = both(step, model, optimizer)
        optimizer.param_groups[0]["lr"] *= 0.5
        return saved

    outcome = checked(tmp_path, training("persistent", save))
    assert outcome.optimizer[0] == DISAGREES and outcome.found[0].startswith("lr of ")


def test_a_layer_that_was_replaced_after_its_state_was_taken(tmp_path: Path) -> None:
    def save(step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
        state = {"model": dict(model.state_dict())}
        if step == SAVES[0]:
            torch.manual_seed(1)
            model.body[1] = nn.BatchNorm1d(8)
            nn.init.normal_(model.body[1].weight)
        return state

    outcome = checked(tmp_path, training("persistent", save))
    assert outcome.model[0] == DISAGREES and outcome.first[0] == "Net.body.1.weight"


def test_states_of_other_moments_are_not_judged(tmp_path: Path) -> None:
    best: dict[str, Any] = {}

    def save(step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
        if step == 3:
            best.update(copy.deepcopy(both(step, model, optimizer)))
        return best

    outcome = checked(tmp_path, training("non-persistent", save))
    assert (outcome.model, outcome.optimizer) == ([], [])


def test_a_model_with_other_outputs_in_each_call_is_undecided(tmp_path: Path) -> None:
    numbers = itertools.count()

    class Unsteady(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x + next(numbers))

    Unsteady.__name__ = "Net"

    def steps() -> Iterator[None]:
        model = Unsteady("non-persistent")
        optimizer = torch.optim.Adam(model.parameters())
        for step in range(1, STEPS + 1):
            optimizer.zero_grad()
            out = model(torch.randn(16, 8))
            out.square().mean().backward()
            optimizer.step()
            if step in SAVES:
                torch.save(both(step, model, optimizer), io.BytesIO())
            yield

    outcome = checked(tmp_path, steps())
    assert set(outcome.model) == {UNDECIDED}
    assert outcome.found == ["its outputs in evaluation mode differ from call to call"]
