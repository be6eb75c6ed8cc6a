"""Tests that updates of correct optimizers are within the bound on rounding, and that those of wrong ones are not."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from traincheck.sources.verification.updates import selection
from traincheck.sources.verification.updates.algorithms import ADAM, ADAMW, Algorithm, documented
from traincheck.sources.verification.updates.comparison import Comparison
from traincheck.sources.verification.updates.selection import START, read_before

STEPS = 7

Settings = dict[str, Any]

SETTINGS: dict[str, list[Settings]] = {
    "SGD": [
        {"lr": 0.1},
        {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1},
        {"lr": 0.1, "momentum": 0.9, "dampening": 0.3, "maximize": True},
        {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    ],
    "Adam": [{}, {"amsgrad": True, "weight_decay": 0.1}, {"maximize": True, "betas": (0.5, 0.9), "lr": 0.1}],
    "AdamW": [{}, {"amsgrad": True, "weight_decay": 0.5, "lr": 0.1}, {"maximize": True, "eps": 1e-3}],
    "Adamax": [{}, {"weight_decay": 0.1, "maximize": True}],
    "NAdam": [{}, {"weight_decay": 0.1}, {"weight_decay": 0.1, "decoupled_weight_decay": True, "maximize": True}],
    "RAdam": [{}, {"weight_decay": 0.1}, {"weight_decay": 0.1, "decoupled_weight_decay": True, "maximize": True}],
    "Adagrad": [{}, {"lr_decay": 0.1, "weight_decay": 0.1, "initial_accumulator_value": 0.5, "maximize": True}],
    "Adadelta": [{}, {"weight_decay": 0.1, "maximize": True}],
    "RMSprop": [{}, {"centered": True, "momentum": 0.5}, {"momentum": 0.9, "weight_decay": 0.1, "maximize": True}],
    "Rprop": [{}, {"etas": (0.25, 1.5), "step_sizes": (1e-3, 0.5), "maximize": True}],
    "ASGD": [{}, {"lr": 0.1, "lambd": 0.1, "t0": 2, "weight_decay": 0.1, "maximize": True}],
    "Adafactor": [{}, {"lr": 0.1, "weight_decay": 0.1, "maximize": True, "d": 2.0}],
    "Muon": [{}, {"momentum": 0.5, "nesterov": False}],
}
WAYS: list[Settings] = [
    {"foreach": False},
    {"foreach": True},
    {"fused": True},
    {"capturable": True, "foreach": False},
    {"differentiable": True},
]
DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.float16, torch.complex64)


@pytest.fixture
def capturable_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let optimizers compute their numbers on the device, as they do on an accelerator."""
    for name, module in list(sys.modules.items()):
        if name.startswith("torch.optim.") and hasattr(module, "_get_capturable_supported_devices"):
            monkeypatch.setattr(module, "_get_capturable_supported_devices", lambda **_: ["cpu"])


def build(name: str, settings: Settings, dtype: torch.dtype) -> torch.optim.Optimizer | None:
    """The optimizer with parameters of several shapes; None if this torch has no such optimizer, or not this option."""
    torch.manual_seed(0)
    shapes: list[tuple[int, ...]] = [(8, 40)] + [(32,), (), (4, 3, 5)] * (name != "Muon")
    parameters = [torch.randn(shape, dtype=dtype).requires_grad_() for shape in shapes]
    if settings.get("differentiable"):
        parameters = [parameter.clone() for parameter in parameters]
        for parameter in parameters:
            parameter.retain_grad()
    cls = getattr(torch.optim, name, None)
    if cls is None or not settings.keys() <= inspect.signature(cls).parameters.keys():
        return None
    try:
        return cls(parameters, **settings)
    except (ValueError, RuntimeError):  # options that exclude each other, complex numbers
        return None


def set_gradients(optimizer: torch.optim.Optimizer, step: int) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.randn_like(parameter) * 10.0 ** (step % 4 - 2) * (torch.rand(parameter.shape) > 0.2)


def comparisons(
    optimizer: torch.optim.Optimizer, algorithm: Algorithm | None = None, steps: int = STEPS, expect_all: bool = True
) -> Iterator[Comparison]:
    algorithm = algorithm or documented(optimizer)
    assert algorithm is not None
    for step in range(steps):
        set_gradients(optimizer, step)
        with torch.no_grad():
            before = read_before(optimizer, lambda tensor: str(tuple(tensor.shape)))
        assert not before.reasons
        assert not expect_all or len(before.parameters) == len(optimizer.param_groups[0]["params"])
        optimizer.step()
        for parameter in before.parameters:
            with torch.no_grad():
                comparison = parameter.compare(algorithm)
            assert comparison is not None
            yield comparison


@pytest.mark.usefixtures("capturable_on_cpu")
@pytest.mark.parametrize("way", WAYS, ids=lambda way: "-".join(f"{key}={value}" for key, value in way.items()))
@pytest.mark.parametrize("name", SETTINGS)
def test_updates_are_those_of_the_documented_algorithm(name: str, way: Settings) -> None:
    ran = 0
    for number, settings in enumerate(SETTINGS[name]):
        for dtype in DTYPES if number == 0 else DTYPES[:2]:
            optimizer = build(name, {**settings, **way}, dtype)
            if optimizer is None or (name, *way) == ("SGD", "fused"):  # it has a test of its own
                continue
            if dtype is torch.float16 and not way.get("fused"):  # which is not compared
                continue
            try:
                results = list(comparisons(optimizer))
            except (RuntimeError, NotImplementedError) as error:  # torch cannot execute it for this dtype
                assert dtype.is_complex, error
                continue
            ran += 1
            assert [result for result in results if result.off] == [], (settings, dtype)
            elements = sum(result.elements for result in results)
            if dtype in (torch.float32, torch.float64) and elements:
                # In one step, rounding decides whether RAdam rectifies its update.
                assert sum(result.compared for result in results) >= elements * (1 - (name == "RAdam") / STEPS)
                assert sum(result.clear for result in results) > 0.5 * elements
    if not ran:
        pytest.skip("torch has no such optimizer, or not this option")


