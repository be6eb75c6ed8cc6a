"""Tests the experiment `algorithm` in whole loops: correct ones agree or are undecided, wrong updates are found."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import traincheck
from traincheck.trace.folder import RunFolder
from traincheck.vocab.facts import value_of
from traincheck.vocab.verification import AGREES, ALGORITHM, DISAGREES, KIND, UNDECIDED

STEPS, EVERY = 12, 4

Optimizers = Callable[[Any], torch.optim.Optimizer]


class Outcome(NamedTuple):
    """The verdicts by step, the reasons where one is undecided, and the findings of the report."""

    verdicts: dict[int, str]
    reasons: list[str]
    findings: list[dict[str, Any]]


def checked(folder: Path, steps: Iterator[object], every: int = EVERY) -> Outcome:
    with traincheck.checked(folder / "run", packs="none", verify_every=every, record="all", budget="1/1"):
        for _ in steps:
            pass
    verdicts, reasons = dict[int, str](), list[str]()
    for _, windows in RunFolder.open(folder / "run").windows():
        for window in windows:
            for reading in window.readings:
                if (reading.kind, reading.attribute) == (KIND, ALGORITHM.name):
                    verdicts[window.step] = str(reading.value)
                    reasons += [str(value_of(reading.context, "found"))] if reading.value != AGREES else []
    report = json.loads((folder / "run" / "report.json").read_text())
    return Outcome(verdicts, reasons, report["findings"])


def training(make: Optimizers, dtype: torch.dtype = torch.float32) -> Iterator[nn.Module]:
    """A loop that yields its model after each step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 3)).to(dtype)
    optimizer = make(model.parameters())
    for _ in range(STEPS):
        optimizer.zero_grad()
        F.cross_entropy(model(torch.randn(16, 8, dtype=dtype)), torch.randint(0, 3, (16,))).backward()
        optimizer.step()
        yield model


def bits(model: nn.Module) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


CORRECT: dict[str, Optimizers] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01, weight_decay=0.1),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, fused=True),
    "groups": lambda parameters: torch.optim.RMSprop(
        [{"params": [p], "lr": 10.0**-n} for n, p in enumerate(parameters, 1)]
    ),
}


@pytest.mark.parametrize("name", CORRECT)
def test_correct_optimizers_agree_and_train_to_the_same_bits(name: str, tmp_path: Path) -> None:
    alone, observed = training(CORRECT[name]), list[nn.Module]()
    outcome = checked(tmp_path, (observed.append(model) for model in training(CORRECT[name])), every=1)
    assert outcome.verdicts == dict.fromkeys(range(1, STEPS + 1), AGREES) and outcome.findings == []
    *_, model = alone
    assert all(map(torch.equal, bits(model), bits(observed[-1])))


def test_sixteen_bit_parameters_of_fused_sgd(tmp_path: Path) -> None:
    """Some versions of torch leave most elements unchanged on a CPU; the experiment finds it where this one does."""

    def make(parameters: Any, **options: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.5, fused=True)

    parameter, gradient = torch.ones(64, dtype=torch.bfloat16), torch.ones(64, dtype=torch.bfloat16)
    parameter.grad = gradient
    make([parameter]).step()
    is_wrong = not torch.equal(parameter, torch.full_like(parameter, 0.5))

    outcome = checked(tmp_path, training(make, torch.bfloat16))
    assert set(outcome.verdicts.values()) == {DISAGREES if is_wrong else AGREES}
    if is_wrong:
        (finding,) = outcome.findings
        assert finding["diagnosis"] == "update-differs-from-algorithm"
        assert "compared elements of Sequential.0.weight did not get the update of SGD: value " in outcome.reasons[0]
        assert "of them kept their old value" in outcome.reasons[0] and outcome.reasons[0].startswith("in step 2, ")


class OwnAdamW(torch.optim.Optimizer):
    """AdamW of another library. From the step `skips_from` on it leaves out the last elements of each parameter."""

    def __init__(self, params: Any, lr: float = 0.01, skips_from: int = 1000) -> None:
        super().__init__(params, {"lr": lr, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.01})
        self.skips_from = skips_from

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        with torch.enable_grad():
            loss = None if closure is None else closure()
        for group in self.param_groups:
            (beta1, beta2), rate = group["betas"], group["lr"]
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state.update(step=0, exp_avg=torch.zeros_like(p), exp_avg_sq=torch.zeros_like(p))
                state["step"] += 1
                state["exp_avg"].mul_(beta1).add_(p.grad, alpha=1 - beta1)
                state["exp_avg_sq"].mul_(beta2).addcmul_(p.grad, p.grad, value=1 - beta2)
                first, second = (1 - beta ** state["step"] for beta in (beta1, beta2))
                change = state["exp_avg"] / first / ((state["exp_avg_sq"] / second).sqrt() + group["eps"])
                change = (change + p * group["weight_decay"]) * rate
                if state["step"] >= self.skips_from:
                    change.view(-1)[-3:] = 0
                p.sub_(change)
        return loss


def test_another_optimizer_is_judged_by_the_algorithm_of_its_first_updates(tmp_path: Path) -> None:
    outcome = checked(tmp_path / "right", training(OwnAdamW))
    assert set(outcome.verdicts.values()) == {AGREES}
    outcome = checked(tmp_path / "wrong", training(lambda parameters: OwnAdamW(parameters, skips_from=6)))
    # After the finding TrainCheck records the next steps in full, which pauses the experiments.
    assert [outcome.verdicts[step] for step in (2, 4, 8)] == [AGREES, AGREES, DISAGREES]
    assert outcome.reasons[0].startswith(
        "in step 8, 3 of 512 compared elements of Sequential.0.weight did not get the update of"
    )


