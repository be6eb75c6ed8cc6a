"""Observation never hurts: nothing is left behind, nothing is altered, and a fault of ours never reaches the program."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import random
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import numpy as np
import pytest
import torch
from observing import Seen, observing
from torch import nn
from torch.nn.modules import module as nn_module
from torch.optim import lr_scheduler, optimizer as optim_module
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

from traincheck.sources.autograd import AutogradSource
from traincheck.sources.lifecycle import LifecycleSource
from traincheck.sources.loaders import LoaderSource
from traincheck.sources.modules import ModuleSource
from traincheck.sources.names import levels
from traincheck.sources.optimizers import OptimizerSource
from traincheck.sources.project import ProjectSource

STEP = "torch.optim.Optimizer.step"


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5))
        self.head = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


def train() -> tuple[list[float], list[torch.Tensor], object]:
    """A short run that uses everything that is observed: losses, final weights, and the random streams afterwards."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    model = Model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = lr_scheduler.StepLR(optimizer, 2)
    data = TensorDataset(torch.randn(24, 4), torch.randint(0, 2, (24,)))
    losses = []
    for _ in range(2):
        model.train()
        for x, y in DataLoader(data, batch_size=8, shuffle=True):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = nn.functional.cross_entropy(model(x).float(), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.item())
        model.eval()
        with torch.no_grad():
            losses.append(model(torch.randn(3, 4)).sum().item())
        scheduler.step()
    streams = (torch.rand(1).item(), random.random(), np.random.rand())
    return losses, [value.clone() for value in model.state_dict().values()], streams


def same(one: tuple[list[float], list[torch.Tensor], object], other: tuple[list[float], list[torch.Tensor], object]) -> bool:
    return one[0] == other[0] and one[2] == other[2] and all(map(torch.equal, one[1], other[1]))


# -- nothing is left -------------------------------------------------------------------------------------------------

HOLDERS = [
    torch,
    torch.autograd,
    torch.nn.utils,
    torch.nn.utils.clip_grad,
    torch.serialization,
    torch.random,
    torch.amp.autocast,
    torch.no_grad,
    torch.inference_mode,
    torch.amp.GradScaler,
    torch.optim.Optimizer,
    nn.Module,
    DataLoader,
    _BaseDataLoaderIter,
    lr_scheduler.LRScheduler,
    lr_scheduler.ReduceLROnPlateau,
]


def process_state() -> dict[str, object]:
    """Everything that a source could have left in the process, by identity."""
    found: dict[str, object] = {
        f"{getattr(holder, '__name__', holder)}.{name}": id(value)
        for holder in HOLDERS
        for name, value in vars(holder).items()
        if callable(value)
    }
    for name, value in (*vars(nn_module).items(), *vars(optim_module).items()):
        if name.startswith("_global") and isinstance(value, dict):
            found[name] = dict(value)
    found["modes"] = len(torch.overrides._get_current_function_mode_stack())
    found["profile"] = sys.getprofile()
    if sys.version_info >= (3, 12):
        found["tools"] = [sys.monitoring.get_tool(tool) for tool in range(6)]
    return found


def test_afterwards_nothing_is_left() -> None:
    train()
    before = process_state()
    assert any(name.startswith("_global_optimizer") for name in before)
    with observing():
        during = process_state()
        train()
    assert process_state() == before
    changed = {name for name in before if during[name] != before[name]}
    assert {"Optimizer.zero_grad", "torch.autograd.backward", "modes", "torch.nn.utils.clip_grad_norm_"} <= changed


def test_nothing_is_kept_alive() -> None:
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


def test_a_patch_made_before_us_stays_and_is_called() -> None:
    called = []
    original = torch.optim.Optimizer.zero_grad

    def theirs(self: torch.optim.Optimizer, set_to_none: bool = True) -> None:
        called.append("theirs")
        original(self, set_to_none)

    torch.optim.Optimizer.zero_grad = theirs  # type: ignore[method-assign]
    try:
        with observing() as seen:
            train()
        assert torch.optim.Optimizer.zero_grad is theirs
        assert len(called) == len(seen.named("torch.optim.Optimizer.zero_grad")) == 6
    finally:
        torch.optim.Optimizer.zero_grad = original  # type: ignore[method-assign]


def test_a_patch_made_after_us_stays() -> None:
    original = torch.nn.utils.clip_grad_norm_
    try:
        with observing():
            ours = torch.nn.utils.clip_grad_norm_

            def theirs(*args: object, **kwargs: object) -> object:
                return ours(*args, **kwargs)  # type: ignore[arg-type]

            torch.nn.utils.clip_grad_norm_ = theirs  # type: ignore[assignment]
        assert torch.nn.utils.clip_grad_norm_ is theirs
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


def test_a_profiler_that_was_there_stays_and_ours_is_told_missing() -> None:
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


# -- faults of ours --------------------------------------------------------------------------------------------------


def broken(*args: object, **kwargs: object) -> None:
    raise LookupError("a fault of ours")


