"""Which weights a copy of a model has: those of the trained model now, earlier ones, its first ones, or others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from observed_process import Seen, observing
from traincheck.sources.modules import model_copies
from traincheck.sources.modules.model_copies import EARLIER, FIRST, NEWEST, OTHER
from traincheck.trace import weight_versions
from traincheck.trace.weight_versions import WeightVersions
from traincheck.vocab.demand import MODEL, WEIGHTS, Demand

DEMAND = Demand.of_calls("torch.nn.Module.load_state_dict") | Demand.of_readings(f"{MODEL}.{WEIGHTS}")
ROWS = torch.ones(4, 8)

Change = Callable[[nn.Module, nn.Module], object]


def load(copy: nn.Module, policy: nn.Module) -> None:
    copy.load_state_dict(policy.state_dict())


def keep(copy: nn.Module, policy: nn.Module) -> None:
    """Leave the copy as it is."""


def average(copy: nn.Module, policy: nn.Module) -> None:
    with torch.no_grad():
        for mine, other in zip(copy.parameters(), policy.parameters(), strict=True):
            mine.lerp_(other, 0.5)


class Trainer:
    """A policy, and an update of it."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.policy = nn.Linear(8, 8)
        self.optimizer = torch.optim.SGD(self.policy.parameters(), lr=0.1)

    def update(self) -> None:
        self.optimizer.zero_grad()
        self.policy(ROWS).square().sum().backward()
        self.optimizer.step()


def look_at(copy: nn.Module) -> None:
    with torch.no_grad():
        copy(ROWS)


def reported(seen: Seen) -> list[str]:
    assert seen.faults == []
    return [str(reading.value) for reading in seen.readings if reading.attribute == WEIGHTS]


@pytest.mark.parametrize(
    ("change", "expected"),
    [(load, [NEWEST]), (keep, [NEWEST, FIRST]), (average, [NEWEST, OTHER])],
    ids=["load", "keep", "average"],
)
def test_a_copy_in_the_process_of_the_trainer(tmp_path: Path, change: Change, expected: list[str]) -> None:
    with observing(DEMAND, versions=WeightVersions(tmp_path, 1)) as seen:
        trainer = Trainer()
        copy = nn.Linear(8, 8)
        load(copy, trainer.policy)
        look_at(copy)
        for _ in range(4):
            trainer.update()
            change(copy, trainer.policy)
            look_at(copy)
    assert reported(seen) == expected


def test_a_copy_with_the_weights_before_an_update_has_earlier_ones(tmp_path: Path) -> None:
    with observing(DEMAND, versions=WeightVersions(tmp_path, 1)) as seen:
        trainer = Trainer()
        copy = nn.Linear(8, 8)
        for _ in range(3):
            load(copy, trainer.policy)
            look_at(copy)
            trainer.update()
            look_at(copy)
    # At the start the copy has its first weights after the update, and later ones of the trained model.
    assert reported(seen) == [NEWEST, FIRST, EARLIER]


def test_a_copy_in_lower_precision_has_the_weights_of_its_model(tmp_path: Path) -> None:
    with observing(DEMAND, versions=WeightVersions(tmp_path, 1)) as seen:
        trainer = Trainer()
        copy = nn.Linear(8, 8).to(torch.bfloat16)
        load(copy, trainer.policy)
        with torch.no_grad():
            copy(ROWS.to(torch.bfloat16))
    assert reported(seen) == [NEWEST]


class Worker:
    """Looks at a copy as another process of the run would: a source of its own, which sees no optimizer."""

    def __init__(self, folder: Path) -> None:
        self.versions = WeightVersions(folder, 2)
        self.model = nn.Linear(8, 8)

    def lines(self, rollouts: int, policy: nn.Module, update: Callable[[], object], synchronise: Change) -> list[str]:
        self.versions.announce()
        with observing(DEMAND, versions=self.versions) as seen:
            for _ in range(rollouts):
                update()
                synchronise(self.model, policy)
                look_at(self.model)
        return reported(seen)


@pytest.mark.parametrize(
    ("synchronise", "expected"), [(load, [NEWEST]), (average, [FIRST, OTHER])], ids=["load", "average"]
)
def test_a_copy_in_another_process(tmp_path: Path, synchronise: Change, expected: list[str]) -> None:
    policy, published = nn.Linear(8, 8), WeightVersions(tmp_path, 1)

    def update() -> None:
        with torch.no_grad():
            for parameter in policy.parameters():
                parameter.mul_(0.9)
        version = model_copies._version(policy)
        assert version is not None
        published.publish(*version)

    assert Worker(tmp_path).lines(3, policy, update, synchronise) == expected


def test_a_worker_that_keeps_its_weights_has_earlier_ones(tmp_path: Path) -> None:
    policy, published = nn.Linear(8, 8), WeightVersions(tmp_path, 1)
    updates = 0

    def update() -> None:
        with torch.no_grad():
            policy.weight.mul_(0.9)
        version = model_copies._version(policy)
        assert version is not None
        published.publish(*version)

    def synchronise(copy: nn.Module, policy: nn.Module) -> None:
        nonlocal updates
        updates += 1
        if updates < 3:
            load(copy, policy)

    assert Worker(tmp_path).lines(4, policy, update, synchronise) == [NEWEST, EARLIER]


def test_a_trainer_publishes_once_another_process_has_a_copy(tmp_path: Path) -> None:
    mine, others = WeightVersions(tmp_path, 1), WeightVersions(tmp_path, 2)
    with observing(DEMAND, versions=mine) as seen:
        trainer = Trainer()
        trainer.update()
        assert not others.look_for_others(search=True)
        others.announce()
        trainer.update()
        assert others.look_for_others(search=True)
        state = others.state()
        (version,) = others.of_others()
        assert version == model_copies._version(trainer.policy)
        trainer.update()
        assert others.state() != state and len(others.of_others()) == 2
    assert reported(seen) == []


def test_only_the_last_versions_are_kept(tmp_path: Path) -> None:
    mine, others = WeightVersions(tmp_path, 1), WeightVersions(tmp_path, 2)
    for number in range(weight_versions.MAX_VERSIONS + 5):
        mine.publish("model", f"{number}")
    assert others.look_for_others(search=True)
    digests = [version.digest for version in others.of_others()]
    assert (len(digests), digests[-1]) == (weight_versions.MAX_VERSIONS, f"{weight_versions.MAX_VERSIONS + 4}")


def test_a_load_ends_a_window_of_a_process_that_only_evaluates(tmp_path: Path) -> None:
    with observing(DEMAND, versions=WeightVersions(tmp_path, 1)) as seen:
        model, other = nn.Linear(8, 8).eval(), nn.Linear(8, 8)
        for _ in range(3):
            load(model, other)
            look_at(model)
    assert [stage for stage, _ in seen.stages if stage == "eval"] == ["eval"] * 3
