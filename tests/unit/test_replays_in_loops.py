"""Tests replays in loops with several models, with models that compute their loss, and with models that cannot be
replayed."""

from __future__ import annotations

import json
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

import traincheck
from traincheck.sources.replay import captured_call, restorable_call
from traincheck.trace.folder import RunFolder
from traincheck.vocab.replayed_computations import KIND, SAME
from traincheck.vocab.verification import EXPERIMENTS

STEPS, EVERY = 20, 8
REPLAYED = {1, 2, 3, 8, 16}
"""Steps that are replayed: the first three, and one of `EVERY`."""


@pytest.fixture(autouse=True)
def nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captured_call, "has_compiled_code", lambda: False)
    monkeypatch.setattr(restorable_call, "has_compiled_code", lambda: False)


class Outcome(NamedTuple):
    """The steps in which a computation repeated, by name and part, and the messages about missing observations."""

    same: dict[str, set[int]]
    missed: list[str]


def checked(folder: Path, steps: Callable[[], Iterator[None]], sample_every: int = 1) -> Outcome:
    torch.manual_seed(0)
    with traincheck.checked(
        folder / "run", packs="none", verify_every=EVERY, record="all", budget=f"1/{sample_every},first=1"
    ):
        for _ in steps():
            pass
    run, report = RunFolder.open(folder / "run"), json.loads((folder / "run" / "report.json").read_text())
    same: dict[str, set[int]] = defaultdict(set)
    for _, windows in run.windows():
        for window in windows:
            for reading in window.readings:
                if reading.kind == KIND and reading.attribute not in EXPERIMENTS:
                    assert reading.value == SAME
                    same[f"{reading.variable.partition('#')[0]}.{reading.attribute}"].add(window.step)
    return Outcome(same, [reason for reason in report["not_observed"] if "replay" in reason])


def test_models_that_take_turns(tmp_path: Path) -> None:
    class Generator(nn.Sequential):
        pass

    class Critic(nn.Sequential):
        pass

    def steps() -> Iterator[None]:
        generator, critic = Generator(nn.Linear(4, 8), nn.Tanh()), Critic(nn.Linear(8, 4), nn.Linear(4, 1))
        of_generator, of_critic = torch.optim.Adam(generator.parameters()), torch.optim.SGD(critic.parameters(), lr=0.1)
        for _ in range(STEPS):
            made = generator(torch.randn(16, 4))
            of_critic.zero_grad()
            (critic(made.detach()).mean() - critic(torch.randn(16, 8)).mean()).backward()
            of_critic.step()
            of_generator.zero_grad()
            (-critic(made).mean()).backward()
            of_generator.step()
            yield

    outcome = checked(tmp_path, steps)
    assert outcome.missed == []
    assert outcome.same == {
        "Generator.forward": REPLAYED,
        "Generator.backward": REPLAYED,
        "Critic.forward": REPLAYED,  # its gradients are of several calls
        "Adam.update": REPLAYED,
        "SGD.update": REPLAYED,
    }


def test_a_model_that_computes_its_loss(tmp_path: Path) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 3)

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            hidden = self.body(x)
            logits = self.head(hidden)
            return {"loss": F.cross_entropy(logits, labels), "logits": logits, "hidden": hidden}

    def steps() -> Iterator[None]:
        model = Model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(STEPS):
            optimizer.zero_grad()
            model(torch.randn(8, 4), torch.randint(0, 3, (8,)))["loss"].backward()
            optimizer.step()
            yield

    outcome = checked(tmp_path, steps)
    assert outcome.missed == []
    assert outcome.same == {"Model.forward": REPLAYED, "Model.backward": REPLAYED, "SGD.update": REPLAYED}


