"""Observing changes nothing in the program, and leaves nothing behind."""

from __future__ import annotations

import copy
import gc
import io
import itertools
import pickle
import random
import sys
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import traincheck
from observed_process import Seen, observing
from small_trainings import Model, process_state, same, train
from traincheck.sources.tensors.leaf_hooks import register_leaf_hook

STEP = "torch.optim.Optimizer.step"


# -- after observing -------------------------------------------------------------------------------------------------


def test_all_hooks_and_patches_are_removed() -> None:
    train()
    before = process_state()
    assert any(name.startswith("_global_optimizer") for name in before)
    with observing():
        during = process_state()
        train()
    assert process_state() == before
    changed = {name for name in before if during[name] != before[name]}
    assert {"Optimizer.zero_grad", "torch.autograd.backward", "modes", "torch.nn.utils.clip_grad_norm_"} <= changed


def test_models_are_not_kept_alive() -> None:
    import weakref

    with observing():
        model = Model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.ones(4, 4)).sum().backward()
        optimizer.step()
        alive = [weakref.ref(model), weakref.ref(optimizer), weakref.ref(model.head.weight)]
        del model, optimizer
        gc.collect()
        assert [reference() for reference in alive] == [None, None, None]


def test_a_patch_made_before_traincheck_stays_and_is_called() -> None:
    called = []
    original = torch.optim.Optimizer.zero_grad

    def patch(self: torch.optim.Optimizer, set_to_none: bool = True) -> None:
        called.append("patch")
        original(self, set_to_none)

    torch.optim.Optimizer.zero_grad = patch  # type: ignore[method-assign]
    try:
        with observing() as seen:
            train()
        assert torch.optim.Optimizer.zero_grad is patch
        assert len(called) == len(seen.named("torch.optim.Optimizer.zero_grad")) == 6
    finally:
        torch.optim.Optimizer.zero_grad = original  # type: ignore[method-assign]


def test_a_patch_made_after_traincheck_stays() -> None:
    original = torch.nn.utils.clip_grad_norm_
    try:
        with observing():
            ours = torch.nn.utils.clip_grad_norm_

            def patch(*args: object, **kwargs: object) -> object:
                return ours(*args, **kwargs)  # type: ignore[arg-type]

            torch.nn.utils.clip_grad_norm_ = patch  # type: ignore[assignment]
        assert torch.nn.utils.clip_grad_norm_ is patch
        train()
    finally:
        torch.nn.utils.clip_grad_norm_ = original


def test_modes_and_profilers_of_the_program_stay() -> None:
    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: object, types: object, args: object = (), kwargs: object = None) -> object:
            return func(*args, **(kwargs or {}))  # type: ignore[operator]

    with ExitStack() as stack:
        with observing() as seen:
            mode = stack.enter_context(Mode())
            torch.ones(3).sum()
        assert mode in torch.overrides._get_current_function_mode_stack()
        assert seen.named("torch.Tensor.sum")
        torch.ones(3).sum()
    torch.ones(3).sum()


def test_a_profiler_of_the_program_stays_and_source_project_is_reported_missing() -> None:
    if sys.version_info >= (3, 12):
        pytest.skip("sys.monitoring takes no profiler's place")

    def profiler(frame: types.FrameType, event: str, arg: object) -> None: ...

    sys.setprofile(profiler)
    try:
        with observing() as seen:
            assert sys.getprofile() is profiler
        assert sys.getprofile() is profiler
    finally:
        sys.setprofile(None)
    assert [reason.split(":")[0] for reason in seen.missing] == ["project"]


# -- while observing ------------------------------------------------------------------------------------------------


def test_training_and_random_streams_are_the_same() -> None:
    expected = train()
    with observing() as seen:
        assert same(train(), expected)
    assert same(train(), expected)
    assert len(seen.named(STEP)) == 6


