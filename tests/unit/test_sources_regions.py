"""Tests that active context managers are part of the context of the calls inside them."""

from __future__ import annotations

import contextlib
import importlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._dynamo.exc
from torch import nn

from observed_process import observing
from torch_version import TORCH
from traincheck.sources.functions.context_managers import CLASSES, GENERATORS
from traincheck.vocab.demand import Demand
from traincheck.vocab.facts import value_of

EXP = "torch.Tensor.exp"


def look_up(home: str, name: str) -> Any:
    holder: Any = importlib.import_module(home)
    for part in name.split("."):
        holder = getattr(holder, part)
    return holder


@pytest.mark.parametrize(("home", "name", "label"), GENERATORS)
def test_generator_functions_are_wrapped_and_put_back(home: str, name: str, label: str) -> None:
    original = look_up(home, name)
    generator = original.__wrapped__
    with observing():
        assert look_up(home, name) is not original and look_up(home, name).__wrapped__ is generator
    assert look_up(home, name) is original


@pytest.mark.parametrize(("home", "name", "label"), CLASSES)
def test_the_classes_are_there(home: str, name: str, label: str) -> None:
    assert {"__enter__", "__exit__"} <= vars(getattr(importlib.import_module(home), name)).keys()


def within(work: Callable[[], object]) -> list[object]:
    with observing() as seen:
        work()
    assert seen.faults == []
    return [value_of(call.context, "within") for call in seen.named(EXP)]


def test_active_context_managers_around_a_function() -> None:
    def work() -> None:
        x = torch.ones(2)
        x.exp()
        with torch.random.fork_rng():
            x.exp()
            with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH), torch.random.fork_rng():
                x.exp()
            x.exp()
        with pytest.raises(KeyError), torch.autograd.set_detect_anomaly(True):
            x.exp()
            raise KeyError
        x.exp()

    assert within(work) == ["", "fork_rng", "fork_rng+sdpa_kernel", "fork_rng", "detect_anomaly", ""]


def test_hooks_for_saved_tensors_and_swapped_parameters() -> None:
    class Exp(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(2))

        def forward(self) -> torch.Tensor:
            return self.w.exp()

    def work() -> None:
        model = Exp()
        with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x):
            model()
        torch.func.functional_call(model, {"w": torch.zeros(2)}, ())
        model()

    assert within(work) == ["saved_tensors_hooks", "functional_call", ""]


def test_managers_keep_their_types_and_effects() -> None:
    plain = torch.random.fork_rng()

    def work() -> None:
        manager = torch.random.fork_rng(devices=[])
        assert type(manager) is type(plain)
        with manager as value:
            assert value is None
            torch.ones(2).exp()
        decorated = torch.random.fork_rng(devices=[])(lambda: torch.rand(1).item())
        assert decorated() == decorated()
        with torch.backends.cudnn.flags(enabled=False, deterministic=True):
            assert not torch.backends.cudnn.enabled
            torch.ones(2).exp()
        assert torch.backends.cudnn.enabled

    assert within(work) == ["fork_rng", "cudnn.flags"]


@contextlib.contextmanager
def theirs() -> Iterator[int]:
    yield 3


def under_kernel(x: torch.Tensor) -> torch.Tensor:
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        return torch.nn.functional.scaled_dot_product_attention(x, x, x)


def under_theirs(x: torch.Tensor) -> torch.Tensor:
    with theirs() as factor:
        return x * factor


def traced(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor | None:
    """What the function returns when it is compiled as one graph; None if the compiler does not support it."""
    torch.compiler.reset()
    try:
        return torch.compile(function, backend="eager", fullgraph=True)(x)
    except torch._dynamo.exc.Unsupported:
        return None


@pytest.mark.slow
@pytest.mark.parametrize("function", [under_kernel, under_theirs])
def test_the_compiler_still_traces_context_managers(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = torch.randn(1, 2, 4, 4)
    alone = traced(function, x)
    assert alone is not None or TORCH < (2, 13), "old releases do not trace them"
    with observing() as seen:
        observed = traced(function, x)
    assert seen.faults == []
    assert (observed is None) == (alone is None)
    assert observed is None or torch.allclose(observed, function(x))


def test_a_backward_in_no_sync_has_it_in_its_context() -> None:
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        with observing() as seen:
            model = nn.parallel.DistributedDataParallel(nn.Linear(2, 1))
            with model.no_sync():
                model(torch.ones(3, 2)).sum().backward()
            model(torch.ones(3, 2)).sum().backward()
    finally:
        torch.distributed.destroy_process_group()
    regions = [value_of(call.context, "within") for call in seen.named("torch.autograd.backward")]
    assert regions == ["no_sync", ""]


def test_another_thread_is_in_none_of_them() -> None:
    inside: list[str] = []
    with observing() as seen:
        regions = next(source for source in seen.sources if source.name == "regions")
        with torch.random.fork_rng():
            thread = threading.Thread(target=lambda: inside.append(regions._call_context.within))  # type: ignore[attr-defined]
            thread.start()
            thread.join()
            inside.append(regions._call_context.within)  # type: ignore[attr-defined]
    assert inside == ["", "fork_rng"]


def test_an_error_passes_through() -> None:
    with observing(Demand.of_calls(EXP)) as seen:
        with contextlib.suppress(ZeroDivisionError), torch.random.fork_rng(devices=[]):
            raise ZeroDivisionError
        with pytest.raises(KeyError) as caught, torch.random.fork_rng(devices=[]):
            raise KeyError("theirs")
        torch.ones(1).exp()
    assert [value_of(call.context, "within") for call in seen.named(EXP)] == [""]
    assert "sources/regions" not in "".join(str(entry.path) for entry in caught.traceback)
