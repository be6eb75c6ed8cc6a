"""Heads of a model that are one module, and modules that are shared on purpose."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from traincheck.sources.gradients.shared_heads import Choice, SharedHead, shared_heads
from trained_programs import errors_of

ONE = "heads-are-one-module"
Tensor = torch.Tensor
Make = Callable[[nn.Module], nn.Module]


def head_of(width: int = 8, drop: float = 0.0) -> nn.Module:
    return nn.Sequential(nn.Linear(width, 8), nn.ReLU(), nn.Dropout(drop), nn.Linear(8, 1))


class TwoHeads(nn.Module):
    """A trunk and two heads; `make` makes the second from the first."""

    def __init__(self, make: Make, *, drop: float = 0.0, trunk: nn.Module | None = None) -> None:
        super().__init__()
        self.trunk = trunk or nn.Linear(6, 8)
        self.first = head_of(drop=drop)
        self.second = make(self.first)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.trunk(x).relu()
        return self.first(h).squeeze(-1), self.second(h).squeeze(-1)


class Critics(nn.Module):
    """Twin critics of a state and an action, which need no gradient."""

    def __init__(self, make: Make) -> None:
        super().__init__()
        self.q1 = head_of(9)
        self.q2 = make(self.q1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        action = torch.ones(len(x), 3)
        return self.q1(torch.cat([x, action], 1)), self.q2(torch.cat([x, action], 1))


class Listed(nn.Module):
    def __init__(self, heads: list[nn.Module], *, calls: int = 2) -> None:
        super().__init__()
        self.trunk, self.heads, self.calls = nn.Linear(6, 8), nn.ModuleList(heads), calls

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        h = self.trunk(x)
        return tuple(head(h).squeeze(-1) for head in self.heads[: self.calls])


def alias(module: nn.Module) -> nn.Module:
    return module


def squares(*results: Tensor) -> Tensor:
    return torch.stack([F.mse_loss(result, torch.ones_like(result)) for result in results]).sum()


def two_tasks(value: Tensor, flag: Tensor) -> Tensor:
    value_loss = (value - torch.randn(value.shape)).abs().mean()
    flag_loss = F.binary_cross_entropy_with_logits(flag, torch.ones_like(flag))
    return 0.3 * value_loss + flag_loss / 2


def loss_of(model: nn.Module, loss: Callable[..., Tensor] = squares) -> Tensor:
    result: Tensor = loss(*model(torch.randn(5, 6)))
    return result


def found(model: nn.Module, loss: Tensor) -> list[SharedHead | Choice]:
    with torch.no_grad():
        return shared_heads(loss, model.modules())


@pytest.mark.parametrize("loss", [squares, two_tasks])
@pytest.mark.parametrize("make", [alias, copy.copy])
@pytest.mark.parametrize("kind", [TwoHeads, Critics])
def test_two_names(kind: Callable[[Make], nn.Module], make: Make, loss: Callable[..., Tensor]) -> None:
    model = kind(make)
    first, second = ("q1", "q2") if kind is Critics else ("first", "second")
    assert found(model, loss_of(model, loss)) == [SharedHead(model, first, second)]
    other = kind(copy.deepcopy)
    assert found(other, loss_of(other, loss)) == []


def test_under_autocast() -> None:
    model = TwoHeads(alias)
    with torch.autocast("cpu", torch.bfloat16):
        loss = loss_of(model)
    assert len(found(model, loss)) == 1


def test_lists() -> None:
    model = Listed([head_of()] * 3, calls=3)
    assert found(model, loss_of(model)) == [SharedHead(model.heads, "0", "1")]
    head = head_of()
    for other in (
        Listed([head_of(), head_of()]),
        Listed([head, head, head], calls=1),  # each task in turn
        Listed([head, head, head_of()], calls=3),
    ):
        assert found(other, loss_of(other)) == []


def masked(first: Tensor, second: Tensor) -> Tensor:
    """Each head learns from samples of its own."""
    mask = torch.arange(5) < 2
    return squares(first[mask], second[~mask])


def weighed(first: Tensor, second: Tensor) -> Tensor:
    mask = (torch.arange(5) < 2).float()
    return (first.pow(2) * mask).mean() + (second.pow(2) * (1 - mask)).mean()


def combined(first: Tensor, second: Tensor) -> Tensor:
    """A gate, or scores of shared queries and keys."""
    return (F.silu(first) * second).mean() + (first[:, None] @ second[None]).pow(2).mean()


def only_one(first: Tensor, second: Tensor) -> Tensor:
    return squares(first) + 0 * second.detach().sum()


@pytest.mark.parametrize("loss", [masked, weighed, combined, only_one])
def test_other_losses(loss: Callable[..., Tensor]) -> None:
    model = TwoHeads(alias)
    assert found(model, loss_of(model, loss)) == []


def test_random_heads() -> None:
    """Two dropout masks, as in R-Drop."""
    model = TwoHeads(alias, drop=0.5)
    assert found(model, loss_of(model)) == []
    assert len(found(model, loss_of(model.eval()))) == 1


class OtherInputs(TwoHeads):
    """A siamese network, or a head after each of two layers."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.trunk(x)
        return self.first(h), self.second(h.relu())