class Names(torch.overrides.TorchFunctionMode):
    """Notes the functions that it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(self, func: object, types: object, args: object = (), kwargs: object = None) -> object:
        self.seen.append(torch.overrides.resolve_name(func) or repr(func))
        return func(*args, **(kwargs or {}))  # type: ignore[operator]


def test_no_mode_of_the_program_sees_traincheck_compute() -> None:
    with Names() as alone:
        train()
    with Names() as outer, observing() as seen, Names() as inner:
        train()
    assert seen.faults == [] and len(alone.seen) > 500
    assert inner.seen == alone.seen
    assert outer.seen == alone.seen


def test_no_mode_of_the_program_sees_experiments(tmp_path: Path) -> None:
    with Names() as alone:
        train()
    with traincheck.checked(tmp_path, packs="shipped", verify_every=1) as run, Names() as inner:
        train()
    assert run.report is not None and run.report.verification
    assert inner.seen == alone.seen


def test_no_mode_of_the_program_sees_hooks_on_parameters() -> None:
    parameter = nn.Parameter(torch.ones(3))
    with Names() as mode:
        register_leaf_hook(parameter, lambda gradient: None)()
    assert mode.seen == [] and parameter._backward_hooks is None


class Counting:
    """A number that grows at each use: an iterator of its own class, or one of Python."""

    def __init__(self) -> None:
        self.steps = [0]

    def __next__(self) -> float:
        self.steps[0] += 1
        return 0.01 * self.steps[0]


class Weighted(nn.Module):
    def __init__(self, weights: object) -> None:
        super().__init__()
        self.layer, self.weights, self.draws = nn.Linear(4, 3), weights, torch.Generator().manual_seed(0)
        self.others = (random.Random(0), np.random.default_rng(0), np.random.RandomState(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        noise = torch.randn(x.shape, generator=self.draws) + sum(draws.random() for draws in self.others)
        return self.layer(x + noise) * next(self.weights)  # type: ignore[call-overload, no-any-return]


@pytest.mark.parametrize("weights", [Counting, lambda: itertools.count(1)])
def test_what_a_model_holds_is_not_advanced_by_experiments(weights: Callable[[], object], tmp_path: Path) -> None:
    def losses() -> list[float]:
        torch.manual_seed(0)
        model = Weighted(weights())
        optimizer = torch.optim.Adam(model.parameters())
        found = []
        for _ in range(6):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(torch.randn(8, 4)), torch.arange(8) % 3)
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return found

    expected = losses()
    with traincheck.checked(tmp_path, packs="shipped", verify_every=1):
        assert losses() == expected


class Sums:
    def __init__(self) -> None:
        self.count, self.total, self.names = 0, torch.zeros(3), ["begin"]


class WithSums(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.total, self.sums = nn.Linear(4, 3), torch.zeros(3), Sums()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + self.sums.count


def test_what_the_program_writes_after_a_call_stays(tmp_path: Path) -> None:
    """An experiment goes back to the begin of the call, and must return to what was written since."""
    with traincheck.checked(tmp_path, packs="shipped", verify_every=1) as run:
        model = WithSums()
        optimizer = torch.optim.Adam(model.parameters())
        for step in range(6):
            optimizer.zero_grad()
            outputs = model(torch.randn(8, 4))
            model.total.add_(1)
            model.sums.total.add_(1)
            model.sums.count += 1
            model.sums.names = [*model.sums.names, str(step)]
            nn.functional.cross_entropy(outputs, torch.arange(8) % 3).backward()
            optimizer.step()
    assert run.report is not None and "forward" in {row.experiment for row in run.report.verification if row.times}
    assert model.sums.count == 6 and len(model.sums.names) == 7
    assert model.total.tolist() == model.sums.total.tolist() == [6.0, 6.0, 6.0]


@pytest.fixture
def observed() -> Iterator[Seen]:
    with observing() as seen:
        yield seen


def test_types_copies_and_files_are_unaffected(observed: Seen) -> None:
    model = Model()
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(4, 4)).sum().backward()
    optimizer.step()
    assert type(model) is Model and type(model.head.weight) is nn.Parameter
    assert isinstance(optimizer, torch.optim.Adam) and type(optimizer) is torch.optim.Adam
    assert not model._forward_hooks and not model._forward_pre_hooks and not optimizer._optimizer_step_pre_hooks
    assert set(vars(model)) == set(vars(Model()))
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    copies = [
        copy.deepcopy(model),
        pickle.loads(pickle.dumps(model)),
        torch.load(file, weights_only=False),
    ]
    for other in copies:
        assert type(other) is Model
        assert all(map(torch.equal, other.state_dict().values(), model.state_dict().values()))
    again = pickle.loads(pickle.dumps(optimizer))
    assert again.state_dict()["state"].keys() == optimizer.state_dict()["state"].keys()
    again.step()
    copy.deepcopy(optimizer).step()
    assert observed.faults == []


def test_signatures_and_documentation_stay(observed: Seen) -> None:
    import inspect

    assert list(inspect.signature(nn.utils.clip_grad_norm_).parameters)[:2] == ["parameters", "max_norm"]
    assert "set_to_none" in inspect.signature(torch.optim.Optimizer.zero_grad).parameters
    assert torch.optim.Optimizer.zero_grad.__doc__ and nn.Module.train.__name__ == "train"


def test_the_program_may_keep_references_to_patched_functions() -> None:
    """A reference taken while observing works afterwards."""
    with observing() as seen:
        backward: Callable[..., None] = torch.autograd.backward
        clip = nn.utils.clip_grad_norm_
    weight = torch.ones(2, requires_grad=True)
    backward([weight.sum()])
    clip([weight], 1.0)
    assert weight.grad is not None
    assert seen.calls == []


def test_threads_that_train_in_parallel_cause_no_fault() -> None:
    """Each thread builds, trains and deletes models, with frequent switches between threads."""
    failed: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            for _ in range(6):
                model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
                optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
                for _ in range(4):
                    optimizer.zero_grad()
                    model(torch.ones(4, 4)).sum().backward()
                    optimizer.step()
                model.state_dict()
        except BaseException as error:
            failed.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with observing() as seen:
            threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
            for thread in threads:
                thread.start()
            work(9)
            for thread in threads:
                thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert failed == []
    assert seen.faults == []
