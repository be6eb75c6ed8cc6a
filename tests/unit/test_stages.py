"""Stages and odd steps: evaluation, phases, updates that are left out, raise, or call one another."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from loops import BACKWARD, FORWARD, STEP, loader, names, net, sgd, stages, train, updates, windows_of, work


@pytest.mark.parametrize("guard", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_evaluation_in_the_middle(guard: Callable[[], object]) -> None:
    def program() -> None:
        model = net()
        optimizer = sgd(model)
        for _ in range(2):
            model.train()
            for (x,) in loader(2):
                work(model, optimizer, x)
            model.eval()
            with guard():  # type: ignore[attr-defined]
                for (x,) in loader(3):
                    model(x)

    windows = windows_of(program)
    assert stages(windows) == ["setup 0", "train 1", "train 2", "eval 2", "train 3", "train 4", "eval 4", "end 4"]
    for window in windows:
        modes = {dict(call.context)["training"] for call in window.calls if call.levels[-1] == FORWARD}
        assert modes == {"train": {True}, "eval": {False}, "setup": set(), "end": set()}[window.stage]


def test_evaluation_before_the_first_step() -> None:
    def program() -> None:
        model = net()
        optimizer = sgd(model)
        model.eval()
        with torch.no_grad():
            model(torch.randn(2, 4))
        model.train()
        for _ in range(2):
            work(model, optimizer)

    assert stages(windows_of(program)) == ["setup 0", "eval 0", "train 1", "train 2", "end 2"]


@pytest.mark.parametrize("guard", [torch.no_grad, torch.enable_grad])
def test_training_in_eval_mode_is_training_all_the_same(guard: Callable[[], object]) -> None:
    def program() -> None:
        model = net()
        optimizer = sgd(model)
        for _ in range(2):
            work(model, optimizer)
            model.eval()
            with guard():  # type: ignore[attr-defined]
                model(torch.randn(2, 4))
            for _ in range(2):
                work(model, optimizer)
            model.train()

    windows = windows_of(program)
    assert [name for name in stages(windows) if name.startswith("train")] == train(6)
    assert updates(windows) == [["SGD"]] * 6
    if guard is torch.no_grad:
        assert stages(windows)[:5] == ["setup 0", "train 1", "eval 1", "train 2", "train 3"]


def test_a_target_network_in_eval_mode_is_part_of_the_step() -> None:
    def program() -> None:
        model, target = net(), net().eval()
        optimizer = sgd(model)
        for _ in range(3):
            x = torch.randn(2, 4)
            prediction = model(x)
            with torch.no_grad():
                goal = target(x)
            optimizer.zero_grad()
            (prediction - goal).square().mean().backward()
            optimizer.step()

    assert stages(windows_of(program)) == ["setup 0", *train(3), "end 3"]


@pytest.mark.parametrize("keep", [True, False])
def test_a_second_phase_with_another_optimizer(keep: bool) -> None:
    def program() -> None:
        model = net()
        kept = []
        for make in (sgd, lambda model: torch.optim.Adam(model[2].parameters())):
            optimizer = make(model)
            if keep:
                kept.append(optimizer)
            for _ in range(3):
                work(model, optimizer)

    windows = windows_of(program)
    assert [name for name in stages(windows) if name.startswith("train")] == train(6)
    assert updates(windows) == [["SGD"]] * 3 + [["Adam"]] * 3


def test_an_update_that_the_scaler_leaves_out_is_a_step() -> None:
    def program() -> None:
        model = net()
        optimizer = sgd(model)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
        for number in range(4):
            optimizer.zero_grad()
            factor = float("inf") if number == 1 else 1.0
            scaler.scale(model(torch.randn(2, 4)).mean() * factor).backward()
            scaler.step(optimizer=optimizer)
            scaler.update()

    windows = windows_of(program)
    assert stages(windows) == ["setup 0", *train(4), "end 4"]
    assert updates(windows) == [["SGD"], [], ["SGD"], ["SGD"]]


class Failing(torch.optim.SGD):
    """Raises in every second call of `step`."""

    attempts = 0

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        self.attempts += 1
        if self.attempts % 2:
            raise RuntimeError("out of memory")
        super().step()


@pytest.mark.parametrize("by", ["step", "scaler"])
@pytest.mark.parametrize("again", ["step", "everything"])
def test_an_update_that_raises_and_is_tried_again_is_one_step(again: str, by: str) -> None:
    def program() -> None:
        model = net()
        optimizer = Failing(model.parameters(), lr=0.01)
        scaler = torch.amp.GradScaler("cpu", enabled=False)
        update = optimizer.step if by == "step" else lambda: scaler.step(optimizer)

        def gradients() -> None:
            optimizer.zero_grad()
            model(torch.randn(2, 4)).mean().backward()

        for _ in range(3):
            gradients()
            with pytest.raises(RuntimeError):
                update()
            if again == "everything":
                gradients()
            update()

    windows = windows_of(program)
    assert stages(windows) == ["setup 0", *train(3), "end 3"]
    for window in windows[1:-1]:
        assert [call.end >= 0 for call in window.calls if call.levels[-1] == STEP] == [False, True]
        assert names(window).count(BACKWARD) == (1 if again == "step" else 2)
        around = {window.by_seq[call.parent].name for call in window.calls if call.levels[-1] == BACKWARD}
        assert around == {"torch.Tensor.backward"}


def test_an_optimizer_that_calls_the_step_of_its_base_class_steps_once() -> None:
    class Inheriting(torch.optim.Adam):
        def step(self, closure: object = None) -> None:  # type: ignore[override]
            super().step()

    def program() -> None:
        model = net()
        torch.optim.Adam(model.parameters())  # from now on the steps of both classes call our hooks
        optimizer = Inheriting(model.parameters())
        for _ in range(3):
            work(model, optimizer)

    windows = windows_of(program)
    assert stages(windows) == ["setup 0", *train(3), "end 3"]
    assert updates(windows) == [["Inheriting"]] * 3
