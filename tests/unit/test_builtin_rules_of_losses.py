"""Built-in rules about losses: the weights of micro-batches, and the dimension of log-probabilities."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import traincheck
from traincheck.reporting.json_report import read_json
from trained_programs import Net, errors_of, loss_of

WRONG_WEIGHTS, OTHER_INPUT = "micro-batches-weigh-differently", "unexpected-loss-input"
"""Diagnoses."""


def accumulated(*, first: int = 1, number: int = 3, divisor: float = 3, model: nn.Module | None = None) -> None:
    """Accumulate `number` micro-batches, and `first` ones before the first update."""
    model = model or Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for count in (first, number, number, number):
        for _ in range(count):
            (loss_of(model) / divisor).backward()
        optimizer.step()
        optimizer.zero_grad()


def stepped_at_the_first_batch() -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.randn(64, 6), torch.arange(64) % 3), batch_size=8)
    for i, (x, y) in enumerate(loader):
        loss = F.cross_entropy(model(x), y) / 2
        loss.backward()
        if i % 2 == 0:
            optimizer.step()
            optimizer.zero_grad()


def stepped_after_a_smaller_counter() -> None:
    accumulated(first=3, number=4, divisor=4)


def two_optimizers_step_together() -> None:
    model = Net()
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in (model.body, model.head)]
    for count in (1, 2, 2):
        for _ in range(count):
            (loss_of(model) / 2).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


def complete() -> None:
    accumulated(first=3)


def divided_by_something_else() -> None:
    accumulated(first=1, number=2, divisor=4)


def divided_by_no_number_of_batches() -> None:
    accumulated(first=1, number=2, divisor=2.5)


def more_at_first() -> None:
    accumulated(first=4, number=2, divisor=2)


def the_last_window_is_shorter() -> None:
    """The first epoch ends after its first window."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        for i in range(3):
            (loss_of(model) / 2).backward()
            if (i + 1) % 2 == 0 or i == 2:
                optimizer.step()
                optimizer.zero_grad()


def a_closure_accumulates() -> None:
    """A trainer runs the last backward of each update in a closure."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def closure() -> torch.Tensor:
        loss = loss_of(model) / 2
        loss.backward()
        return loss

    for _ in range(4):
        optimizer.zero_grad()
        closure()
        optimizer.step(closure)


def a_run_goes_on() -> None:
    """A checkpoint continues a run in the midst of a window."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer.load_state_dict(torch.optim.SGD(Net().parameters(), lr=0.1, momentum=0.9).state_dict())
    for i in range(3, 12):
        (loss_of(model) / 2).backward()
        if (i + 1) % 2 == 0:
            optimizer.step()
            optimizer.zero_grad()


def a_batch_is_skipped() -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.randn(64, 6), torch.arange(64) % 3), batch_size=8)
    for i, (x, y) in enumerate(loader):
        if i != 1:
            (F.cross_entropy(model(x), y) / 3).backward()
        if i % 3 == 2:
            optimizer.step()
            optimizer.zero_grad()


def a_critic_has_two_losses() -> None:
    """Two optimizers take turns: the mean of two losses for one, and two backwards for the other."""
    model, critic = Net(), Net()
    of_critic, of_model = (torch.optim.SGD(module.parameters(), lr=0.1) for module in (critic, model))
    for _ in range(4):
        ((loss_of(critic) + loss_of(critic)) / 2).backward()
        of_critic.step()
        of_critic.zero_grad()
        for _ in range(2):
            (loss_of(model) / 2).backward()
        of_model.step()
        of_model.zero_grad()


def a_penalty_comes_in_some_steps() -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for i in range(6):
        (loss_of(model) / 2).backward()
        if i % 2:
            (sum(p.square().sum() for p in model.parameters()) / 2).backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize(
    "program",
    [accumulated, stepped_at_the_first_batch, stepped_after_a_smaller_counter, two_optimizers_step_together],
)
def test_a_first_update_with_too_few_micro_batches_is_found(tmp_path: Path, program: Callable[[], None]) -> None:
    assert WRONG_WEIGHTS in errors_of(tmp_path, program)


