"""Tests that updates of bitsandbytes are held against the algorithm that its classes state, in 8 bits too."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from traincheck.sources.verification.updates.algorithms import ADAMW, LION, documented
from traincheck.sources.verification.updates.bitsandbytes_optimizers import readable_state, settings_of
from traincheck.sources.verification.updates.judgement import UpdateHistory
from traincheck.sources.verification.updates.selection import read_before
from traincheck.vocab.verification import AGREES, DISAGREES, UNDECIDED

SIZE, BLOCK = 600, 256


def quantised(draw: torch.Generator) -> dict[str, torch.Tensor]:
    """A state as bitsandbytes keeps it: two moments in blocks of 256 codes."""
    state = {}
    for number in (1, 2):
        state[f"state{number}"] = torch.randint(256, (20, 30), generator=draw).to(torch.uint8)
        state[f"qmap{number}"] = torch.linspace(-1, 1, 256)
        state[f"absmax{number}"] = torch.rand(math.ceil(SIZE / BLOCK), generator=draw)
    return state


def test_codes_stand_for_numbers_of_their_block() -> None:
    state = quantised(torch.Generator().manual_seed(0))
    entries, coarse = readable_state(state, None)
    assert coarse == {"exp_avg", "exp_avg_sq"}
    for number, name in enumerate(("exp_avg", "exp_avg_sq"), 1):
        codes = state[f"state{number}"].reshape(-1).tolist()
        expected = [
            float(state[f"qmap{number}"][code]) * float(state[f"absmax{number}"][index // BLOCK])
            for index, code in enumerate(codes)
        ]
        assert entries[name].shape == (20, 30)
        assert entries[name].reshape(-1).tolist() == pytest.approx(expected)
        some = readable_state(state, slice(250, 270)).entries[name]
        assert torch.equal(some, entries[name].reshape(-1)[250:270])


def test_blocks_of_an_unknown_size_give_no_numbers() -> None:
    state = quantised(torch.Generator().manual_seed(0)) | {"absmax1": torch.ones(7)}
    assert readable_state(state, None).entries["exp_avg"].isnan().all()


def test_states_of_other_libraries_stay_as_they_are() -> None:
    state = {"exp_avg": torch.ones(2), "step": 3}
    assert readable_state(state, None) == (state, frozenset())


class _Lion(torch.optim.Optimizer):
    """Lion as bitsandbytes keeps it; `coupled` is an error that it had: weight decay goes into the gradient."""

    def __init__(self, parameters: Any, coupled: bool = False) -> None:
        super().__init__(parameters, {"lr": 0.01, "betas": (0.9, 0.99), "weight_decay": 0.3})
        self.coupled = coupled
        self.decays: dict[int, float] = {}

    def get_config(self, group: int, index: int, entry: dict[str, Any]) -> dict[str, Any]:
        settings = {key: value for key, value in entry.items() if key != "params"}
        return settings | {"weight_decay": self.decays.get(index, settings["weight_decay"])}

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for index, parameter in enumerate(self.param_groups[0]["params"]):
            settings, gradient = self.get_config(0, index, self.param_groups[0]), parameter.grad
            state = self.state[parameter]
            average = state.setdefault("state1", torch.zeros_like(parameter))
            rate, decay = settings["lr"], settings["weight_decay"]
            if self.coupled:
                gradient = gradient + parameter * decay
            else:
                parameter.mul_(1 - rate * decay)
            parameter.add_((average * 0.9 + gradient * 0.1).sign(), alpha=-rate)
            average.mul_(0.99).add_(gradient, alpha=0.01)


class Lion(_Lion):
    """Carries the name under which bitsandbytes has it."""


@pytest.fixture(autouse=True)
def of_the_package() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Lion, "__module__", "bitsandbytes.optim.lion")
        patch.setattr(inspect.unwrap(_Lion.step), "__module__", "bitsandbytes.optim.optimizer")
        yield


def verdicts(optimizer: torch.optim.Optimizer, steps: int = 3) -> list[str]:
    history, found = UpdateHistory(optimizer), list[str]()
    draw = torch.Generator().manual_seed(0)
    for _ in range(steps):
        for entry in optimizer.param_groups:
            for parameter in entry["params"]:
                parameter.grad = torch.randn(parameter.shape, generator=draw) * 0.1
        before = read_before(optimizer, lambda tensor: "weight")
        optimizer.step()
        with torch.no_grad():
            judgement = history.judge(before, "")
        assert judgement is not None
        found.append(judgement.verdict)
    return found


def parameters() -> list[torch.nn.Parameter]:
    draw = torch.Generator().manual_seed(1)
    return [torch.nn.Parameter(torch.randn(size, generator=draw)) for size in (40, 70)]


def test_lion_states_its_algorithm() -> None:
    stated = documented(Lion(parameters()))
    assert stated is not None
    assert (stated.name, stated.update) == (LION.name, LION.update)
    assert documented(_Lion(parameters())) is None  # another name states nothing
    assert ADAMW.tolerance == LION.tolerance == 0 < stated.tolerance


def test_a_correct_update_agrees_with_the_settings_of_each_parameter() -> None:
    optimizer = Lion(parameters())
    optimizer.decays[1] = 0.0
    assert settings_of(optimizer, 0, optimizer.param_groups[0]["params"][1])["weight_decay"] == 0.0
    assert verdicts(optimizer) == [AGREES] * 3


def test_weight_decay_in_the_gradient_disagrees() -> None:
    assert verdicts(Lion(parameters(), coupled=True)) == [DISAGREES] * 3


def test_an_option_that_changes_the_algorithm_states_nothing() -> None:
    optimizer = Lion(parameters(), coupled=True)
    optimizer.args = type("Options", (), {"max_unorm": 1.0})()  # type: ignore[attr-defined]
    assert verdicts(optimizer)[0] == UNDECIDED


@pytest.mark.parametrize("name", ["AdamW", "AdamW8bit", "Lion", "Lion8bit"])
def test_the_optimizers_of_the_package_agree(name: str) -> None:
    package = pytest.importorskip("bitsandbytes")
    options = {"min_8bit_size": 50} if name.endswith("8bit") else {}
    optimizer = getattr(package.optim, name)(parameters(), lr=1e-2, weight_decay=0.1, **options)
    assert verdicts(optimizer) == [AGREES] * 3
