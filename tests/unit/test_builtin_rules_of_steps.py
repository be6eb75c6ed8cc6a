"""Built-in rules about the steps of training: weights of micro-batches, modes, updates and what goes into losses."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import grad
from torch.nn import functional as F
from torch.nn.utils.parametrizations import spectral_norm
from torch.utils.data import DataLoader, TensorDataset

from trained_programs import Net, clipped, errors_of, loss_of, trained

ALL_PAIRS = "loss-compares-all-pairs"
CHANGES_NOTHING = "optimizer-changes-nothing"
FLOW_STOPS = "gradient-flow-stops"
IN_TRAINING_MODE = "evaluation-in-training-mode"
NEVER_USED = "gradients-never-used"
NOT_CLIPPED = "clipping-has-no-effect"
NO_BACKWARD = "step-without-backward"
WRONG_WEIGHTS = "micro-batches-weigh-differently"
"""Diagnoses."""


def accumulated(*, divides: int = 2, micro_batches: int = 2, of: Callable[[nn.Module], torch.Tensor] = loss_of) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(12):
        loss = of(model)
        for _ in range(divides):
            loss = loss / micro_batches
        loss.backward()
        if (number + 1) % micro_batches == 0:
            optimizer.step()
            optimizer.zero_grad()


def divided_once() -> None:
    accumulated(divides=1, micro_batches=3)


def mean_of_terms(model: nn.Module) -> torch.Tensor:
    terms = [loss_of(model) for _ in range(3)]
    return sum(terms) / len(terms)  # type: ignore[return-value]


def mean_of_samples(model: nn.Module) -> torch.Tensor:
    losses = F.cross_entropy(model(torch.randn(4, 6)), torch.arange(4) % 3, reduction="none")
    return losses.sum() / len(losses)


def divided_once_after_a_mean_of_terms() -> None:
    accumulated(divides=1, micro_batches=3, of=mean_of_terms)


def divided_once_after_a_mean_of_samples() -> None:
    accumulated(divides=1, micro_batches=4, of=mean_of_samples)


def divided_twice_after_a_mean_of_terms() -> None:
    accumulated(micro_batches=3, of=mean_of_terms)


def not_accumulated() -> None:
    """Some other scale, in a program that does not accumulate."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        (loss_of(model) / 2 / 2).backward()
        optimizer.step()


def evaluated_in_training_mode(*, rate: float = 0.2, calls: int = 3, evaluates: bool = False) -> None:
    model = Net()
    model.drop.p = rate
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        for _ in range(2):
            optimizer.zero_grad()
            loss_of(model).backward()
            optimizer.step()
        model.train(not evaluates)
        with torch.no_grad():
            for _ in range(calls):
                loss_of(model)
        model.train()


def evaluated_in_evaluation_mode() -> None:
    evaluated_in_training_mode(evaluates=True)


def evaluated_without_dropout() -> None:
    evaluated_in_training_mode(rate=0.0)


def sampled_once() -> None:
    evaluated_in_training_mode(calls=1)