def test_the_error_comes_with_the_second_update(tmp_path: Path) -> None:
    errors_of(tmp_path, accumulated)
    report = read_json(tmp_path / "run" / "report.json")
    assert {(finding.identity, finding.step) for finding in report.findings} == {(WRONG_WEIGHTS, 2)}


def test_a_check_that_begins_within_a_window_is_clean(tmp_path: Path) -> None:
    model = Net()
    (loss_of(model) / 2).backward()
    with traincheck.checked(tmp_path / "run", packs="shipped"):
        accumulated(first=1, number=2, divisor=2, model=model)
    assert not read_json(tmp_path / "run" / "report.json").findings


@pytest.mark.parametrize(
    "program",
    [
        complete,
        divided_by_something_else,
        divided_by_no_number_of_batches,
        more_at_first,
        the_last_window_is_shorter,
        a_closure_accumulates,
        a_run_goes_on,
        a_batch_is_skipped,
        a_critic_has_two_losses,
        a_penalty_comes_in_some_steps,
    ],
)
def test_accumulation_that_is_meant_so_is_clean(tmp_path: Path, program: Callable[[], None]) -> None:
    assert not errors_of(tmp_path, program)


# -- log-probabilities -------------------------------------------------------------------------------------------------


class Tagger(nn.Module):
    """A score of each class for each token of sequences of five."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(7, 8), nn.Linear(8, 4)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(tokens))


class Segmenter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3, padding=1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.conv(images)


def trained_with(model: nn.Module, loss: Callable[[], torch.Tensor]) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()


def classified(dim: int, *, size: int = 9, temperature: float = 1.0) -> None:
    model = Net()
    trained_with(
        model,
        lambda: F.nll_loss(F.log_softmax(model(torch.randn(size, 6)) / temperature, dim=dim), torch.arange(size) % 3),
    )


def tagged(dim: int, arrange: Callable[[torch.Tensor], torch.Tensor], *, flat: bool = True) -> None:
    model = Tagger()
    targets = torch.arange(15).view(3, 5) % 4
    trained_with(
        model,
        lambda: F.nll_loss(
            arrange(F.log_softmax(model(torch.randint(7, (3, 5))), dim=dim)), targets.view(-1) if flat else targets
        ),
    )


def segmented(dim: int) -> None:
    model = Segmenter()
    trained_with(
        model, lambda: F.nll_loss(F.log_softmax(model(torch.randn(2, 1, 6, 6)), dim=dim), torch.ones(2, 6, 6).long())
    )


def distilled(dim: int, target_dim: int = 1, *, size: int = 9) -> None:
    model, teacher = Net(), Net()

    def loss() -> torch.Tensor:
        x = torch.randn(size, 6)
        with torch.no_grad():
            targets = F.softmax(teacher(x), dim=target_dim)
        return F.kl_div(F.log_softmax(model(x), dim=dim), targets, reduction="batchmean")

    trained_with(model, loss)


def contrasted(dim: int) -> None:
    """Scores of pairs are normalized in both directions, also with some negatives."""
    model = Net()

    def loss() -> torch.Tensor:
        texts, images = model(torch.randn(9, 6)), model(torch.randn(12, 6))
        return F.nll_loss(F.log_softmax(texts @ images.t() / 0.1, dim=dim), torch.arange(9))

    trained_with(model, loss)


def tagged_by_scores(arrange: Callable[[torch.Tensor], torch.Tensor], *targets: int, size: int = 5) -> None:
    model = Tagger()
    trained_with(
        model, lambda: F.cross_entropy(arrange(model(torch.randint(7, (3, size)))), torch.ones(targets).long())
    )


def segmented_by_scores(arrange: Callable[[torch.Tensor], torch.Tensor], *targets: int) -> None:
    model = Segmenter()
    trained_with(model, lambda: F.cross_entropy(arrange(model(torch.randn(2, 1, 6, 6))), torch.ones(targets).long()))


def positions_are_chosen(*, heads: int = 4) -> None:
    """Each head of a layer chooses one of the positions, which are as many as the heads."""
    model = nn.Linear(6, heads)
    trained_with(
        model, lambda: F.cross_entropy(model(torch.randn(3, 4, 6)).view(3, 4, heads), torch.ones(3, heads).long())
    )


def a_layer_for_several_questions() -> None:
    """The outputs of a layer are the answers to three questions."""
    model = nn.Linear(6, 12)
    trained_with(model, lambda: F.cross_entropy(model(torch.randn(9, 6)).view(-1, 4), torch.ones(27).long()))


def candidates_are_ranked() -> None:
    model = nn.Linear(6, 1)
    trained_with(model, lambda: F.cross_entropy(model(torch.randn(12, 6)).view(3, 4), torch.ones(3).long()))


def places_are_found() -> None:
    """A map of 3 x 3 places for each of nine points."""
    model = nn.Conv2d(1, 9, 3, padding=1)
    trained_with(model, lambda: F.cross_entropy(model(torch.randn(2, 1, 3, 3)).view(18, 9), torch.ones(18).long()))


def one_sample() -> None:
    model = Net()
    trained_with(model, lambda: F.nll_loss(F.log_softmax(model(torch.randn(6)), dim=0), torch.tensor(1)))


def errors() -> Iterator[Callable[[], None]]:
    yield lambda: classified(0)
    yield lambda: classified(0, temperature=2.0)
    yield lambda: classified(0, size=400_000)  # too many scores to be read
    yield lambda: tagged(1, lambda scores: scores.view(-1, 4))
    yield lambda: tagged(0, lambda scores: scores.flatten(0, 1))
    yield lambda: tagged(1, lambda scores: scores.transpose(1, 2), flat=False)
    yield lambda: segmented(-1)
    yield lambda: segmented(0)
    yield lambda: distilled(0)
    yield lambda: tagged_by_scores(lambda scores: scores.view(3, 4, 5), 3, 5)
    yield lambda: tagged_by_scores(lambda scores: scores.transpose(0, 1).reshape(3, 4, 5), 3, 5)
    yield lambda: segmented_by_scores(lambda scores: scores.view(-1, 3), 72)
    yield lambda: tagged(-1, lambda scores: scores.view(3, 4, 5), flat=False)


def meant_so() -> Iterator[Callable[[], None]]:
    yield lambda: classified(1)
    yield lambda: classified(1, size=400_000)
    yield lambda: classified(-1, temperature=2.0)
    yield lambda: tagged(-1, lambda scores: scores.view(-1, 4))
    yield lambda: tagged(-1, lambda scores: scores.reshape(15, 4))
    yield lambda: tagged(2, lambda scores: scores.permute(0, 2, 1), flat=False)
    yield lambda: tagged(-1, lambda scores: scores.transpose(1, 2).contiguous(), flat=False)
    yield lambda: tagged(-1, lambda scores: scores[:, None].squeeze(1).flatten(0, 1).double())
    yield lambda: segmented(1)
    yield lambda: distilled(1)
    yield lambda: distilled(0, 0)
    yield lambda: distilled(0, size=3)  # both dimensions have three elements
    yield lambda: contrasted(0)
    yield lambda: contrasted(1)
    yield one_sample
    yield lambda: tagged_by_scores(lambda scores: scores.transpose(1, 2), 3, 5)
    yield lambda: tagged_by_scores(lambda scores: scores[:, :-1].reshape(-1, 4), 12)
    yield lambda: tagged_by_scores(lambda scores: scores.view(3, 4, 4), 3, 4, size=4)  # nothing changes
    yield lambda: tagged_by_scores(lambda scores: scores[:, -1], 3)
    yield lambda: tagged_by_scores(lambda scores: scores.permute(1, 0, 2).flatten(0, 1), 15)
    yield lambda: segmented_by_scores(lambda scores: scores.permute(0, 2, 3, 1).reshape(-1, 3), 72)
    yield lambda: segmented_by_scores(lambda scores: scores.flatten(2), 2, 36)
    yield positions_are_chosen
    yield lambda: positions_are_chosen(heads=5)
    yield a_layer_for_several_questions
    yield candidates_are_ranked
    yield places_are_found


@pytest.mark.parametrize("program", list(errors()))
def test_a_log_softmax_over_another_dimension_is_found(tmp_path: Path, program: Callable[[], None]) -> None:
    assert OTHER_INPUT in errors_of(tmp_path, program)


@pytest.mark.parametrize("program", list(meant_so()))
def test_a_log_softmax_over_the_classes_is_clean(tmp_path: Path, program: Callable[[], None]) -> None:
    assert not errors_of(tmp_path, program)