def test_another_optimizer_that_nothing_explains_is_not_judged(tmp_path: Path) -> None:
    outcome = checked(tmp_path, training(lambda parameters: OwnAdamW(parameters, skips_from=1)))
    assert outcome.verdicts == {2: UNDECIDED}
    assert outcome.reasons == ["no algorithm that TrainCheck knows explains its updates"]


class Averaging(torch.optim.SGD):
    """Averages the weights with earlier ones in every eighth step."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, lr=0.1)
        self.slow = [p.detach().clone() for p in self.param_groups[0]["params"]]
        self.steps = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        super().step()
        self.steps += 1
        if self.steps % 8 == 0:
            for p, slow in zip(self.param_groups[0]["params"], self.slow, strict=True):
                slow.lerp_(p, 0.5)
                p.copy_(slow)


class Clipping(torch.optim.SGD):
    """Keeps weights small and prunes them."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        super().step()
        for p in self.param_groups[0]["params"]:
            p.clamp_(-0.36, 0.36)
            p[p.abs() < 0.001] = 0


def test_a_step_of_its_own_may_do_more(tmp_path: Path) -> None:
    outcome = checked(tmp_path / "averaging", training(Averaging))
    assert outcome.verdicts == {2: AGREES, 4: AGREES, 8: UNDECIDED} and outcome.findings == []
    outcome = checked(tmp_path / "clipping", training(lambda parameters: Clipping(parameters, lr=0.05)))
    assert DISAGREES not in outcome.verdicts.values() and outcome.findings == []


def with_hook(parameters: Any) -> torch.optim.Optimizer:
    """Weights of norm one, by a hook of the step."""
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    optimizer.register_step_post_hook(
        lambda *_: [p.data.div_(p.data.norm()) for p in optimizer.param_groups[0]["params"]]
    )
    return optimizer


def test_hooks_of_the_program_may_explain_a_difference(tmp_path: Path) -> None:
    outcome = checked(tmp_path, training(with_hook))
    assert outcome.verdicts == {2: UNDECIDED} and outcome.findings == []
    assert outcome.reasons == ["the program has registered hooks of its step"]


def training_with_closure(make: Optimizers) -> Iterator[nn.Module]:
    """A loop whose optimizer calls a function for the gradients, by keyword or by position."""
    torch.manual_seed(0)
    model = nn.Linear(8, 3)
    optimizer = make(model.parameters())

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(torch.randn(16, 8)).square().mean()
        loss.backward()
        return loss

    for step in range(STEPS):
        loss = optimizer.step(closure) if step % 2 else optimizer.step(closure=closure)
        assert isinstance(loss, torch.Tensor)
        yield model


@pytest.mark.parametrize("make", [CORRECT["adam"], OwnAdamW], ids=["of torch", "another"])
def test_a_closure_computes_the_gradients(make: Optimizers, tmp_path: Path) -> None:
    alone, observed = training_with_closure(make), list[nn.Module]()
    outcome = checked(tmp_path, (observed.append(model) for model in training_with_closure(make)))
    assert set(outcome.verdicts.values()) == {AGREES}
    *_, model = alone
    assert all(map(torch.equal, bits(model), bits(observed[-1])))


def test_a_wrong_update_after_a_closure_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("torch.optim.adam")
    compute = module.adam

    def leaves_one_out(parameters: list[torch.Tensor], *args: Any, **kwargs: Any) -> None:
        kept = parameters[0][-1].clone()
        compute(parameters, *args, **kwargs)
        parameters[0][-1] = kept

    monkeypatch.setattr(module, "adam", leaves_one_out)
    outcome = checked(tmp_path, training_with_closure(CORRECT["adam"]))
    assert set(outcome.verdicts.values()) == {DISAGREES}
    assert [finding["diagnosis"] for finding in outcome.findings] == ["update-differs-from-algorithm"]


@pytest.mark.parametrize("fused", [False, True])
def test_scaled_gradients_and_skipped_updates(fused: bool, tmp_path: Path) -> None:
    def steps() -> Iterator[None]:
        torch.manual_seed(0)
        model = nn.Linear(8, 3)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=fused)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for step in range(1, STEPS + 1):
            optimizer.zero_grad()
            loss = model(torch.randn(16, 8)).square().mean()
            scaler.scale(loss * (torch.inf if step in (4, 9) else 1)).backward()
            scaler.step(optimizer)
            scaler.update()
            yield

    outcome = checked(tmp_path, steps())
    assert set(outcome.verdicts.values()) == {AGREES} and 2 in outcome.verdicts and outcome.findings == []


def test_parameters_that_cannot_be_compared(tmp_path: Path) -> None:
    def steps() -> Iterator[None]:
        model = nn.Embedding(10, 4, sparse=True)
        shared = nn.Linear(4, 4).share_memory()
        optimizers = [torch.optim.SparseAdam(model.parameters()), torch.optim.SGD(shared.parameters(), lr=0.1)]
        unused = nn.Parameter(torch.ones(3))
        optimizers[1].add_param_group({"params": [unused]})
        for _ in range(STEPS):
            for optimizer in optimizers:
                optimizer.zero_grad()
            shared(model(torch.randint(0, 10, (5,)))).square().mean().backward()
            for optimizer in optimizers:
                optimizer.step()
            yield

    outcome = checked(tmp_path, steps())
    assert set(outcome.verdicts.values()) == {UNDECIDED} and outcome.findings == []
    assert set(outcome.reasons) == {
        "it has no plain memory on this rank, or its gradient is sparse",
        "other processes share its memory",
    }