def labelled_in_each_step(*, evaluates: bool = False) -> None:
    """Pseudo-labels: each step calls the model once with gradients off, and so does an evaluation between passes."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.randn(27, 6)), batch_size=9)
    for _ in range(3):
        for (x,) in loader:
            with torch.no_grad():
                labels = model(x).argmax(dim=1)
            optimizer.zero_grad()
            F.cross_entropy(model(torch.randn(9, 6)), labels).backward()
            optimizer.step()
        if evaluates:
            model.eval()
            with torch.no_grad():
                model(torch.randn(9, 6))
            model.train()


def labelled_in_each_step_and_evaluated() -> None:
    labelled_in_each_step(evaluates=True)


def statistics_from(*, training_data: bool = True) -> None:
    """Train, then call the model in training mode with all batches of a loader: those of training, or others."""
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader, others = (
        DataLoader(TensorDataset(torch.randn(32, 6), torch.arange(32) % 3), batch_size=8) for _ in range(2)
    )
    for _ in range(2):
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        with torch.no_grad():
            for x, _ in loader if training_data else others:
                model(x)


def evaluated_with_statistics_of_each_batch() -> None:
    statistics_from(training_data=False)


def never_stepped(*, in_first_phase_only: bool = False) -> None:
    """Train without a step, load the weights that were saved, and train them with another optimizer."""
    model = Net()

    def phase(optimizer: torch.optim.Optimizer, *, steps: bool) -> None:
        for _ in range(12):
            loss_of(model).backward()
            if steps:
                optimizer.step()
            optimizer.zero_grad()

    phase(torch.optim.SGD(model.parameters(), lr=0.1), steps=False)
    model.load_state_dict(copy.deepcopy(model.state_dict()))
    if in_first_phase_only:
        phase(torch.optim.SGD(model.parameters(), lr=0.1), steps=True)


def never_stepped_in_the_first_phase() -> None:
    never_stepped(in_first_phase_only=True)


def one_of_two_optimizers() -> None:
    """Both hold the parameters; one of them is for later."""
    model = Net()
    optimizer, _ = torch.optim.Adam(model.parameters()), torch.optim.LBFGS(model.parameters())
    for _ in range(12):
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()


class Detaching(Net):
    """Detaches its hidden state, for all losses or for one of two."""

    def __init__(self, *, trains_body: bool) -> None:
        super().__init__()
        self.value, self.trains_body = nn.Linear(8, 3), trains_body

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.body(x).relu()
        values = self.value(hidden.detach())
        return values + self.head(hidden if self.trains_body else hidden.detach())


def detached() -> None:
    trained(Detaching(trains_body=False))


def detached_for_one_of_two_heads() -> None:
    trained(Detaching(trains_body=True))


class ScaledAndShifted(torch.autograd.Function):
    """Its backward forgets the shift, or returns its gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor, whole: bool) -> torch.Tensor:
        ctx.save_for_backward(x, scale)
        ctx.whole = whole
        return x * scale + shift

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        x, scale = ctx.saved_tensors
        return grad * scale, (grad * x).sum(0), grad.sum(0) if ctx.whole else None, None


class WithFunction(Net):
    def __init__(self, *, whole: bool) -> None:
        super().__init__()
        self.scale, self.shift, self.whole = nn.Parameter(torch.ones(6)), nn.Parameter(torch.zeros(6)), whole

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(ScaledAndShifted.apply(x, self.scale, self.shift, self.whole))


def a_function_forgets_a_gradient() -> None:
    trained(WithFunction(whole=False))


