"""Whether the samples of a pass come twice, and whether those of an evaluation were trained on."""

from __future__ import annotations

import sys
import types

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from observed_process import observing
from traincheck.relations.consistent.repeated_samples import (
    NEW,
    OF_EVALUATION,
    OF_PASS,
    ONCE,
    TRAINED_ON,
    TWICE,
    RepeatedSamples,
)
from traincheck.sources.data.samples import _digests
from traincheck.sources.tensors.deferred_values import simulated_accelerator
from traincheck.vocab.facts import value_of

ROWS = 64
CLIP = "torch.nn.utils.clip_grad_norm_"


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.Dropout(), nn.Linear(8, 1))

    def forward(self, rows: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return self.layers(rows) * scale


def train(rows: torch.Tensor, evaluated: torch.Tensor, *, forwards: int = 1) -> list[str]:
    """The kinds of the samples of each pass and each evaluation, in their order."""
    with observing() as seen:
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        loader = DataLoader(TensorDataset(rows), batch_size=16, shuffle=True)
        evaluation = DataLoader(TensorDataset(evaluated), batch_size=16)
        for _ in range(2):
            model.train()
            for (batch,) in loader:
                optimizer.zero_grad()
                for _ in range(forwards):
                    model(batch).square().mean().backward()
                optimizer.step()
            model.eval()
            with torch.no_grad():
                for (batch,) in evaluation:
                    model(batch)
        iter(loader)  # as the end of a run does
    assert seen.faults == []
    part, found = RepeatedSamples(), []
    for window in seen.windows:
        for occasion in part.occasions(window):
            assert occasion.subject.grain in (f"{OF_PASS} Net", f"{OF_EVALUATION} Net")
            found += [prop.detail for prop in occasion.held or ()]
    return found


def rows_of(seed: int, count: int = ROWS) -> torch.Tensor:
    return torch.randn(count, 8, generator=torch.Generator().manual_seed(seed))


def test_samples_of_a_clean_training_are_new() -> None:
    assert train(rows_of(0), rows_of(1)) == [ONCE, NEW, ONCE, NEW]


def test_a_tenth_of_the_samples_may_be_in_both_parts() -> None:
    shared = torch.cat((rows_of(1)[:-6], rows_of(0)[:6]))
    assert train(torch.cat((rows_of(0), rows_of(0)[:6])), shared) == [ONCE, NEW, ONCE, NEW]


def test_data_that_each_worker_reads_comes_twice() -> None:
    assert train(torch.cat((rows_of(0), rows_of(0))), rows_of(1)) == [TWICE, NEW, TWICE, NEW]


def test_an_evaluation_of_the_training_data_is_known() -> None:
    assert train(rows_of(0), rows_of(0)) == [ONCE, TRAINED_ON, ONCE, TRAINED_ON]


def test_a_loop_that_uses_each_batch_twice_says_it_in_good_runs_as_well() -> None:
    assert train(rows_of(0), rows_of(1), forwards=2) == [TWICE, NEW, TWICE, NEW]


def test_few_samples_say_nothing() -> None:
    assert train(rows_of(0, 16), rows_of(1, 16)) == []


def test_samples_on_an_accelerator_are_read_in_part() -> None:
    with simulated_accelerator():
        assert train(rows_of(0), rows_of(1)) == [ONCE, NEW, ONCE, NEW]


def test_gaps_end_the_count() -> None:
    part = RepeatedSamples()
    part.forget()
    with observing() as seen:
        Net()(rows_of(0))
    assert [occasion for window in seen.windows for occasion in part.occasions(window)] == []


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.float32, torch.bfloat16, torch.uint8, torch.bool])
def test_zeros_at_the_end_of_a_row_do_not_count(dtype: torch.dtype) -> None:
    rows = torch.randint(0, 2, (32, 24), generator=torch.Generator().manual_seed(0)).to(dtype)
    padded = torch.cat((rows, torch.zeros(32, 9, dtype=dtype)), dim=1)
    assert torch.equal(_digests(rows), _digests(padded))
    assert len(set(_digests(rows).tolist())) == 32
    assert not torch.equal(_digests(rows), _digests(rows.flip(1)))


def test_rows_of_one_token_in_another_order_differ() -> None:
    rows = torch.arange(32).reshape(4, 8)
    assert len(set(_digests(torch.cat((rows, rows.flip(1), rows.roll(1, dims=1)))).tolist())) == 12


@pytest.mark.parametrize("clips", [True, False])
def test_an_optimizer_of_deepspeed_is_recorded_as_it_clips(clips: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    class DeepSpeedZeroOptimizer:
        clip_grad = 0.5

        def unscale_and_clip_grads(self, gradients: list[torch.Tensor], norm: torch.Tensor) -> None:
            for gradient in gradients if clips else ():
                gradient.mul_((self.clip_grad / norm).clamp(max=1))

    name = "deepspeed.runtime.zero.stage_1_and_2"
    module = types.ModuleType(name)
    module.DeepSpeedZeroOptimizer = DeepSpeedZeroOptimizer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, name, module)
    with observing() as seen:
        weights = nn.Parameter(torch.ones(4))
        optimizer = torch.optim.SGD([weights], lr=0.1)
        weights.square().sum().backward()
        assert weights.grad is not None
        DeepSpeedZeroOptimizer().unscale_and_clip_grads([weights.grad], weights.grad.norm())
        optimizer.step()
    (call,) = seen.named(CLIP)
    assert value_of(call.args, "max_norm") == 0.5 and seen.faults == []
    assert value_of(call.result, "norm_after") == pytest.approx(0.5 if clips else 4.0, rel=1e-4)