@pytest.mark.parametrize("name", ["Adam", "AdamW"])
def test_fused_kernels_may_hold_their_decays_in_single_precision(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those for GPUs do: an element of the second moment is then off by one part in 80,000."""

    def rounds(update: Callable[..., Any]) -> Callable[..., Any]:
        def function(*args: Any, beta1: float, beta2: float, **kwargs: Any) -> None:
            decays = (float(torch.tensor(decay, dtype=torch.float32)) for decay in (beta1, beta2))
            update(*args, **dict(zip(("beta1", "beta2"), decays, strict=True)), **kwargs)

        return function

    patched(monkeypatch, "adam", "_fused_adam", rounds)
    optimizer = build(name, {"fused": True}, torch.float32)
    assert optimizer is not None
    assert [comparison for comparison in comparisons(optimizer) if comparison.off] == []


# -- wrong updates -----------------------------------------------------------------------------------------------------


def patched(
    monkeypatch: pytest.MonkeyPatch, module: str, name: str, change: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> None:
    """Change the function of torch that computes the updates of an optimizer."""
    home = importlib.import_module(f"torch.optim.{module}")
    monkeypatch.setattr(home, name, change(getattr(home, name)))


def wrong(name: str, **settings: Any) -> list[Comparison]:
    optimizer = build(name, {**settings, "foreach": False}, torch.float32)
    assert optimizer is not None
    return [comparison for comparison in comparisons(optimizer) if comparison.off]


def test_elements_beyond_an_index_that_get_no_update(monkeypatch: pytest.MonkeyPatch) -> None:
    def leaves_out(update: Callable[..., Any]) -> Callable[..., Any]:
        def function(params: list[torch.Tensor], *args: Any, **kwargs: Any) -> None:
            before = [param.clone() for param in params]
            update(params, *args, **kwargs)
            for param, old in zip(params, before, strict=True):
                param.view(-1)[300:] = old.view(-1)[300:]

        return function

    patched(monkeypatch, "sgd", "_single_tensor_sgd", leaves_out)
    found = wrong("SGD", lr=0.1, momentum=0.9)
    assert {comparison.name for comparison in found} == {"(8, 40)"}
    assert all(comparison.off == comparison.unchanged for comparison in found)
    assert max(comparison.off for comparison in found) == 20


@pytest.mark.parametrize("name", ["Adam", "NAdam", "RAdam", "Adamax"])
def test_a_forgotten_bias_correction(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    home = importlib.import_module(f"torch.optim.{name.lower()}")
    monkeypatch.setattr(home, "_get_value", lambda step: 10_000.0)
    found = wrong(name)
    assert found[0].name == "(8, 40)" and found[0].off > 100


def test_weight_decay_in_the_gradient_instead_of_the_weight() -> None:
    optimizer = build("Adam", {"weight_decay": 0.1}, torch.float32)
    assert optimizer is not None
    found = list(comparisons(optimizer, ADAMW))
    assert found[0].off > 100


def test_a_step_counter_that_does_not_advance(monkeypatch: pytest.MonkeyPatch) -> None:
    def stale(update: Callable[..., Any]) -> Callable[..., Any]:
        def function(*args: Any, **kwargs: Any) -> None:
            update(*args, **kwargs)
            for steps in args[5]:
                steps -= 1

        return function

    patched(monkeypatch, "adam", "_single_tensor_adam", stale)
    found = wrong("Adam")
    assert found[0].what == "step" and (found[0].value, found[0].expected) == (0.0, 1.0)


def test_a_shard_that_is_overwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    def overwrites(update: Callable[..., Any]) -> Callable[..., Any]:
        def function(params: list[torch.Tensor], *args: Any, **kwargs: Any) -> None:
            update(params, *args, **kwargs)
            params[0].data[4:] *= 1.001

        return function

    patched(monkeypatch, "adam", "_single_tensor_adam", overwrites)
    found = wrong("AdamW")
    assert {(comparison.name, comparison.off, comparison.unchanged) for comparison in found} == {("(8, 40)", 160, 0)}


# -- turns -------------------------------------------------------------------------------------------------------------


def test_parameters_and_stretches_of_large_ones_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "MIN_BYTES", 512)
    optimizer = build("Adam", {"foreach": False}, torch.float32)
    assert optimizer is not None
    list(comparisons(optimizer, steps=1, expect_all=False))
    position, covered = START, dict[str, int]()
    for _ in range(15):
        with torch.no_grad():
            before = read_before(optimizer, lambda tensor: str(tuple(tensor.shape)), position)
        optimizer.step()
        position = before.next
        for parameter in before.parameters:
            with torch.no_grad():
                comparison = parameter.compare(ADAM)
            assert comparison is not None and not comparison.off and comparison.elements <= 32
            covered[comparison.name] = covered.get(comparison.name, 0) + comparison.elements
    assert covered.keys() == {"(8, 40)", "(32,)", "()", "(4, 3, 5)"}
    assert covered["(8, 40)"] >= 320 and min(covered.values()) >= 1
