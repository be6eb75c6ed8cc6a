"""Tests that code made by `torch.compile` runs as without TrainCheck, and that its calls are recorded from outside."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo
import torch.nn.functional as F
from torch import nn
from torch._dynamo import convert_frame

from observed_process import observing
from small_trainings import process_state
from torch_version import TORCH
from traincheck.sources.compile.compiled_callables import identify_target
from traincheck.vocab.demand import OUTPUT_SIZE
from traincheck.vocab.events import COMPILED, Window
from traincheck.vocab.facts import value_of

STEP, FORWARD = "torch.optim.Optimizer.step", "torch.nn.Module.forward"


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(4, 8)
        self.head = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
        return self.head(torch.tanh(self.stem(x)) * scale)


@pytest.fixture(autouse=True)
def nothing_compiled() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


def compilations() -> int:
    return sum(convert_frame.FRAME_COMPILE_COUNTER.values())


needs_results = pytest.mark.skipif(TORCH < (2, 12), reason="results of compiled models are readable since torch 2.12")


def data(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(step))
    return x, x[:, :2].argmax(1)


# -- programs: each makes something to call in every step ------------------------------------------------------------


def of_model() -> Callable[[int], object]:
    model = Net()
    identify_target, optimizer = (
        torch.compile(model, backend="eager", fullgraph=True),
        torch.optim.Adam(model.parameters()),
    )
    return lambda step: update(identify_target, optimizer, step)


def in_place() -> Callable[[int], object]:
    model = Net()
    model.compile(backend="eager")
    optimizer = torch.optim.Adam(model.parameters())
    return lambda step: update(model, optimizer, step)


def of_step() -> Callable[[int], object]:
    model = Net()
    optimizer = torch.optim.Adam(model.parameters())
    stepped = torch.compile(lambda: optimizer.step(), backend="eager")
    return lambda step: update(model, optimizer, step, stepped)


def of_everything() -> Callable[[int], object]:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

    @torch.compile(backend="eager")
    def step_on(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        with torch.no_grad():
            return loss * 1.0

    def work(step: int) -> object:
        loss = step_on(*data(step))
        schedule.step()
        return loss.item()

    return work


def of_transforms() -> Callable[[int], object]:
    transformed = torch.compile(
        torch.func.vmap(torch.func.grad(lambda w, x: (w * x).sin().sum()), (None, 0)), backend="eager", fullgraph=True
    )
    return lambda step: transformed(torch.ones(4), data(step)[0]).sum().item()


PROGRAMS = [of_model, in_place, of_step, of_everything, of_transforms]


def update(
    model: Callable[..., torch.Tensor],
    optimizer: torch.optim.Optimizer,
    step: int,
    stepped: Callable[[], object] | None = None,
) -> float:
    x, y = data(step)
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    (stepped or optimizer.step)()
    return loss.item()


# -- as if we were not there -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("program", PROGRAMS)
def test_code_compiled_earlier_is_not_recompiled(program: Callable[[], Callable[[int], object]]) -> None:
    work = program()
    alone, counts = [], []
    for step in range(6):
        alone.append(work(step))
        counts.append(compilations())  # torch 2.4 compiles the step again for each learning rate
    torch._dynamo.reset()
    torch.manual_seed(0)
    work = program()
    losses = [work(step) for step in range(2)]
    count = compilations()
    assert count > 0
    with observing() as seen:
        losses += [work(step) for step in range(2, 4)]
    losses += [work(step) for step in range(4, 6)]
    assert compilations() - count == counts[5] - counts[1]
    assert losses == alone
    assert seen.faults == []


@pytest.mark.parametrize("program", PROGRAMS)
def test_sampling_causes_no_recompilation(
    program: Callable[[], Callable[[int], object]],
) -> None:
    work = program()
    before = compilations()
    alone = [work(step) for step in range(9)]
    count = compilations() - before
    torch._dynamo.reset()
    torch.manual_seed(0)
    before = compilations()
    with observing(watches=lambda step: step % 4 in (1, 2)) as seen:
        work = program()
        losses = [work(step) for step in range(9)]
    assert compilations() - before == count
    assert losses == alone
    assert seen.faults == []


@pytest.mark.parametrize("program", PROGRAMS)
def test_code_compiled_while_observed_is_not_recompiled_later(
    program: Callable[[], Callable[[int], object]],
) -> None:
    work = program()
    counts = []
    for step in range(4):
        work(step)
        counts.append(compilations())  # torch 2.4 compiles the step again for each learning rate
    torch._dynamo.reset()
    before = compilations()
    work = program()
    with observing():
        for step in range(2):
            work(step)
    count = compilations()
    for step in range(2, 4):
        work(step)
    assert compilations() - count == counts[3] - counts[1]
    assert count - before <= counts[1]


def test_nothing_is_left_behind() -> None:
    work = of_model()
    work(0)
    before = process_state()
    with observing():
        work(1)
        other = of_step()
        other(1)
    assert process_state() == before
    assert not any("traincheck" in str(type(finder)) for finder in sys.meta_path)
    handler = torch._dynamo.callback.callback_handler
    assert handler.start_callbacks == handler.end_callbacks == []
    other(2)


def test_a_compiled_callable_that_raises_leaves_us_in_place() -> None:
    @torch.compile(backend="eager")
    def fails(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        torch._dynamo.graph_break()
        raise ValueError(float(y.sum()))

    with observing() as seen:
        during = process_state()
        for _ in range(2):
            with pytest.raises(ValueError):
                fails(torch.ones(2))
        assert process_state() == during
        of_model()(0)
    assert seen.faults == [] and len(seen.named(STEP)) == 1
    assert [call.end for call in seen.named(COMPILED)][:2] == [-1, -1]


def test_the_hooks_and_modes_of_the_program_keep_their_places() -> None:
    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> object:
            return func(*args, **(kwargs or {}))

    order: list[str] = []
    tables = nn.modules.module._global_forward_pre_hooks

    def first(module: nn.Module, args: object) -> None:
        order.append("first")

    model = Net()
    called = torch.compile(model, backend="eager")
    program_hook = nn.modules.module.register_module_forward_pre_hook(first)
    with observing() as seen, Mode() as mode:
        second_hook = nn.modules.module.register_module_forward_pre_hook(lambda module, args: order.append("second"))
        keys = list(tables)
        called(torch.ones(2, 4))
        assert list(tables) == keys
        assert torch.overrides._get_current_function_mode_stack()[-1] is mode
        torch.ones(2).sum()
        program_hook.remove()
        second_hook.remove()
    assert order[:2] == ["first", "second"]
    assert seen.faults == [] and seen.named("torch.Tensor.sum")


def test_no_warning_of_hooks_that_the_program_has_not_made(recwarn: pytest.WarningsRecorder) -> None:
    called = torch.compile(Net(), backend="eager")
    with observing():
        called(torch.ones(2, 4))
        assert not [warning for warning in recwarn if "global hooks" in str(warning.message)]
        handle = nn.modules.module.register_module_forward_pre_hook(lambda module, args: None)
        called(torch.ones(2, 4))
        handle.remove()
    if TORCH >= (2, 8):  # which warns of hooks
        assert [warning for warning in recwarn if "global hooks" in str(warning.message)]


def test_hooks_stay_where_another_thread_trains() -> None:
    work = of_model()
    with observing() as seen:
        work(0)
        other = threading.Thread(target=lambda: Net()(torch.ones(2, 4)))
        other.start()
        other.join()
        table = nn.modules.module._global_forward_pre_hooks

        @torch.compile(backend="eager")
        def looks(x: torch.Tensor) -> torch.Tensor:
            torch._dynamo.graph_break()
            hook_counts.append(len(table))
            return x + 1

        hook_counts: list[int] = []
        looks(torch.ones(2))
        assert hook_counts[0] > 0
        work(1)
    assert seen.faults == [] and len(seen.named(STEP)) == 2


# -- told from outside -----------------------------------------------------------------------------------------------


def plain_program() -> Callable[[int], object]:
    model = Net()
    optimizer = torch.optim.Adam(model.parameters())
    return lambda step: update(model, optimizer, step)


@pytest.mark.parametrize(
    "program", [pytest.param(of_model, marks=needs_results), pytest.param(in_place, marks=needs_results), of_step]
)
def test_models_and_steps_are_recorded_as_without_the_compiler(program: Callable[[], Callable[[int], object]]) -> None:
    """All but the graphs of backwards, in which a compiled region is one operation, and outputs of modules in it."""
    records = []
    for build in (plain_program, program):
        torch.manual_seed(0)
        with observing() as seen:
            work = build()
            for step in range(3):
                work(step)
        assert seen.faults == []
        outer = [call for call in seen.named(FORWARD) if call.receiver == "Net"]
        records.append(
            (
                seen.stages,
                [(call.levels, call.context, call.args, call.result) for call in (*outer, *seen.named(STEP))],
                [(c.variable, c.kind, c.attribute, c.before, c.after, c.changed, c.context) for c in seen.changes],
                [
                    (r.variable, r.kind, r.attribute, r.value)
                    for r in seen.readings
                    if r.kind not in ("run", "graph") and not str(r.value).startswith(OUTPUT_SIZE)
                ],
                [tensor[:4] for call in outer for tensor in call.tensors],
            )
        )
    assert records[0] == records[1]


def test_keyword_arguments_of_a_compiled_model_are_recorded() -> None:
    model = Net()
    model.compile(backend="eager")
    with observing() as seen:
        model(torch.ones(2, 4), scale=2.0)
    (call,) = (call for call in seen.named(FORWARD) if call.receiver == "Net")
    assert value_of(call.args, "scale") == 2.0
    assert call.tensors[0].shape == (2, 4)


@needs_results
def test_results_of_a_compiled_model_are_recorded() -> None:
    with observing() as seen:
        of_model()(0)
    (call,) = (call for call in seen.named(FORWARD) if call.receiver == "Net")
    assert [tensor.shape for tensor in call.tensors] == [(8, 4), (8, 2)]
    assert not [reason for reason in seen.recorder.unobservable if "results" in reason]


@pytest.mark.skipif(TORCH >= (2, 12), reason="results of compiled models are readable since torch 2.12")
def test_unknown_results_of_compiled_models_are_reported() -> None:
    with observing() as seen:
        work = of_model()
        for step in range(2):
            work(step)
    calls = [call for call in seen.named(FORWARD) if call.receiver == "Net"]
    assert [(call.end > 0, call.result, len(call.tensors)) for call in calls] == [(True, (), 1)] * 2
    assert len([reason for reason in seen.recorder.unobservable if "before torch 2.12" in reason]) == 1
    assert seen.faults == []


def test_a_step_with_its_schedule() -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

    @torch.compile(backend="eager")
    def both() -> None:
        optimizer.step()
        schedule.step()

    with observing() as seen:
        for step in range(3):
            update(model, optimizer, step, both)
    assert [call.levels[-1].split(".")[-2] for call in seen.calls if call.levels[-1].endswith(".step")] == [
        "Optimizer",
        "LRScheduler",
    ] * 3
    rates = [reading.value for reading in seen.readings if reading.attribute == "lr" and reading.kind == "scheduler"]
    assert rates == [0.05, 0.025, 0.0125]


def test_unobserved_training_is_counted_and_separated() -> None:
    with observing() as seen:
        work = of_everything()
        for step in range(3):
            work(step)
    assert [stage for stage in seen.stages if stage[0] == "train"] == [("train", 1), ("train", 2), ("train", 3)]
    trained: list[Window] = [window for window in seen.windows if window.stage == "train"]
    assert all(after.index - before.index > 1 for before, after in zip(seen.windows, trained, strict=False))
    assert seen.faults == []


def test_a_function_that_an_optimizer_compiles_hides_nothing() -> None:
    """Muon compiles its iteration, the optimizers of torchao what they compute for each parameter."""
    model = nn.Linear(4, 2)

    @torch.compile(backend="eager")
    def descend(parameter: torch.Tensor, gradient: torch.Tensor) -> None:
        parameter.sub_(gradient, alpha=0.1)

    class Compiled(torch.optim.Optimizer):
        def __init__(self) -> None:
            super().__init__(model.parameters(), {})

        @torch.no_grad()
        def step(self) -> None:  # type: ignore[override]
            for parameter in model.parameters():
                assert parameter.grad is not None
                descend(parameter.detach(), parameter.grad)

    optimizer = Compiled()
    with observing() as seen:
        for step in range(3):
            x, labels = data(step)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), labels).backward()
            optimizer.step()
    assert [len(seen.named(name)) for name in (STEP, FORWARD)] == [3, 3]
    assert [window.step for window in seen.windows if window.stage == "train"] == [1, 2, 3]
    assert seen.recorder.unobservable == [] and not seen.recorder.has_compiled_code


def test_a_compiled_update_between_eager_ones() -> None:
    """The first and the last step are observed, the middle one is only counted."""
    model = Net()
    optimizer = torch.optim.Adam(model.parameters())

    @torch.compile(backend="eager")
    def whole(step: int) -> float:
        return update(model, optimizer, step)

    with observing() as seen:
        update(model, optimizer, 0)
        whole(1)
        update(model, optimizer, 2)
    assert [window.step for window in seen.windows if window.stage == "train"] == [1, 2, 3]
    assert len(seen.named(STEP)) == 2


@pytest.mark.skipif(TORCH < (2, 6), reason="torch.compiler.set_stance is new in torch 2.6")
def test_force_eager_is_observed_as_ever() -> None:
    model = Net()
    called = torch.compile(model, backend="eager")
    with observing() as seen, torch.compiler.set_stance("force_eager"):
        called(torch.ones(2, 4))
    assert {call.receiver for call in seen.named(FORWARD)} == {"Net", "Net.stem", "Net.head"}
    assert seen.named(COMPILED) == []


def test_names_are_those_that_the_program_gave() -> None:
    model = nn.Sequential(nn.Linear(4, 4), torch.compile(nn.Linear(4, 2), backend="eager"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with observing() as seen:
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        model.train()
        torch.compile(model, backend="eager").eval()
    assert {change.variable for change in seen.around(STEP)} >= {"Sequential.0.weight", "Sequential.1.weight"}
    assert not [change.variable for change in seen.changes if "_orig_mod" in change.variable]
    assert {call.receiver for call in seen.named("torch.nn.Module.eval")} == {"Sequential"}


# -- what a compiled callable is -------------------------------------------------------------------------------------


def test_functions_that_only_step() -> None:
    model = Net()
    first, second = torch.optim.SGD(model.parameters(), lr=0.1), torch.optim.Adam(model.parameters())
    schedule = torch.optim.lr_scheduler.ExponentialLR(first, 0.9)

    class Trainer:
        optimizer = second

        def __init__(self) -> None:
            self.optimizer = second

        def update(self) -> None:
            self.optimizer.step()

    def branches() -> None:
        if schedule.last_epoch:
            second.step()

    def guarded() -> None:
        with torch.no_grad():
            second.step()

    def more() -> None:
        second.zero_grad()
        second.step()

    def both() -> None:
        second.step()
        schedule.step()

    trainer = Trainer()
    assert identify_target(second.step, (), {}).optimizer is second
    assert identify_target(first.step, (), {}).optimizer is first, "which the scheduler has replaced"
    assert identify_target(lambda: second.step(), (), {}).optimizer is second
    assert identify_target(lambda optimizer: optimizer.step(), (second,), {}).optimizer is second
    assert identify_target(both, (), {})[2:4] == (second, (schedule,))
    assert identify_target(Trainer.update, (trainer,), {}).optimizer is second
    assert identify_target(lambda: model.forward(torch.ones(1, 4)), (), {}).optimizer is None
    for function in (branches, guarded, more, lambda: (first.step(), second.step()), lambda: second.step(None)):
        assert identify_target(function, (), {}).optimizer is None
    assert identify_target(model._call_impl, (), {}).module is model
    assert identify_target(lambda x: model(x), (), {}).model is model


def test_only_own_code_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    from traincheck.sources.compile import skipped_code
    from traincheck.sources.recording import recorder

    monkeypatch.setattr(skipped_code, "_skipped", set())
    skipped: list[Any] = []
    skipped_code.skip_own_code(skipped.append)
    files = {code.co_filename for code in skipped}
    assert recorder.__file__ in files and len(skipped) > 300
    assert all("traincheck" in file for file in files), "contextlib's helper stands behind our context managers"
