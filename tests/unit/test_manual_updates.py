"""Tests that each update without an optimizer ends a step, and that no other write does."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import nn

from loops import BACKWARD, STEP, loader, names, net, sgd, stages, train, updates, windows_of
from observed_process import observing
from traincheck.relations.periodic.parameter_updates import CLEARED, ParameterUpdates
from traincheck.sources.tensors.deferred_values import fetches, simulated_accelerator
from traincheck.vocab.demand import NOTHING
from traincheck.vocab.events import Window


def loss_of(model: nn.Module, x: torch.Tensor | None = None) -> torch.Tensor:
    return model(torch.randn(2, 4) if x is None else x).square().mean()


def through_data(model: nn.Module) -> None:
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.data.add_(parameter.grad, alpha=-0.1)


def train_by_hand(model: nn.Module, steps: int) -> None:
    for _ in range(steps):
        model.zero_grad()
        loss_of(model).backward()
        through_data(model)


def in_no_grad(model: nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.1 * parameter.grad


def new_memory(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.data = parameter.data - 0.1 * parameter.grad


def copied(model: nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter - 0.1 * parameter.grad)


def foreach(model: nn.Module) -> None:
    parameters = list(model.parameters())
    with torch.no_grad():
        torch._foreach_add_(parameters, [parameter.grad for parameter in parameters], alpha=-0.1)


class OwnOptimizer:
    """An optimizer that torch knows nothing of."""

    def __init__(self, model: nn.Module) -> None:
        self.parameters = list(model.parameters())
        self.momentum = [torch.zeros_like(parameter) for parameter in self.parameters]

    def step(self) -> None:
        for parameter, momentum in zip(self.parameters, self.momentum, strict=True):
            momentum.mul_(0.9).add_(parameter.grad)
            parameter.data.add_(momentum, alpha=-0.1)


def own_optimizer(model: nn.Module) -> None:
    OwnOptimizer(model).step()


@pytest.mark.parametrize("update", [through_data, in_no_grad, new_memory, copied, foreach, own_optimizer])
def test_each_update_by_hand_is_a_step(update: Callable[[nn.Module], None]) -> None:
    def program() -> None:
        model = net()
        for (x,) in loader(5):
            model.zero_grad()
            loss_of(model, x).backward()
            update(model)

    windows = windows_of(program)
    assert stages(windows) == ["setup 0", *train(5), "end 5"]
    assert updates(windows) == [["Sequential"]] * 5
    for window in windows[1:-1]:
        assert names(window).index(BACKWARD) < names(window).index(STEP)
        (call,) = [call for call in window.calls if call.name == "manual.update"]
        changed = {change.variable for change in window.changes if change.call == call.seq}
        assert changed == {f"Sequential.{name}" for name in ("0.weight", "0.bias", "2.weight", "2.bias")}


def test_updates_by_hand_are_recognised_on_an_accelerator() -> None:
    def program() -> None:
        model = net()
        train_by_hand(model, steps=4)

    with simulated_accelerator():
        windows = windows_of(program)
    assert stages(windows) == ["setup 0", *train(4), "end 4"]
    for window in windows[1:-1]:
        call = next(call for call in window.calls if call.name == "manual.update")
        grads = {dict(change.context)["grad"] for change in window.changes if change.call == call.seq}
        assert grads == {"some"}


def test_accumulated_gradients_make_one_step_for_each_update() -> None:
    def program() -> None:
        model = net()
        for number in range(1, 9):
            (loss_of(model) / 4).backward()
            if number % 4 == 0:
                through_data(model)
                model.zero_grad()

    windows = windows_of(program)
    assert stages(windows) == ["setup 0", *train(2), "end 2"]
    assert [names(window).count(BACKWARD) for window in windows[1:-1]] == [4, 4]


def test_a_batch_that_is_fetched_before_the_update_does_not_hide_it() -> None:
    def program() -> None:
        model = net()
        batches = iter(loader(4))
        batch = next(batches, None)
        while batch is not None:
            model.zero_grad()
            loss_of(model, batch[0]).backward()
            batch = next(batches, None)
            through_data(model)

    assert [stage for stage in stages(windows_of(program)) if "train" in stage] == train(4)


def test_clipping_comes_before_the_update() -> None:
    def program() -> None:
        model = net()
        for _ in range(3):
            model.zero_grad()
            loss_of(model).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            through_data(model)

    for window in windows_of(program)[1:-1]:
        order = [name for name in names(window) if name in (BACKWARD, STEP, "torch.nn.utils.clip_grad_norm_")]
        assert order == [BACKWARD, "torch.nn.utils.clip_grad_norm_", STEP]


def test_two_models_that_are_updated_together_make_one_step() -> None:
    def program() -> None:
        encoder, decoder = nn.Linear(4, 4), nn.Bilinear(4, 4, 1)
        for _ in range(3):
            encoder.zero_grad()
            decoder.zero_grad()
            hidden = encoder(torch.randn(2, 4))
            decoder(hidden, hidden).mean().backward()
            through_data(encoder)
            through_data(decoder)

    windows = windows_of(program)
    assert stages(windows) == ["setup 0", *train(3), "end 3"]
    assert [sorted(names) for names in updates(windows)] == [["Bilinear", "Linear"]] * 3


def test_an_evaluation_follows_the_last_step() -> None:
    def program() -> None:
        model = net()
        train_by_hand(model, steps=2)
        model.eval()
        with torch.no_grad():
            model(torch.randn(2, 4))

    assert stages(windows_of(program)) == ["setup 0", *train(2), "eval 2"]


def test_steps_outside_the_sample_are_counted() -> None:
    model = net()
    with observing(watches=lambda step: step not in (2, 3)) as seen:
        for (x,) in loader(5):
            model.zero_grad()
            loss_of(model, x).backward()
            through_data(model)
    assert seen.recorder.steps.updates_made == 5
    assert [step for stage, step in seen.stages if stage == "train"] == [1, 4, 5]


def test_steps_are_counted_without_any_demand() -> None:
    model = net()
    with observing(NOTHING) as seen:
        train_by_hand(model, steps=3)
    assert seen.stages == [("setup", 0), ("train", 1), ("train", 2), ("train", 3), ("end", 3)]


def test_a_program_with_an_optimizer_keeps_its_steps() -> None:
    def program() -> None:
        model = net()
        average = copy.deepcopy(model)
        optimizer = sgd(model)
        for _ in range(4):
            for _ in range(2):
                loss_of(model).backward()
                with torch.no_grad():  # weight noise between the backward and the update
                    for parameter in model.parameters():
                        parameter.add_(1e-3)
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                for mean, parameter in zip(average.parameters(), model.parameters(), strict=True):
                    mean.lerp_(parameter, 0.1)

    windows = windows_of(program)
    assert stages(windows) == ["setup 0", *train(4), "end 4"]
    assert updates(windows) == [["SGD"]] * 4


def test_an_inner_loop_that_works_on_a_copy_makes_no_steps() -> None:
    def program() -> None:
        model = net()
        optimizer = sgd(model)
        for _ in range(3):
            optimizer.zero_grad()
            clone = copy.deepcopy(model)
            for _ in range(2):
                clone.zero_grad()
                loss_of(clone).backward()
                through_data(clone)
            for parameter, inner in zip(model.parameters(), clone.parameters(), strict=True):
                parameter.grad = parameter.detach() - inner.detach()
            optimizer.step()

    windows = windows_of(program)
    assert updates(windows) == [["SGD"]] * 3
    assert stages(windows)[-1] == "end 3"


def test_a_write_in_a_forward_is_no_update() -> None:
    def program() -> None:
        model = nn.Embedding(8, 4, max_norm=0.5)
        for _ in range(12):
            model(torch.arange(8)).sum().backward()

    with observing() as seen:
        program()
    assert seen.recorder.steps.updates_made == 0
    assert [step for stage, step in seen.stages if stage == "train"] == [1]


def test_an_optimizer_that_is_built_later_takes_over() -> None:
    def program() -> None:
        model = net()
        train_by_hand(model, steps=2)
        optimizer = sgd(model)
        for _ in range(2):
            optimizer.zero_grad()
            loss_of(model).backward()
            optimizer.step()

    windows = windows_of(program)
    assert updates(windows) == [["Sequential"], ["Sequential"], ["SGD"], ["SGD"]]


def test_a_program_that_names_its_steps_keeps_them() -> None:
    model = net()
    with observing() as seen:
        steps = seen.recorder.steps
        for _ in range(2):
            train_by_hand(model, steps=3)
            steps.explicit_step(seen.recorder.next_seq())
    # That the program names them is known from the first time on; the updates before it were steps.
    assert [step for stage, step in seen.stages if stage == "train"] == [1, 2, 3, 4]
    assert updates(seen.windows) == [["Sequential"], ["Sequential"], ["Sequential"], ["Sequential"] * 3]


def cleared(windows: list[Window]) -> tuple[int, int]:
    """Return how often a gradient was cleared before its next use, and how often not."""
    progress = ParameterUpdates()
    occasions = [occasion for window in windows for occasion in progress.occasions(window)]
    return sum(CLEARED in occasion.held for occasion in occasions), sum(
        CLEARED in (occasion.failed or ()) for occasion in occasions
    )


@pytest.mark.parametrize("way", ["model", "none", "zeros", "missing"])
def test_gradients_that_are_not_cleared_between_updates_by_hand(way: str) -> None:
    def program() -> None:
        model = net()
        for _ in range(4):
            if way == "model":
                model.zero_grad()
            loss_of(model).backward()
            through_data(model)
            for parameter in model.parameters():
                if way == "none":
                    parameter.grad = None
                elif way == "zeros" and parameter.grad is not None:
                    parameter.grad.zero_()

    held, failed = cleared(windows_of(program))
    assert (held > 0, failed > 0) == (way != "missing", way == "missing")


def test_no_transfer_is_made_for_a_program_with_an_optimizer() -> None:
    model = net()
    optimizer = sgd(model)
    with simulated_accelerator(), observing(NOTHING) as seen:
        before = fetches.count
        for _ in range(20):
            optimizer.zero_grad()
            loss_of(model).backward()
            optimizer.step()
        assert fetches.count == before
    assert seen.faults == []


def test_the_program_computes_the_same() -> None:
    def trained(*, observed: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = net()

        def loop() -> None:
            train_by_hand(model, steps=5)

        if observed:
            windows_of(loop)
        else:
            loop()
        return [parameter.detach().clone() for parameter in model.parameters()] + [torch.randn(3)]

    for unobserved, other in zip(trained(observed=False), trained(observed=True), strict=True):
        assert torch.equal(unobserved, other)


def unused(program: Callable[[], object]) -> list[str]:
    """The readings about unused gradients at the end of a run."""
    with observing() as seen:
        program()
    assert seen.faults == []
    return [
        reading.attribute for reading in seen.readings if reading.attribute in ("unused_gradients", "idle_optimizer")
    ]


def backwards(model: nn.Module, count: int) -> None:
    for _ in range(count):
        model.zero_grad()
        loss_of(model).backward()


def test_an_optimizer_that_never_steps_is_reported() -> None:
    def program() -> None:
        model = net()
        optimizer = sgd(model)
        backwards(model, 12)
        del optimizer

    assert unused(program) == ["idle_optimizer"]


def test_unused_gradients_are_reported() -> None:
    assert unused(lambda: backwards(net(), 12)) == ["unused_gradients"]


def attribution() -> None:
    model = net().eval()
    backwards(model, 30)


def adversarial_inputs() -> None:
    model = net().requires_grad_(False)
    for _ in range(30):
        x = torch.randn(2, 4, requires_grad=True)
        loss_of(model, x).backward()


def a_test_of_gradients() -> None:
    backwards(net(), 3)


def a_long_accumulation() -> None:
    model = net()
    optimizer = sgd(model)
    for _ in range(40):
        loss_of(model).backward()
    optimizer.step()


def updates_beside_an_optimizer() -> None:
    model = net()
    optimizer = sgd(model)
    train_by_hand(model, steps=20)
    del optimizer


def accumulated_updates_beside_an_optimizer() -> None:
    model = net()
    optimizer = sgd(model)
    for number in range(1, 33):
        loss_of(model).backward()
        if number % 16 == 0:
            through_data(model)
            model.zero_grad()
    del optimizer


@pytest.mark.parametrize("steps", [0, 1])
def test_parameters_are_kept_until_the_first_update(steps: int) -> None:
    with observing(NOTHING):
        model = net()
        optimizer = sgd(model)
        for _ in range(12):
            loss_of(model).backward()
        for _ in range(steps):
            optimizer.step()
        kept = [weakref.ref(parameter) for parameter in model.parameters()]
        del model, optimizer
        gc.collect()
        assert any(reference() is not None for reference in kept) is (steps == 0)


@pytest.mark.parametrize(
    "program",
    [
        accumulated_updates_beside_an_optimizer,
        attribution,
        adversarial_inputs,
        a_test_of_gradients,
        a_long_accumulation,
        updates_beside_an_optimizer,
    ],
)
def test_gradients_that_are_only_inspected_are_not_reported(program: Callable[[], None]) -> None:
    assert unused(program) == []