class ForgetsItsBias(nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return F.linear(input, self.weight)


class WithWrappedLayer(Net):
    """`used` says what the model uses of its wrapped layer: all, all but its bias, or its weight alone."""

    def __init__(self, used: str) -> None:
        super().__init__()
        self.used, self.wrapped = used, (ForgetsItsBias if used == "no bias" else nn.Linear)(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(F.linear(x, self.wrapped.weight) if self.used == "weight" else self.wrapped(x))


def a_layer_forgets_its_bias() -> None:
    trained(WithWrappedLayer("no bias"))


def the_weight_of_a_layer_is_used() -> None:
    trained(WithWrappedLayer("weight"))


def a_layer_uses_its_bias() -> None:
    trained(WithWrappedLayer("all"))


def score_is_matched(
    score: Callable[[nn.Module, torch.Tensor], torch.Tensor], activation: type[nn.Module] = nn.Tanh
) -> None:
    """The model is an energy, and the loss compares its derivative, which does not depend on the last bias."""
    energy = nn.Sequential(nn.Linear(6, 8), activation(), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(energy.parameters(), lr=0.01)
    for _ in range(6):
        optimizer.zero_grad()
        (score(energy, torch.randn(9, 6)) + 1).square().mean().backward()
        optimizer.step()


def an_energy_is_differentiated() -> None:
    def score(energy: nn.Module, x: torch.Tensor) -> torch.Tensor:
        (derivative,) = grad(energy(x.requires_grad_()).sum(), x, create_graph=True)
        return derivative

    score_is_matched(score)


def an_energy_of_silu_is_differentiated() -> None:
    """No operation of the loss is named as the derivative of a derivative."""

    def score(energy: nn.Module, x: torch.Tensor) -> torch.Tensor:
        (derivative,) = torch.autograd.grad(energy(x.requires_grad_()).sum(), x, create_graph=True)
        return derivative

    score_is_matched(score, nn.SiLU)


def an_energy_has_a_slope() -> None:
    score_is_matched(lambda energy, x: torch.func.jvp(energy, (x,), (torch.ones_like(x),))[1])


def a_function_returns_all_gradients() -> None:
    trained(WithFunction(whole=True))


def a_critic_steps_more_often() -> None:
    generator, critic = nn.Linear(2, 6), Net()
    of_generator, of_critic = (torch.optim.SGD(model.parameters(), lr=0.1) for model in (generator, critic))
    for number in range(9):
        of_critic.zero_grad()
        loss = critic(generator(torch.randn(9, 2)).detach()).mean() - critic(torch.randn(9, 6)).mean()
        loss.backward()
        of_critic.step()
        if number % 3 == 2:
            of_generator.zero_grad()
            (-critic(generator(torch.randn(9, 2))).mean()).backward()
            of_generator.step()


def a_target_follows() -> None:
    """One optimizer holds a network and its target, which follows it."""
    both = nn.ModuleDict({"online": Net(), "target": Net()})
    optimizer = torch.optim.SGD(both.parameters(), lr=0.1)
    for _ in range(4):
        x = torch.randn(9, 6)
        optimizer.zero_grad()
        F.mse_loss(both["online"](x), both["target"](x).detach()).backward()
        optimizer.step()
        with torch.no_grad():
            for target, online in zip(both["target"].parameters(), both["online"].parameters(), strict=True):
                target.lerp_(online, 0.1)


def in_order(*operations: str, rate: float = 0.1, steps: int = 12) -> None:
    """Train with these operations in each step: clear, backward, clip, update."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    for _ in range(steps):
        for operation in operations:
            if operation == "clear":
                optimizer.zero_grad()
            elif operation == "backward":
                loss_of(model).backward()
            elif operation == "clip":
                clipped(model)
            else:
                optimizer.step()


def clipped_too_late() -> None:
    in_order("clear", "backward", "update", "clip")


def updated_twice() -> None:
    in_order("clear", "backward", "update", "update")


def updated_twice_in_one_step() -> None:
    in_order("clear", "backward", "update", "update", "clear", "backward", "update", steps=1)


def updated_with_gradients_of_the_program() -> None:
    """An evolution strategy, after one step with a backward."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(6):
        if step == 0:
            loss_of(model).backward()
        else:
            for parameter in model.parameters():
                parameter.grad = torch.randn_like(parameter)
        optimizer.step()


def without_a_rate() -> None:
    in_order("clear", "backward", "update", rate=0.0)


def updated_after_each_backward() -> None:
    in_order("clear", "backward", "clip", "update", "clear", "backward", "clip", "update")


def a_rate_of_zero_at_first() -> None:
    in_order("clear", "backward", "update", rate=0.0, steps=5)


def clipped_together() -> None:
    """Two networks train in turn, and clipping sees the gradients of both."""
    both = nn.ModuleList([Net(), Net()])
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in both]
    for _ in range(6):
        both.zero_grad()
        for model, optimizer in zip(both, optimizers, strict=True):
            loss_of(model).backward()
            clipped(both)
            optimizer.step()


class Generator(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(2, 5), nn.ReLU(), nn.Linear(5, 6))


def a_generator_and_a_frozen_critic() -> None:
    """The layers of the generator may have one name when it is updated first."""
    generator, critic = Generator(), nn.Sequential(spectral_norm(nn.Linear(6, 8)), nn.Linear(8, 1))
    of_generator, of_critic = (torch.optim.SGD(model.parameters(), lr=0.1) for model in (generator, critic))
    for _ in range(6):
        of_critic.zero_grad()
        critic(torch.cat([torch.randn(8, 6), generator(torch.randn(8, 2)).detach()])).square().mean().backward()
        of_critic.step()
        critic.requires_grad_(False)
        of_generator.zero_grad(set_to_none=False)
        critic(generator(torch.randn(8, 2))).mean().backward()
        of_generator.step()
        critic.requires_grad_(True)


class Lookahead(torch.optim.Optimizer):
    """Steps an optimizer that holds the same parameters, then updates them itself."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner = inner
        super().__init__(inner.param_groups, {})

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        self.inner.step()
        with torch.no_grad():
            for parameter in self.param_groups[0]["params"]:
                parameter.mul_(0.999)


def an_optimizer_around_another() -> None:
    model = Net()
    optimizer = Lookahead(torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in range(6):
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()


def compared_with(*shape: int) -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of shapes that differ
        for _ in range(4):
            optimizer.zero_grad()
            F.mse_loss(model(torch.randn(9, 6)), torch.randn(*shape)).backward()
            optimizer.step()


def compared_with_all_targets() -> None:
    compared_with(9)


def compared_with_its_target() -> None:
    compared_with(9, 1)


def compared_with_one_number() -> None:
    compared_with(1)


@pytest.mark.parametrize(
    ("program", "diagnosis"),
    [
        (detached, FLOW_STOPS),
        (a_function_forgets_a_gradient, FLOW_STOPS),
        (a_layer_forgets_its_bias, FLOW_STOPS),
        (clipped_too_late, NOT_CLIPPED),
        (updated_twice, NO_BACKWARD),
        (updated_twice_in_one_step, NO_BACKWARD),
        (without_a_rate, CHANGES_NOTHING),
        (compared_with_all_targets, ALL_PAIRS),
        (accumulated, WRONG_WEIGHTS),
        (divided_twice_after_a_mean_of_terms, WRONG_WEIGHTS),
        (evaluated_in_training_mode, IN_TRAINING_MODE),
        (evaluated_with_statistics_of_each_batch, IN_TRAINING_MODE),
        (never_stepped, NEVER_USED),
        (never_stepped_in_the_first_phase, NEVER_USED),
    ],
)
def test_an_error_is_found_without_a_good_run(tmp_path: Path, program: Callable[[], None], diagnosis: str) -> None:
    assert diagnosis in errors_of(tmp_path, program)


@pytest.mark.parametrize(
    "program",
    [
        detached_for_one_of_two_heads,
        a_function_returns_all_gradients,
        a_layer_uses_its_bias,
        an_energy_is_differentiated,
        an_energy_of_silu_is_differentiated,
        an_energy_has_a_slope,
        the_weight_of_a_layer_is_used,
        a_critic_steps_more_often,
        a_target_follows,
        updated_after_each_backward,
        a_rate_of_zero_at_first,
        updated_with_gradients_of_the_program,
        clipped_together,
        a_generator_and_a_frozen_critic,
        an_optimizer_around_another,
        compared_with_its_target,
        compared_with_one_number,
        divided_once,
        divided_once_after_a_mean_of_samples,
        divided_once_after_a_mean_of_terms,
        not_accumulated,
        evaluated_in_evaluation_mode,
        evaluated_without_dropout,
        sampled_once,
        labelled_in_each_step,
        labelled_in_each_step_and_evaluated,
        statistics_from,
        one_of_two_optimizers,
    ],
)
def test_what_is_meant_so_is_clean(tmp_path: Path, program: Callable[[], None]) -> None:
    assert not errors_of(tmp_path, program)