class OfColumns(TwoHeads):
    def __init__(self) -> None:
        super().__init__(alias, trunk=nn.Linear(6, 16))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        left, right = self.trunk(x).chunk(2, -1)
        return self.first(left), self.second(right)


class Noisy(TwoHeads):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.trunk(x)
        return self.first(h + 0.1 * torch.randn(h.shape)), self.second(h + 0.1 * torch.randn(h.shape))


class OtherData(TwoHeads):
    """The heads get data without gradients."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.first(torch.randn(5, 8)), self.second(torch.randn(5, 8))


class SecondName(nn.Module):
    """Keeps an older name of a head, and no method mentions it."""

    def __init__(self, make: Make) -> None:
        super().__init__()
        self.trunk, self.first = nn.Linear(6, 8), head_of()
        self.second = make(self.first)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.trunk(x)
        return self.first(h), self.first(h)


@pytest.mark.parametrize("kind", [OtherInputs, Noisy, OtherData, SecondName])
def test_heads_that_are_shared_on_purpose(kind: Callable[[Make], nn.Module]) -> None:
    model = kind(alias)
    assert found(model, loss_of(model)) == []


def test_halves_of_an_input() -> None:
    model = OfColumns()
    assert found(model, loss_of(model)) == []


def test_a_model_that_is_called_twice() -> None:
    """As in R-Drop without dropout: both names are used in each call, and the trunk runs twice."""

    class Sum(TwoHeads):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            h = self.trunk(x)
            return self.first(h), self.second(h.tanh())

    model, x = Sum(alias), torch.randn(5, 6)
    loss = squares(*model(x), *model(x))
    assert found(model, loss) == []


def test_shared_queries_and_keys() -> None:
    """As in OCNet: the layer of the queries is that of the keys."""

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query, self.value = nn.Linear(6, 4), nn.Linear(6, 4)
            self.key = self.query

        def forward(self, x: Tensor) -> tuple[Tensor]:
            scores = self.query(x) @ self.key(x).t()
            return (scores.softmax(-1) @ self.value(x),)

    model = Attention()
    assert found(model, loss_of(model)) == []


def test_tied_embeddings_and_extractors() -> None:
    class Policy(nn.Module):
        """One extractor by three names, as in Stable-Baselines3."""

        def __init__(self) -> None:
            super().__init__()
            self.extractor = self.pi_extractor = self.vf_extractor = nn.Sequential(nn.Linear(6, 8), nn.Tanh())
            self.pi, self.vf = nn.Linear(8, 2), nn.Linear(8, 1)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.pi(self.pi_extractor(x)), self.vf(self.vf_extractor(x))

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.decoder = nn.Embedding(5, 8), nn.Linear(8, 5, bias=False)
            self.decoder.weight = self.embedding.weight

        def forward(self, x: Tensor) -> tuple[Tensor]:
            return (self.decoder(self.embedding(x.long() % 5)),)

    for model in (Policy(), Tied()):
        assert found(model, loss_of(model)) == []


def smaller(first: Tensor, second: Tensor) -> Tensor:
    return -torch.min(first, second).mean()


def policy_loss(first: nn.Module, second: nn.Module, *, noise: float = 0.0) -> Tensor:
    """That of SAC: the critics are attributes of a plain object, and each concatenates its inputs."""
    state, action = torch.randn(5, 6), nn.Linear(6, 3)(torch.randn(5, 6)).tanh()
    inputs = [torch.cat([state, action + noise * torch.randn(5, 3)], 1) for _ in range(2)]
    return smaller(first(inputs[0]), second(inputs[1]))


def test_the_smaller_of_two_results() -> None:
    critic = head_of(9)
    chosen = [Choice("smaller", [critic[3].bias, critic[3].weight])]
    assert found(critic, policy_loss(critic, critic)) == chosen
    assert found(critic, policy_loss(critic, copy.copy(critic))) == chosen
    for other in (
        policy_loss(critic, head_of(9)),
        policy_loss(critic, copy.deepcopy(critic)),
        policy_loss(critic, critic, noise=0.1),
        smaller(*2 * [critic(torch.randn(5, 9))]),
        smaller(critic(torch.randn(5, 9)), critic(torch.randn(5, 9))),
        smaller(critic(torch.ones(5, 5, 9)).squeeze(-1), critic(torch.ones(5, 5, 9)).squeeze(-1).t()),
        smaller(critic[3].weight, critic[3].weight * 1),
        policy_loss(*2 * [head_of(9, drop=0.5)]),
    ):
        assert found(critic, other) == []


def test_clipped_losses() -> None:
    """The loss and the value loss of PPO take the smaller, and the larger, of two functions of one result."""
    model = TwoHeads(copy.deepcopy)
    value, score = model(torch.randn(5, 6))
    old, ratio, advantage = torch.randn(5), score.exp(), torch.randn(5)
    clipped = old + (value - old).clamp(-0.2, 0.2)
    loss = torch.max((value - 1) ** 2, (clipped - 1) ** 2).mean()
    loss = loss - torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
    assert found(model, loss) == []


def trained(model: nn.Module) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()


def test_the_error_is_reported(tmp_path: Path) -> None:
    assert ONE in errors_of(tmp_path / "alias", lambda: trained(TwoHeads(alias)))
    assert ONE in errors_of(tmp_path / "critics", lambda: trained(Critics(copy.copy)))
    assert ONE not in errors_of(tmp_path / "copy", lambda: trained(TwoHeads(copy.deepcopy)))


def as_in_sac(make: Make) -> None:
    """The actor learns from the smaller of two critics, which are attributes of an agent."""
    critic = head_of(9)
    critics, actor = [critic, make(critic)], nn.Linear(6, 3)
    optimizer = torch.optim.SGD(actor.parameters(), lr=0.1)
    critic_optimizer = torch.optim.SGD(critic.parameters(), lr=0.1)
    for _ in range(4):
        state = torch.randn(5, 6)
        inputs = torch.cat([state, torch.randn(5, 3)], 1)
        critic_optimizer.zero_grad()
        squares(*(critic(inputs) for critic in critics)).backward()
        critic_optimizer.step()
        inputs = torch.cat([state, actor(state)], 1)
        optimizer.zero_grad()
        smaller(*(critic(inputs) for critic in critics)).backward()
        optimizer.step()


def test_critics_of_an_agent(tmp_path: Path) -> None:
    assert ONE in errors_of(tmp_path / "alias", lambda: as_in_sac(alias))
    assert ONE not in errors_of(tmp_path / "new", lambda: as_in_sac(lambda _: head_of(9)))