FAULTS: list[tuple[type, str, str]] = [
    (OptimizerSource, "_step_begins", "optimizers"),
    (OptimizerSource, "_step_ends", "optimizers"),
    (OptimizerSource, "_tell_data", "optimizers"),
    (OptimizerSource, "_built", "optimizers"),
    (OptimizerSource, "_clear_begins", "optimizers"),
    (OptimizerSource, "_clear_ends", "optimizers"),
    (ModuleSource, "_begins", "modules"),
    (ModuleSource, "_ends", "modules"),
    (ModuleSource, "_read_buffers", "modules"),
    (ModuleSource, "_switch_begins", "modules"),
    (ModuleSource, "_switch_ends", "modules"),
    (AutogradSource, "_begins", "autograd"),
    (AutogradSource, "_ends", "autograd"),
    (LifecycleSource, "_name_of", "lifecycle"),
    (LoaderSource, "_name", "loaders"),
    (ProjectSource, "_begins", "project"),
]


@pytest.mark.parametrize(("source", "method", "name"), FAULTS, ids=lambda value: getattr(value, "__name__", value))
def test_a_fault_of_a_source_is_told_once_and_training_goes_on(
    source: type, method: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = train()
    before = process_state()
    monkeypatch.setattr(source, method, broken)
    with observing() as seen:
        assert same(train(), expected)
    assert [(told, str(error)) for told, error in seen.faults] == [(name, "a fault of ours")]
    assert process_state() == before


@pytest.mark.parametrize("place", ["enter", "leave"])
def test_a_recorder_that_fails_altogether_is_harmless(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from traincheck.sources.recorder import Recorder

    expected = train()
    monkeypatch.setattr(Recorder, place, broken)
    with observing() as seen:
        assert same(train(), expected)
    told = [name for name, _ in seen.faults]
    assert len(told) == len(set(told)) and "functions" in told


def test_a_source_that_cannot_attach_is_told_and_the_others_observe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AutogradSource, "attach", broken)
    before = process_state()
    with observing() as seen:
        train()
    assert process_state() == before
    assert seen.missing == ["autograd: LookupError: a fault of ours"]
    assert len(seen.named(STEP)) == 6


# -- the program is as it was ----------------------------------------------------------------------------------------


def test_training_and_random_streams_are_the_same() -> None:
    expected = train()
    with observing() as seen:
        assert same(train(), expected)
    assert same(train(), expected)
    assert len(seen.named(STEP)) == 6


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


class Broken(nn.Module):
    """Raises in its forward or backward, when told."""

    fails = ""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.fails == "forward":
            raise ValueError("the user's own")
        y = self.inner(x)
        if self.fails == "backward":
            y.register_hook(self._raise)
        return y

    def _raise(self, gradient: torch.Tensor) -> None:
        raise ValueError("the user's own")


@pytest.mark.parametrize("fails", ["forward", "backward", "closure"])
def test_errors_of_the_program_pass_through_and_later_steps_are_whole(fails: str) -> None:
    with observing() as seen:
        outer = nn.Sequential(Broken(), nn.Linear(2, 1))
        optimizer = torch.optim.SGD(outer.parameters(), lr=0.1)

        def step(fails: str) -> None:
            outer[0].fails = fails

            def closure() -> float:
                optimizer.zero_grad()
                loss = outer(torch.ones(3, 2)).sum()
                loss.backward()
                if fails == "closure":
                    raise ValueError("the user's own")
                return loss.item()

            optimizer.step(closure)

        step("")
        with pytest.raises(ValueError, match="the user's own") as caught:
            step(fails)
        assert "_raise" in str(caught.traceback[-1]) or caught.traceback[-1].path.name == "test_never_hurt.py"
        for _ in range(2):
            step("")
    assert seen.faults == []
    whole = [window for window in seen.windows if window.stage == "train"]
    shape = [[call.levels[-1] for call in window.calls if call.kind in ("lifecycle", "module")] for window in whole]
    assert shape[0] == shape[-1] and shape[0].count("torch.nn.Module.forward") == 4
    last = whole[-1]
    depths = {len(last.ancestors(call)) for call in last.calls if call.levels[-1] == STEP}
    assert depths == {0}
    outermost = [call for call in last.calls if call.receiver == "Sequential"]
    assert [dict(call.context)["outermost"] for call in outermost] == [True]


@pytest.mark.parametrize("fails", ["forward", "backward"])
def test_a_failing_step_does_not_bend_those_after_it(fails: str) -> None:
    def program(fails: str, steps: int) -> None:
        outer = nn.Sequential(Broken(), nn.Linear(2, 1))
        optimizer = torch.optim.SGD(outer.parameters(), lr=0.1)
        for number in range(steps):
            outer[0].fails = fails if number == 1 else ""
            try:
                optimizer.zero_grad()
                outer(torch.ones(3, 2)).sum().backward()
                optimizer.step()
            except ValueError:
                continue

    def shape(seen: Seen) -> list[tuple[str, str, int]]:
        window = next(window for window in reversed(seen.windows) if window.stage == "train")
        return [(call.name, call.receiver, len(window.ancestors(call))) for call in window.calls]

    with observing() as failed:
        program(fails, 5)
    with observing() as plain:
        program("", 4)
    assert shape(failed) == shape(plain)
    assert failed.faults == []


def test_a_name_asked_for_in_vain_is_no_fault() -> None:
    assert levels(torch.optim.SGD, "step", torch.optim.Optimizer) == ("torch.optim.SGD.step", STEP)


def test_the_program_may_take_our_callables_for_its_own() -> None:
    """A reference taken while observed works afterwards, too."""
    with observing() as seen:
        backward: Callable[..., None] = torch.autograd.backward
        clip = nn.utils.clip_grad_norm_
    weight = torch.ones(2, requires_grad=True)
    backward([weight.sum()])
    clip([weight], 1.0)
    assert weight.grad is not None
    assert seen.calls == []
