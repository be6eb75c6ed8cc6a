"""Idioms of training libraries that are correct, and that rules or sources once took for errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._pytree import tree_map_only

import traincheck
from observed_process import observing
from trained_programs import Net, errors_of, loss_of, trained
from verified_runs import verified


def sharpness_aware(foreach: bool) -> None:
    """The first gradient moves the parameters, and the second one updates them (pytorch_optimizer)."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(8):
        loss_of(model).backward()
        parameters = list(model.parameters())
        gradients = [parameter.grad * 0.05 for parameter in parameters if parameter.grad is not None]
        with torch.no_grad():
            before = [parameter.clone() for parameter in parameters]
            if foreach:
                torch._foreach_add_(parameters, gradients)
            else:
                for parameter, gradient in zip(parameters, gradients, strict=True):
                    parameter.add_(gradient)
        optimizer.zero_grad()
        loss_of(model).backward()
        with torch.no_grad():
            for parameter, value in zip(parameters, before, strict=True):
                parameter.copy_(value)
        optimizer.step()
        optimizer.zero_grad()


def per_sample_clipping() -> None:
    """Hooks add up clipped gradients of samples, over several batches of an update (opacus)."""
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    saved: dict[str, torch.Tensor] = {}
    sums = [torch.zeros_like(parameter) for parameter in model.parameters()]

    def keep_input(module: nn.Module, args: Any, output: torch.Tensor) -> None:
        saved["input"] = args[0].detach()

    def add_up(module: nn.Module, grad_input: Any, grad_output: Any) -> None:
        for total, part in zip(sums, (grad_output[0].T @ saved["input"], grad_output[0].sum(0)), strict=True):
            total += part.clamp(-1, 1)

    model.register_forward_hook(keep_input)
    model.register_full_backward_hook(add_up)
    for batch in range(24):
        optimizer.zero_grad()
        loss_of(model).backward()
        if batch % 4 == 3:
            for parameter, total in zip(model.parameters(), sums, strict=True):
                parameter.grad = total.clone()
                total.zero_()
            optimizer.step()


class Gathering(torch.optim.Optimizer):
    """Gathers statistics in its first step, and keeps an estimate of the step size in its settings (ADOPT, Prodigy)."""

    def __init__(self, params: Iterator[nn.Parameter]) -> None:
        super().__init__(params, {"lr": 1e-2, "d": 1e-1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state["squares"] = parameter.grad**2
                    continue
                parameter.sub_(parameter.grad / (state["squares"].sqrt() + 1e-3), alpha=group["lr"] * group["d"])
                state["squares"].lerp_(parameter.grad**2, 0.01)
                group["d"] = min(1.01 * group["d"], 1.0)


def optimizer_with_statistics() -> None:
    model = Net()
    optimizer = Gathering(model.parameters())
    for _ in range(24):
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()


def schedule_without_steps() -> None:
    """A library asks the scheduler for rates, sets them and counts by itself (ignite)."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=24)
    data = torch.utils.data.TensorDataset(torch.randn(48, 6), torch.arange(48) % 3)
    for _ in range(3):
        for x, y in torch.utils.data.DataLoader(data, batch_size=8, shuffle=True):
            scheduler._get_lr_called_within_step = True
            for group, rate in zip(optimizer.param_groups, scheduler.get_lr(), strict=True):
                group["lr"] = rate
            scheduler._get_lr_called_within_step = False
            scheduler.last_epoch += 1
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()


class Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.actions, self.value = nn.Linear(4, 8), nn.Linear(8, 2), nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = self.body(x).tanh()
        return self.actions(h), self.value(h)


def rollouts_of_a_whole_policy() -> None:
    """A rollout calls the policy as a whole and a part of it, training calls its parts (Stable-Baselines3)."""
    policy = Policy()
    optimizer = torch.optim.Adam(policy.parameters(), 1e-2)
    for _ in range(6):
        policy.train(False)
        with torch.no_grad():
            observed = torch.randn(8, 4)
            policy(observed)
            returns = policy.value(policy.body(torch.randn(8, 4)).tanh()) * 0.9 + 1
        policy.train(True)
        for _ in range(4):
            h = policy.body(observed).tanh()
            loss = (policy.value(h) - returns).pow(2).mean() - policy.actions(h).log_softmax(1).mean() * 0.1
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


@pytest.mark.parametrize(
    "program",
    [
        lambda: sharpness_aware(foreach=False),
        lambda: sharpness_aware(foreach=True),
        per_sample_clipping,
        optimizer_with_statistics,
        schedule_without_steps,
        rollouts_of_a_whole_policy,
    ],
    ids=["sam", "sam_foreach", "per_sample", "statistics", "schedule", "policy"],
)
def test_it_is_clean(tmp_path: Path, program: Callable[[], None]) -> None:
    assert errors_of(tmp_path, program) == set()


def test_gradients_that_are_only_cleared_are_still_lost(tmp_path: Path) -> None:
    def program() -> None:
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for _ in range(8):
            loss_of(model).backward()
            optimizer.zero_grad()
            loss_of(model).backward()
            optimizer.step()
            optimizer.zero_grad()

    assert errors_of(tmp_path, program) == {"gradients-lost"}


class Unready(nn.Module):
    """Calls a method before `nn.Module.__init__` has run, and overrides `named_parameters` with fewer arguments."""

    def __init__(self) -> None:
        self.settings = self.clean(3)
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def clean(self, width: int) -> torch.Tensor:
        return torch.relu(torch.ones(width))

    def named_parameters(self, prefix: str = "", recurse: bool = True) -> Iterator[tuple[str, nn.Parameter]]:  # type: ignore[override]
        return super().named_parameters(prefix, recurse)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


def test_no_source_fails_at_unusual_modules() -> None:
    with observing() as seen:
        model = Unready()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
    assert seen.faults == [] and {change.variable for change in seen.changes} >= {"Unready.layer.weight"}


class Adjoint(torch.autograd.Function):
    """A backward that computes gradients of parameters by `torch.autograd.grad`, in several calls (torchsde)."""

    @staticmethod
    def forward(ctx: Any, model: nn.Module, x: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        ctx.model = model
        ctx.save_for_backward(x, *parameters)
        return model(x).detach()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        x, *parameters = ctx.saved_tensors
        with torch.enable_grad():
            for _ in range(3):
                found = torch.autograd.grad(ctx.model(x), parameters, grad)
        return None, None, *found


def test_gradients_inside_a_custom_backward_are_not_added_up(tmp_path: Path) -> None:
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def steps() -> Iterator[int]:
        for step in range(8):
            optimizer.zero_grad()
            x = torch.randn(9, 6)
            model(x)
            F.cross_entropy(Adjoint.apply(model, x, *model.parameters()), torch.arange(9) % 3).backward()
            optimizer.step()
            yield step

    run = verified(tmp_path, steps())
    assert run.findings == [] and run.verdicts, run


class NormalizesEmbeddings(nn.Module):
    """Normalizes features that hardly differ yet, as those of new embeddings (DIN)."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.norm, self.head = nn.Embedding(50, 16), nn.BatchNorm1d(16, eps=1e-8), nn.Linear(16, 3)
        nn.init.normal_(self.embedding.weight, mean=0.5, std=3e-5)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.embedding(tokens)))


