"""An operation is an origin if neither its inputs nor rounding explain its results."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from contextlib import AbstractContextManager

import msgspec
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from recorded_operations import compare_one_rank, recorded
from traincheck.comparison.difference import CODE, DATA, DIFFERENT, GRADIENTS, INITIALISATION, RANDOM, ROUNDING, SAME
from traincheck.comparison.report import lines
from traincheck.comparison.run_comparison import Comparison
from traincheck.vocab.operations import AFTER, BACKWARD, BEFORE, FORWARD, GRADIENT, UPDATE, StepOperations

STEPS = 3


class Net(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, width), nn.Linear(width, 4)
        self.drop = nn.Dropout(0.2)

    def activate(self, x: torch.Tensor) -> torch.Tensor:
        return F.gelu(x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.drop(self.activate(self.first(x))))


class TanhNet(Net):
    def activate(self, x: torch.Tensor) -> torch.Tensor:
        return F.gelu(x, approximate="tanh")


class ReluNet(Net):
    def activate(self, x: torch.Tensor) -> torch.Tensor:
        return (x * 2).relu() / 2


class _Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        return gradient * ctx.saved_tensors[0] * 2


class _Halved(_Square):
    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        return gradient * ctx.saved_tensors[0]


def _scale(parameter: torch.Tensor, by: float) -> None:
    assert parameter.grad is not None
    with torch.no_grad():
        parameter.grad *= by


def run(
    make: Callable[[], nn.Module] = Net,
    *,
    seed: int = 0,
    data: int = 1,
    noise: int = 2,
    clip: float = 0.01,
    rate: float = 0.1,
    arrives: float = 1.0,
    average: float | None = None,
    dtype: torch.dtype = torch.float32,
    observed: bool = True,
) -> tuple[list[StepOperations], list[torch.Tensor]]:
    """Train for some steps; the operations and the final parameters. The backward scales gradients by `arrives`."""
    steps: list[StepOperations] = []

    def build_and_train() -> nn.Module:
        torch.manual_seed(seed)
        model = make().to(dtype)
        averaged = copy.deepcopy(model) if average is not None else None
        optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
        if arrives != 1.0:
            for parameter in model.parameters():
                parameter.register_post_accumulate_grad_hook(functools.partial(_scale, by=arrives))
        generator = torch.Generator().manual_seed(data)
        batches = [(torch.randn(6, 8, generator=generator).to(dtype), torch.arange(6) % 4) for _ in range(STEPS)]
        torch.manual_seed(noise)
        for inputs, labels in batches:
            loss = F.cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            if averaged is not None and average is not None:
                with torch.no_grad():
                    for own, other in zip(averaged.parameters(), model.parameters(), strict=True):
                        own.lerp_(other, average)
        return model

    if observed:
        with recorded(steps):
            model = build_and_train()
    else:
        model = build_and_train()
    return steps, [parameter.detach().clone() for parameter in model.parameters()]


def compared(*others: Callable[[], nn.Module], **changes: float | int | torch.dtype) -> Comparison:
    return compare_one_rank(run()[0], run(*others, **changes)[0])  # type: ignore[arg-type]


def test_the_recording_changes_no_bit() -> None:
    steps, observed = run()
    _, plain = run(observed=False)
    assert [step.step for step in steps] == [1, 2, 3]
    assert all(map(torch.equal, observed, plain))


def test_the_recording_shows_what_flows_where() -> None:
    (first, *_), _ = run()
    named = {(each.phase, each.name, each.module): each for each in first.operations}
    assert not first.incomplete
    linear = named[FORWARD, "addmm", "Net.second"]
    producers = {value: each for each in first.operations for value in each.outputs}
    assert {producers[value].module for value in linear.inputs} == {"Net.drop", "Net.second.weight", "Net.second.bias"}
    backward = named[BACKWARD, "AddmmBackward0", "Net.second"]
    assert linear.outputs[0] in backward.inputs
    assert {phase for phase, _, module in named if module == "Net.first.weight"} == {BEFORE, BACKWARD, GRADIENT, UPDATE}
    clipped = named[GRADIENT, "gradient", "Net.first.weight"]
    assert {producers[value].name for value in clipped.inputs} == {"_foreach_mul_"}
    assert [each.random for each in first.operations if each.name == "bernoulli_"] == [True]


def test_equal_runs_are_equal() -> None:
    comparison = compared()
    assert comparison.result == SAME and not comparison.origins
    assert [step.step for step in comparison.steps] == [1, 2, 3]


@pytest.mark.parametrize(
    ("changes", "kind", "phase", "name"),
    [
        ({"data": 7}, DATA, BEFORE, "input"),
        ({"seed": 7}, INITIALISATION, BEFORE, "parameter"),
        ({"noise": 7}, RANDOM, FORWARD, "bernoulli_"),
        ({"clip": 0.02}, CODE, FORWARD, "mul"),
        ({"arrives": 0.5}, GRADIENTS, BACKWARD, "accumulated gradient"),
        ({"rate": 0.2}, CODE, UPDATE, "SGD.step"),
    ],
)
def test_the_kind_of_an_origin(changes: dict[str, float], kind: str, phase: str, name: str) -> None:
    comparison = compared(**changes)
    assert comparison.result == DIFFERENT
    origin = comparison.origins[0]
    assert (origin.step, origin.kind, origin.operation.phase, origin.operation.name) == (1, kind, phase, name)
    assert {each.operation.phase for each in comparison.origins} == {phase}


def test_another_setting_of_an_operation_is_the_only_origin() -> None:
    comparison = compared(TanhNet)
    (origin,) = comparison.origins
    assert origin.a is not None and origin.b is not None
    assert (origin.kind, origin.a.name, origin.a.settings, origin.b.settings) == (CODE, "gelu", "", "tanh")
    assert (origin.a.module, origin.inputs) == ("Net", 0.0)
    assert comparison.renamed == {"TanhNet": "Net"} and comparison.victims


def test_other_operations_are_one_stretch() -> None:
    comparison = compared(ReluNet)
    (origin,) = comparison.origins
    assert origin.kind == CODE
    assert [each.name for each in origin.others_a] == ["gelu"]
    assert [each.name for each in origin.others_b] == ["mul", "relu", "div"]


def test_the_same_numbers_by_other_operations_are_equal() -> None:
    class Doubled(Net):
        def activate(self, x: torch.Tensor) -> torch.Tensor:
            return F.gelu(x * 4 / 4)  # exact

    assert compared(Doubled).result == SAME


def test_a_lower_precision_is_rounding_and_a_wrong_scale_in_it_is_not() -> None:
    class Scaled(Net):
        def activate(self, x: torch.Tensor) -> torch.Tensor:
            return F.gelu(x) * 1.5

    assert compared(dtype=torch.bfloat16).result == ROUNDING
    comparison = compared(Scaled, dtype=torch.bfloat16)
    assert comparison.result == DIFFERENT
    (origin,) = comparison.origins
    assert (origin.kind, origin.others_a, [each.name for each in origin.others_b]) == (CODE, (), ["mul"])


def test_a_wrong_backward_is_named() -> None:
    class Right(Net):
        def activate(self, x: torch.Tensor) -> torch.Tensor:
            return _Square.apply(x)

    class Wrong(Net):
        def activate(self, x: torch.Tensor) -> torch.Tensor:
            return _Halved.apply(x)

    comparison = compare_one_rank(run(Right)[0], run(Wrong)[0])
    (origin,) = comparison.origins
    assert origin.operation.phase == BACKWARD and origin.kind == CODE
    assert [each.name for each in origin.others_a] == ["_SquareBackward"]
    assert [each.name for each in origin.others_b] == ["_HalvedBackward"]


def test_memory_without_values_is_not_compared() -> None:
    class Padded(Net):
        def activate(self, x: torch.Tensor) -> torch.Tensor:
            memory = torch.empty(3 * x.numel())
            part = memory[: x.numel()].view(x.shape)
            return F.gelu(part.copy_(x))

    steps, _ = run(Padded)
    values = {each.name: steps[0].values[each.outputs[0]] for each in steps[0].operations if each.phase == FORWARD}
    assert not values["empty"].packed_projections and not values["slice"].packed_projections
    assert values["copy_"].packed_projections and values["gelu"].packed_projections
    assert compare_one_rank(steps, run(Padded)[0]).result == SAME


def test_parameters_that_change_within_a_step_are_compared_in_order() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                self.layer.bias.add_(1)
            return self.layer(x)

    steps, _ = run(Twice)
    assert compare_one_rank(steps, run(Twice)[0]).result == SAME


def test_an_update_that_one_run_lacks_is_an_origin() -> None:
    (first, *_), _ = run()
    computed = tuple(each for each in first.operations if each.phase != UPDATE)
    comparison = compare_one_rank([first], [StepOperations(first.step, first.values, computed)])
    assert comparison.result == DIFFERENT
    assert {(each.kind, each.operation.phase, each.b) for each in comparison.origins} == {(CODE, UPDATE, None)}
    assert any("nothing" in line for line in lines(comparison, "first", "second"))


def test_gradients_that_one_run_lacks_are_origins_and_their_updates_are_not() -> None:
    class Detached(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x).detach().requires_grad_()

    comparison = compare_one_rank(run()[0], run(Detached)[0])
    assert {each.operation.phase for each in comparison.origins} == {GRADIENT}
    assert {each.b for each in comparison.origins} == {None}


def test_an_average_that_is_updated_differently_is_an_origin() -> None:
    comparison = compare_one_rank(run(average=0.1)[0], run(average=0.2)[0])
    assert {(each.kind, each.operation.name, each.operation.phase) for each in comparison.origins} == {
        (CODE, "lerp_", FORWARD)
    }


def test_an_average_that_one_run_does_not_update_is_an_origin() -> None:
    first = run(average=0.1)[0][0]
    kept = [each for each in first.operations if each.name != "lerp_"]
    before = {each.module: each.outputs for each in kept if each.phase == BEFORE}
    for index, operation in enumerate(kept):
        if operation.phase == AFTER:
            kept[index] = msgspec.structs.replace(operation, inputs=before.get(operation.module, operation.inputs))
    comparison = compare_one_rank([first], [StepOperations(first.step, first.values, tuple(kept))])
    assert comparison.result == DIFFERENT
    assert {each.name for origin in comparison.origins for each in origin.others_a} == {"lerp_"}
    assert not any(origin.others_b for origin in comparison.origins)


class ShiftNet(Net):
    """Its checkpoint has no shift if that is an attribute."""

    def __init__(self, is_buffer: bool) -> None:
        super().__init__()
        shift = torch.full((16,), 0.5)
        if is_buffer:
            self.register_buffer("shift", shift)
        else:
            self.shift = shift

    def activate(self, x: torch.Tensor) -> torch.Tensor:
        return F.gelu(x + self.shift)


def test_state_that_one_run_lacks_is_shown() -> None:
    buffer, attribute = functools.partial(ShiftNet, True), functools.partial(ShiftNet, False)
    comparison = compare_one_rank(run(buffer)[0], run(attribute)[0])
    assert comparison.result == SAME
    assert comparison.only_a == ("ShiftNet.shift",) and not comparison.only_b
    assert "  only good has: ShiftNet.shift" in list(lines(comparison, "good", "bad"))


@pytest.mark.parametrize("evaluates", [torch.inference_mode, torch.no_grad])
def test_an_evaluation_behind_an_update_is_not_disturbed(evaluates: Callable[[], AbstractContextManager[None]]) -> None:
    steps: list[StepOperations] = []
    with recorded(steps):
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(6, 8)).sum().backward()
            optimizer.step()
            model.eval()
            with evaluates():
                model(torch.randn(6, 8))
            torch.randperm(4)  # an operation without tensors shows a mode that is gone
            model.train()
    assert [len(step.operations) for step in steps] == [len(steps[0].operations)] * 3
    assert not any(step.incomplete for step in steps)
    assert not _get_current_dispatch_mode_stack()