def test_modules_that_are_called_one_after_the_other(tmp_path: Path) -> None:
    class Body(nn.LSTM):
        pass

    class Head(nn.Linear):
        pass

    def steps() -> Iterator[None]:
        body, head = Body(4, 8), Head(8, 3)
        optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1)
        for _ in range(STEPS):
            optimizer.zero_grad()
            hidden, _state = body(torch.randn(5, 8, 4))
            F.cross_entropy(head(hidden).flatten(0, 1), torch.randint(0, 3, (40,))).backward()
            optimizer.step()
            yield

    outcome = checked(tmp_path, steps)
    assert outcome.missed == []
    parts = [f"{name}.{part}" for name in ("Body", "Head") for part in ("forward", "backward")]
    assert outcome.same == {**dict.fromkeys(parts, REPLAYED), "SGD.update": REPLAYED}


def test_a_model_without_a_backward_is_not_replayed_in_each_step(tmp_path: Path) -> None:
    captures: list[int] = []

    class Teacher(nn.Linear):
        pass

    class Student(nn.Linear):
        pass

    def steps() -> Iterator[None]:
        teacher, student = Teacher(4, 2), Student(4, 2)
        optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
        for step in range(1, STEPS + 1):
            x = torch.randn(8, 4)
            optimizer.zero_grad()
            target = teacher(x)
            F.mse_loss(student(x), target.detach()).backward()
            captures.extend([step] * (target._backward_hooks is not None))
            optimizer.step()
            yield

    outcome = checked(tmp_path, steps)
    assert outcome.same.keys() == {"Student.forward", "Student.backward", "SGD.update"}
    assert outcome.same["Student.forward"] == REPLAYED
    assert set(captures) == REPLAYED | {EVERY, 2 * EVERY}  # experiments follow outputs as well, in verified steps
    of_rules, of_teacher = sorted(outcome.missed)
    assert of_rules == "models or optimizers could not be replayed"
    assert "Teacher was not replayed in some steps: no backward" in of_teacher


def test_a_result_without_tensors_is_the_reason(tmp_path: Path) -> None:
    class Policy(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.distributions.Categorical:  # type: ignore[override]
            return torch.distributions.Categorical(logits=super().forward(x))

    def steps() -> Iterator[None]:
        policy = Policy(4, 2)
        optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
        for _ in range(STEPS):
            optimizer.zero_grad()
            policy(torch.randn(8, 4)).entropy().mean().backward()
            optimizer.step()
            yield

    outcome = checked(tmp_path, steps)
    assert outcome.same == {"SGD.update": REPLAYED}
    assert (
        "Policy cannot be replayed: TrainCheck finds no tensors in its result (Categorical)"
        in sorted(outcome.missed)[1]
    )


def test_hooks_that_a_forward_puts_on_its_result_are_called_by_the_program_alone(tmp_path: Path) -> None:
    called = []

    class Engine(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result = super().forward(x)
            result.register_hook(called.append)  # as DeepSpeed does, to reduce gradients between ranks
            return result

    def steps() -> Iterator[None]:
        engine = Engine(4, 2)
        optimizer = torch.optim.SGD(engine.parameters(), lr=0.1)
        for _ in range(STEPS):
            optimizer.zero_grad()
            engine(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
            yield

    outcome = checked(tmp_path, steps)
    assert len(called) == STEPS
    assert any("Engine cannot be replayed: its forward puts hooks on its result" in text for text in outcome.missed)


def test_captured_calls_are_released_in_unwatched_steps(tmp_path: Path) -> None:
    batches: list[weakref.ref[torch.Tensor]] = []
    copied = restorable_call.copied
    left: list[int] = []

    def noting(given: Any) -> Any:
        copies = copied(given)
        batches.extend(weakref.ref(leaf) for leaf in tree_leaves(copies) if isinstance(leaf, torch.Tensor))
        return copies

    def steps() -> Iterator[None]:
        teacher, student = nn.Linear(4, 2), nn.Linear(4, 2)
        optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
        for _ in range(STEPS):
            x = torch.randn(8, 4)
            optimizer.zero_grad()
            F.mse_loss(student(x), teacher(x).detach()).backward()
            optimizer.step()
            left.append(sum(batch() is not None for batch in batches))
            yield

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(restorable_call, "copied", noting)
        checked(tmp_path, steps, sample_every=6)
    # In a verified step, replays and the experiments about inputs hold a batch each until the next step.
    assert batches and max(left) == 2 and left.count(0) > STEPS / 2
