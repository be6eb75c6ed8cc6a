"""`verify_step` verifies training steps on live objects, and gives them back bit for bit."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from traincheck.sources.base import Source
from traincheck.sources.recording.patches import UndoStack
from traincheck.sources.verification import all_experiments
from traincheck.sources.verification.experiment_source import Reporter
from traincheck.sources.verification.training_state import TrainingState
from traincheck.testing import verify_step
from traincheck.testing.leftovers import differences, process_state
from traincheck.vocab.demand import Demand
from traincheck.vocab.verification import AGREES, DERIVATIVE, DISAGREES, UNDECIDED


class Counting(nn.Module):
    """A model with every kind of state: buffers, a counter, a list, dropout, tied weights."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.norm = nn.BatchNorm1d(8)
        self.dropout = nn.Dropout(0.2)
        self.last = nn.Linear(8, 4)
        self.last.weight = nn.Parameter(torch.randn(4, 8))
        self.register_buffer("average", torch.zeros(8), persistent=False)
        self.register_buffer("scale", torch.ones(1).expand(8))
        self.calls = 0
        self.sizes: list[int] = []
        self.average: torch.Tensor
        self.scale: torch.Tensor

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.sizes.append(len(inputs))
        hidden = self.norm(self.scale * self.first(inputs)).relu()
        self.average = 0.9 * self.average + 0.1 * hidden.detach().mean(0)
        result: torch.Tensor = self.last(self.dropout(hidden))
        return result


