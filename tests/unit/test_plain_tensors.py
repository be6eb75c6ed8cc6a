"""Random weights that are neither parameters nor buffers, and plain tensors that programs keep on purpose."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import _get_current_function_mode_stack

import traincheck
from trained_programs import errors_of, loss_of, trained


@pytest.fixture(autouse=True)
def _program_in_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program is no notebook. (Workers of pytest-xdist have a main module without a file.)"""
    monkeypatch.setattr(sys.modules["__main__"], "__file__", __file__, raising=False)


UNREGISTERED = "weights-not-registered"


class Layered(nn.Module):
    """Two layers, with something between them."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(6, 8), nn.Linear(8, 3)

    def between(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.between(self.body(x)).relu())


# -- errors ------------------------------------------------------------------------------------------------------------


class Shifted(Layered):
    def __init__(self) -> None:
        super().__init__()
        shift = 0.02 * torch.randn(8)
        self.plain_shift = shift

    def between(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.plain_shift


class Projected(Layered):
    def __init__(self) -> None:
        super().__init__()
        self.plain_matrix = torch.empty(8, 8)
        nn.init.xavier_uniform_(self.plain_matrix)
        self.bias = nn.Parameter(torch.zeros(8))

    def between(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.plain_matrix, self.bias)


class Mixture(Layered):
    def __init__(self) -> None:
        super().__init__()
        self.plain_experts = [self._expert() for _ in range(2)]

    def _expert(self) -> torch.Tensor:
        return torch.Tensor(8, 8).uniform_(-0.5, 0.5)

    def between(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([x @ expert for expert in self.plain_experts]).mean(0)


class Kernel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.plain_log_step = torch.rand(8) * math.log(10)
        self.rate = nn.Parameter(torch.ones(8))

    def forward(self) -> torch.Tensor:
        return torch.exp(-self.rate * torch.exp(self.plain_log_step))


class WithKernel(Layered):
    def __init__(self) -> None:
        super().__init__()
        self.kernel = Kernel()

    def between(self, x: torch.Tensor) -> torch.Tensor:
        return torch.fft.irfft(torch.fft.rfft(x) * torch.fft.rfft(self.kernel()), n=8)


@pytest.mark.parametrize("model", [Shifted, Projected, Mixture, WithKernel])
def test_random_weights_that_are_not_registered_are_found(tmp_path: Path, model: type[nn.Module]) -> None:
    assert errors_of(tmp_path, lambda: trained(model())) == {UNREGISTERED}


# -- clean programs ----------------------------------------------------------------------------------------------------


class Registered(Layered):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("buffer", torch.randn(8))
        self.gain = nn.Parameter(torch.randn(8))
        self.view = self.gain.detach()

    def between(self, x: torch.Tensor) -> torch.Tensor:
        return (x + self.buffer + self.view) * self.gain


class RandomFeatures(Layered):
    def __init__(self) -> None:
        super().__init__()
        self.frequencies = torch.randn(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(torch.sin(x @ self.frequencies))


class Reservoir(Layered):
    def __init__(self) -> None:
        super().__init__()
        self.inward, self.inner = torch.rand(6, 6) - 0.5, torch.rand(6, 6) - 0.5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = torch.zeros(len(x), 6)
        for _ in range(3):
            state = torch.tanh(x @ self.inward + state @ self.inner)
        return super().forward(state)


class OwnStream(Layered):
    def __init__(self) -> None:
        super().__init__()
        self.fixed = torch.randn(8, generator=torch.Generator().manual_seed(0))

    def between(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.fixed


class Seeded(Layered):
    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(1)
            self.drawn = torch.randn(8)

    def between(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.drawn


class Constants(Layered):
    def __init__(self) -> None:
        super().__init__()
        self.wave = torch.sin(torch.arange(8.0))
        self.ones, self.zero = torch.ones(8), torch.tensor(0.0)
        self.mask = (torch.rand(8) > 0.5).float()
        self.factor = torch.rand(1)

    def between(self, x: torch.Tensor) -> torch.Tensor:
        return (x + self.wave + self.zero) * self.ones * self.mask * self.factor


class NewNoise(Layered):
    def __init__(self) -> None:
        super().__init__()
        self.noise = torch.randn(8)

    def draw(self) -> None:
        self.noise = torch.randn(8)

    def between(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.noise


class OwnBank(Layered):
    """Its calls write to it."""

    def __init__(self) -> None:
        super().__init__()
        self.bank = torch.randn(4, 8)

    def between(self, x: torch.Tensor) -> torch.Tensor:
        bank = self.bank
        bank[:1] = x[:1].detach()
        return x + self.bank.clone().mean(0)


class Average(Layered):
    """Its loop writes to it, at the end of each pass."""

    def __init__(self) -> None:
        super().__init__()
        self.center = torch.randn(8)

    def between(self, x: torch.Tensor) -> torch.Tensor:
        return x - self.center


def with_an_average() -> None:
    model = Average()
    trained(model)
    model.center.mul_(0.9)


class Filled(Layered):
    """A method writes to it that its loop calls seldom."""

    def __init__(self) -> None:
        super().__init__()
        self.prototypes = torch.randn(8, 8)

    def refresh(self, features: torch.Tensor) -> None:
        prototypes = self.prototypes
        prototypes.copy_(features[:8])

    def between(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.prototypes


class Given(Layered):
    def __init__(self, basis: torch.Tensor | None = None, offset: torch.Tensor | None = None) -> None:
        super().__init__()
        self.basis = torch.randn(8, 8) if basis is None else basis
        if offset is None:
            offset = torch.randn(8)
        self.offset = offset

    def between(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.basis + self.offset


class Saved(Layered):
    def __init__(self) -> None:
        super().__init__()
        self.rotation = torch.randn(8, 8)

    def between(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.rotation


def saved_by_hand() -> None:
    model = Saved()
    trained(model)
    assert {"model": model.state_dict(), "rotation": model.rotation}


class SavesMore(Layered):
    def __init__(self) -> None:
        super().__init__()
        self.hidden_matrix = torch.randn(8, 8)

    def get_extra_state(self) -> torch.Tensor:
        return self.hidden_matrix

    def set_extra_state(self, state: Any) -> None:
        pass

    def between(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.hidden_matrix


class Physical(nn.Module):
    """The points of a physical problem are data, although the model draws and holds them."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
        self.points = torch.rand(20, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        residual = self.net(self.points).pow(2).mean()
        return self.net(x) + residual


class Sliced(nn.Module):
    """A loss with fixed projections, in the module of the model."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(6, 3)
        self.directions = torch.randn(3, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.net(x) @ self.directions).sort(0).values


class Leaf(Layered):
    def __init__(self) -> None:
        super().__init__()
        self.learned = torch.randn(8, requires_grad=True)

    def between(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.learned


class Shown(Layered):
    """Noise for samples that the program looks at, without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.fixed_noise = torch.randn(5, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.head(self.body(x[:5]) + self.fixed_noise)
        return super().forward(x)


class Evaluated(Layered):
    def __init__(self) -> None:
        super().__init__()
        self.only_there = torch.randn(8)

    def between(self, x: torch.Tensor) -> torch.Tensor:
        return x if self.training else x + self.only_there


class Aligned(torch.autograd.Function):
    """Feedback alignment: the backward uses other weights."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, feedback: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, feedback)
        return x @ weight

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        x, feedback = ctx.saved_tensors
        return grad @ feedback, x.t() @ grad, None


class Feedback(Layered):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.feedback = nn.Parameter(torch.randn(8, 8)), torch.randn(8, 8)

    def between(self, x: torch.Tensor) -> torch.Tensor:
        return Aligned.apply(x, self.weight, self.feedback)


class Recurrent(Layered):
    def __init__(self) -> None:
        super().__init__()
        self.state = self.new_state()

    def new_state(self) -> torch.Tensor:
        return torch.randn(1, 8)

    def between(self, x: torch.Tensor) -> torch.Tensor:
        self.state = torch.tanh(x.mean(0, keepdim=True) + self.state.detach())
        return x + self.state


def called_without_updates() -> None:
    model = Saved()
    for _ in range(4):
        loss_of(model).backward()
        model.zero_grad()


CLEAN = [
    *(Registered, RandomFeatures, Reservoir, OwnStream, Seeded, Constants, NewNoise, OwnBank, Filled, Given, SavesMore),
    *(Physical, Sliced, Leaf, Shown, Evaluated, Feedback, Recurrent),
]


@pytest.mark.parametrize("model", CLEAN)
def test_plain_tensors_that_are_meant_so_are_clean(tmp_path: Path, model: type[nn.Module]) -> None:
    assert UNREGISTERED not in errors_of(tmp_path, lambda: trained(model()))


@pytest.mark.parametrize("program", [with_an_average, saved_by_hand, called_without_updates])
def test_what_other_code_handles_is_clean(tmp_path: Path, program: Callable[[], None]) -> None:
    assert UNREGISTERED not in errors_of(tmp_path, program)


class Fails(Shifted):
    """Some calls raise an error."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(_get_current_function_mode_stack()) > 1 and not hasattr(self, "failed"):
            self.failed = True
            raise ValueError
        return super().forward(x)


@pytest.mark.parametrize("model", [Shifted, WithKernel])
def test_the_training_stays_as_it_is(tmp_path: Path, model: type[nn.Module]) -> None:
    results = []
    for observed in (False, True):
        torch.manual_seed(0)
        net = model()
        if observed:
            with traincheck.checked(tmp_path / "run", packs="shipped"):
                trained(net)
                assert len(_get_current_function_mode_stack()) <= 1
        else:
            trained(net)
        results.append(torch.cat([parameter.flatten() for parameter in net.parameters()]))
    assert torch.equal(*results)
    assert not _get_current_function_mode_stack()


def test_a_call_that_fails_leaves_no_mode(tmp_path: Path) -> None:
    model = Fails()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with traincheck.checked(tmp_path / "run", packs="shipped"):
        for _ in range(4):
            optimizer.zero_grad()
            try:
                loss_of(model).backward()
            except ValueError:
                assert len(_get_current_function_mode_stack()) <= 1
            optimizer.step()
    assert model.failed
