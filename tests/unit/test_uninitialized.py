"""Parameters that `to_empty` allocated and nothing wrote: reported at the first call of their model, and only then."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from observed_process import observing
from traincheck.relations.periodic.reported_errors import ReportedErrors
from traincheck.vocab.occasion import Occasion


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.norm(self.inner(x))  # type: ignore[no-any-return]


def leave_garbage(model: nn.Module) -> None:
    """Possible contents of the memory of `to_empty`, written without counting a version."""
    for parameter in model.parameters():
        parameter.data.fill_(3.5)


def reset_all(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.LayerNorm)):
            module.reset_parameters()


def write_through_data(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.data.copy_(torch.randn(parameter.shape))


def load(model: nn.Module) -> None:
    model.load_state_dict(Block().state_dict())


def assign(model: nn.Module) -> None:
    model.load_state_dict(Block().state_dict(), assign=True)


def reset_the_norm(model: nn.Module) -> None:
    model.norm.reset_parameters()  # type: ignore[operator, union-attr]


def zero_all(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.data.zero_()


def occasions_after(prepare: Callable[[nn.Module], None], monkeypatch: pytest.MonkeyPatch) -> list[Occasion]:
    plain = nn.Module.to_empty

    def to_empty(self: nn.Module, *, device: str, recurse: bool = True) -> nn.Module:
        plain(self, device=device, recurse=recurse)
        leave_garbage(self)
        return self

    monkeypatch.setattr(nn.Module, "to_empty", to_empty)
    with observing() as seen:
        with torch.device("meta"):
            model = Block()
        model.to_empty(device="cpu")
        prepare(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            model(torch.randn(3, 4)).sum().backward()
            optimizer.step()
    relation = ReportedErrors()
    return [occasion for window in seen.windows for occasion in relation.occasions(window)]


@pytest.mark.parametrize("prepare", [reset_all, write_through_data, load, assign, zero_all])
def test_initialised_parameters_are_not_reported(
    prepare: Callable[[nn.Module], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert occasions_after(prepare, monkeypatch) == []


def test_uninitialised_parameters_are_reported_once_with_the_to_empty_call(monkeypatch: pytest.MonkeyPatch) -> None:
    (occasion,) = occasions_after(reset_the_norm, monkeypatch)
    assert occasion.variables == ("Block.inner.weight", "Block.inner.bias")
    assert "test_uninitialized.py" in occasion.site and occasion.failed
    assert occasion.note.startswith("2 parameters")


def test_a_model_that_was_not_emptied_is_not_spoken_of() -> None:
    with observing() as seen:
        model = Block()
        model(torch.randn(3, 4)).sum().backward()
    assert not [occasion for window in seen.windows for occasion in ReportedErrors().occasions(window)]