def loss_of(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    random.random()
    np.random.rand()
    inputs, targets = batch
    result: torch.Tensor = (model(inputs) - targets).pow(2).mean()
    return result


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(16, 4), torch.randn(16, 4)


@pytest.fixture(scope="module", autouse=True)
def _torch_keeps_what_it_looks_up() -> None:
    """Let torch set the globals that it sets at the first step that is verified in a process."""
    model = Counting()
    verify_step(model, batch(), loss_of, torch.optim.SGD(model.parameters(), lr=0.1))


OPTIMIZERS: list[Callable[[Any], torch.optim.Optimizer]] = [
    lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    lambda parameters: torch.optim.AdamW(parameters, lr=torch.tensor(1e-3)),
    lambda parameters: torch.optim.Adam(parameters, amsgrad=True),
]


def contents(model: Counting, optimizer: torch.optim.Optimizer) -> list[Any]:
    """Everything that a step changes: identities with their values."""
    tensors = [*model.parameters(), *model.buffers()]
    gradients = [parameter.grad for parameter in model.parameters()]
    state = [
        (name, value.clone() if isinstance(value, torch.Tensor) else value)
        for held in optimizer.state.values()
        for name, value in held.items()
    ]
    groups = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    return [
        [(id(tensor), tensor.detach().clone()) for tensor in tensors],
        [(id(gradient), gradient.clone()) if gradient is not None else None for gradient in gradients],
        state,
        groups,
        (model.calls, list(model.sizes), model.training),
        (torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tobytes()),  # type: ignore[index,union-attr]
    ]


def is_same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(is_same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(is_same(one[key], other[key]) for key in one)
    return bool(one == other)


@pytest.mark.parametrize("make", OPTIMIZERS)
@pytest.mark.parametrize("trained", [0, 3])
def test_the_state_is_restored_bit_for_bit(make: Callable[[Any], torch.optim.Optimizer], trained: int) -> None:
    torch.manual_seed(0)
    model = Counting()
    optimizer = make(model.parameters())
    for _ in range(trained):
        optimizer.zero_grad()
        loss_of(model, batch()).backward()
        optimizer.step()
    given = batch()
    before, hooks = contents(model, optimizer), process_state()
    verified = verify_step(model, given, loss_of, optimizer)
    assert is_same(contents(model, optimizer), before)
    assert differences(hooks, process_state()) == {}
    replays = {(row.experiment, row.agreed) for row in verified.agreed}
    assert replays >= {("forward", 2), ("backward", 2), ("update", 2)}
    assert "update again" in str(verified) and "agrees" in str(verified)


def test_the_training_goes_on_as_if_nothing_had_happened() -> None:
    def trained(verifies: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = Counting()
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(4):
            data = batch()
            if verifies:
                verify_step(model, data, loss_of, optimizer)
            optimizer.zero_grad()
            loss_of(model, data).backward()
            optimizer.step()
        return [*model.state_dict().values(), torch.get_rng_state()]

    assert is_same(trained(True), trained(False))


def test_an_error_of_the_loss_is_raised_and_the_state_restored() -> None:
    model = Counting()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before, hooks = contents(model, optimizer), process_state()

    def broken(model: nn.Module, batch: Any) -> torch.Tensor:
        loss_of(model, batch)
        raise KeyError("labels")

    with pytest.raises(KeyError, match="labels"):
        verify_step(model, (torch.zeros(2, 4), torch.zeros(2, 4)), broken, optimizer)
    assert is_same(contents(model, optimizer), before) and differences(hooks, process_state()) == {}


def test_a_model_in_evaluation_mode_is_no_success() -> None:
    model = nn.Linear(2, 2).requires_grad_(False).eval()
    weight = nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.LBFGS([weight])
    with pytest.raises(TypeError):  # it needs a closure
        verify_step(model, torch.ones(1, 2), lambda model, batch: (model(batch) * weight).sum(), optimizer)
    with pytest.raises(ValueError, match="nothing could be verified"):
        verify_step(model, torch.ones(1, 2), lambda model, batch: (weight * 2).sum(), _Idle([weight]))


class _Idle(torch.optim.Optimizer):
    """An optimizer of the program's own, which no experiment knows."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        super().__init__(parameters, {})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        return None


class Judge:
    """An experiment with a fixed verdict about each step."""

    name = "judge"

    def __init__(self, verdict: str) -> None:
        self._verdict = verdict

    def offers(self) -> str | None:
        return None

    def attach(self, demand: Demand, recorder: Any) -> Any:
        undo = UndoStack()
        reporter = Reporter(DERIVATIVE, recorder)

        def report(optimizer: Any, args: Any, kwargs: Any) -> None:
            reporter.report("Judged", self._verdict, "the gradient of last.bias is twice as large", first="last.bias")

        hook = register_optimizer_step_post_hook(recorder.guarded(self.name, report))
        undo.callback(hook.remove)
        return undo


def judged(monkeypatch: pytest.MonkeyPatch, verdict: str) -> None:
    existing = all_experiments.experiments

    def experiments(*shared: Any, **named: Any) -> list[Source]:
        return [*existing(*shared, **named), Judge(verdict)]

    monkeypatch.setattr(all_experiments, "experiments", experiments)


def test_a_wrong_computation_fails_with_the_words_of_the_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    judged(monkeypatch, DISAGREES)
    model = Counting()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = contents(model, optimizer)
    with pytest.raises(AssertionError, match=r"last\.bias") as failure:
        verify_step(model, (torch.randn(16, 4), torch.randn(16, 4)), loss_of, optimizer)
    assert DERIVATIVE.sentence in str(failure.value)
    assert is_same(contents(model, optimizer)[:5], before[:5])


def test_undecided_computations_are_returned_with_their_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    judged(monkeypatch, UNDECIDED)
    model = Counting()
    verified = verify_step(model, batch(), loss_of, torch.optim.SGD(model.parameters(), lr=0.1))
    reasons = [row.reasons for row in verified.undecided if row.subject == "Judged"]
    assert ("the gradient of last.bias is twice as large",) in reasons
    judged(monkeypatch, AGREES)
    verified = verify_step(model, batch(), loss_of, torch.optim.SGD(model.parameters(), lr=0.1))
    assert ("derivative", "Judged") in [(row.experiment, row.subject) for row in verified.agreed]


def test_shared_and_nested_state_of_an_optimizer_is_restored_in_place() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    shared = [torch.ones(2)]
    optimizer.extra = {"a": shared, "b": shared}  # type: ignore[attr-defined]
    optimizer.extra["itself"] = optimizer.extra  # type: ignore[attr-defined]
    state = TrainingState(model, optimizer)
    shared[0].mul_(3)
    shared.append(torch.zeros(1))
    optimizer.extra["c"] = 1  # type: ignore[attr-defined]
    state.restore()
    extra = optimizer.extra  # type: ignore[attr-defined]
    assert extra["a"] is extra["b"] is shared and extra["itself"] is extra and "c" not in extra
    assert len(shared) == 1 and shared[0].tolist() == [1, 1]


def test_sparse_gradients_are_restored() -> None:
    model = nn.Embedding(5, 3, sparse=True)
    optimizer = torch.optim.SparseAdam(model.parameters())
    model(torch.tensor([1, 3])).sum().backward()
    before, gradient = model.weight.detach().clone(), model.weight.grad
    assert gradient is not None and gradient.is_sparse
    dense = gradient.to_dense()
    verify_step(model, torch.tensor([0, 3]), lambda model, words: model(words).sum(), optimizer)
    assert torch.equal(model.weight, before) and not optimizer.state
    assert model.weight.grad is gradient and torch.equal(gradient.to_dense(), dense)