def test_a_normalization_of_nearly_equal_features_is_clean(tmp_path: Path) -> None:
    def program() -> None:
        model = NormalizesEmbeddings()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        for _ in range(4):
            optimizer.zero_grad()
            F.cross_entropy(model(torch.randint(50, (32,))), torch.arange(32) % 3).backward()
            optimizer.step()

    assert not errors_of(tmp_path, program)


class OwnBuffers(Net):
    """Has an attribute with the name of a method of torch (the wrapper of Megatron)."""

    def __init__(self) -> None:
        super().__init__()
        self.buffers = [torch.zeros(3)]  # type: ignore[assignment]


def test_experiments_do_not_fail_at_an_attribute_called_buffers(tmp_path: Path) -> None:
    with traincheck.checked(tmp_path, packs="shipped", verify_every=1) as run:
        trained(OwnBuffers())
    assert run.report is not None and run.report.verification
    assert not [reason for reason in run.report.not_observed if "Error" in reason], run.report.not_observed


class LowPrecision(torch.Tensor):
    """A weight that wraps another tensor, to compute with it in another way (training in MXFP8 with torchao)."""

    inside: torch.Tensor

    @staticmethod
    def __new__(cls, inside: torch.Tensor) -> LowPrecision:
        wrapper = torch.Tensor._make_wrapper_subclass(
            cls, inside.shape, dtype=inside.dtype, requires_grad=inside.requires_grad
        )
        wrapper.inside = inside
        return wrapper  # type: ignore[no-any-return]

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["inside"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, torch.Tensor], *_: Any) -> LowPrecision:
        return LowPrecision(inner["inside"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        plain = tree_map_only(LowPrecision, lambda wrapper: wrapper.inside, (args, kwargs or {}))
        result = func(*plain[0], **plain[1])
        if func is torch.ops.aten.detach.default:
            return LowPrecision(result)
        return args[0] if func._schema.name.endswith("_") else result


def test_wrapped_weights_are_seen_to_change(tmp_path: Path) -> None:
    def program() -> None:
        model = Net()
        model.body.weight = nn.Parameter(LowPrecision(model.body.weight.detach()))
        weight = model.body.weight.inside
        before = weight.clone()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        for _ in range(4):
            loss_of(model).backward()
            optimizer.step()
            optimizer.zero_grad()
        assert not torch.equal(weight, before)

    assert not errors_of(tmp_path, program)
