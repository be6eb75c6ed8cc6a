"""The tracker counts the steps that a person would count, in every kind of loop in use."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

from loops import BACKWARD, FORWARD, STEP, loader, names, net, sgd, stages, train, updates, windows_of, work


def test_a_plain_loop_over_a_loader() -> None:
    def program() -> None:
        model = net()
        optimizer = sgd(model)
        for _ in range(2):
            for (x,) in loader():
                work(model, optimizer, x)

    windows = windows_of(program)
    assert stages(windows) == ["setup 0", *train(6), "end 6"]
    assert updates(windows) == [["SGD"]] * 6
    for window in windows[1:-1]:
        assert names(window).count(BACKWARD) == 1
        assert names(window).index("torch.utils.data.DataLoader.__next__") < names(window).index(BACKWARD)


def test_calls_before_an_optimizer_exists_are_set_up() -> None:
    def program() -> None:
        model = net()
        model(torch.zeros(1, 4))
        optimizer = sgd(model)
        for _ in range(3):
            work(model, optimizer)

    windows = windows_of(program)
    assert stages(windows) == ["setup 0", "setup 0", "setup 0", *train(3), "end 3"]
    assert [names(window).count(FORWARD) for window in windows if window.stage == "train"] == [4, 4, 4]


def test_an_optimizer_that_is_built_after_the_first_backward_keeps_the_step() -> None:
    def program() -> None:
        model = net()
        model(torch.randn(2, 4)).mean().backward()
        optimizer = sgd(model)
        optimizer.step()
        for _ in range(2):
            work(model, optimizer)

    windows = windows_of(program)
    assert stages(windows) == ["setup 0", *train(3), "end 3"]


def test_calls_after_an_update_stay_with_its_step() -> None:
    def program() -> None:
        model = net()
        optimizer = sgd(model)
        scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
        for _ in range(3):
            model(torch.randn(2, 4)).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()

    windows = windows_of(program)
    assert stages(windows) == ["setup 0", *train(3), "end 3"]
    for window in windows[1:-1]:
        driving = [call.levels[-1] for call in window.calls if call.kind == "lifecycle"]
        assert driving[-2:] == ["torch.optim.Optimizer.zero_grad", "torch.optim.lr_scheduler.LRScheduler.step"]
        assert len(driving) == 4


def test_gradient_accumulation_is_one_step_for_each_update() -> None:
    def program() -> None:
        model = net()
        optimizer = sgd(model)
        for number, (x,) in enumerate(loader(8), start=1):
            (model(x).mean() / 4).backward()
            if number % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()

    windows = windows_of(program)
    assert stages(windows) == ["setup 0", *train(2), "end 2"]
    assert [names(window).count(BACKWARD) for window in windows[1:-1]] == [4, 4]


def gan(critic_steps: int, rounds: int) -> Callable[[], None]:
    def program() -> None:
        generator, critic = nn.Linear(4, 4), nn.Linear(4, 1)
        of_generator, of_critic = torch.optim.Adam(generator.parameters()), torch.optim.RMSprop(critic.parameters())
        for _ in range(rounds):
            for _ in range(critic_steps):
                of_critic.zero_grad()
                (critic(generator(torch.randn(2, 4)).detach()) - critic(torch.randn(2, 4))).mean().backward()
                of_critic.step()
            of_generator.zero_grad()
            critic(generator(torch.randn(2, 4))).mean().backward()
            of_generator.step()

    return program


def test_a_gan_steps_twice_in_one_window() -> None:
    windows = windows_of(gan(critic_steps=1, rounds=4))
    assert stages(windows) == ["setup 0", *train(4), "end 4"]
    assert updates(windows) == [["RMSprop", "Adam"]] * 4


def test_several_critic_steps_are_one_window_each() -> None:
    windows = windows_of(gan(critic_steps=3, rounds=3))
    assert stages(windows) == ["setup 0", *train(9), "end 9"]
    assert updates(windows) == [["RMSprop"], ["RMSprop"], ["RMSprop", "Adam"]] * 3
    assert all(
        names(window).count(BACKWARD) == len(update)
        for window, update in zip(windows[1:-1], updates(windows), strict=True)
    )


@pytest.mark.parametrize("with_loader", [True, False])
def test_lbfgs_evaluates_its_closure_within_one_step(with_loader: bool) -> None:
    def program() -> None:
        model = net()
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
        batches: Iterator[tuple[torch.Tensor, ...]] = iter(loader(3))
        for _ in range(3):
            x = next(batches)[0] if with_loader else torch.randn(2, 4)

            def closure(x: torch.Tensor = x) -> torch.Tensor:
                optimizer.zero_grad()
                loss = model(x).square().mean()
                loss.backward()
                return loss

            optimizer.step(closure)

    windows = windows_of(program)
    assert stages(windows) == ["setup 0", *train(3), "end 3"]
    assert updates(windows) == [["LBFGS"]] * 3
    for window in windows[1:-1]:
        assert names(window).count(BACKWARD) > 1
        assert names(window).count("torch.utils.data.DataLoader.__next__") == with_loader


def test_no_data_loader_and_no_module() -> None:
    def program() -> None:
        weight = torch.zeros(4, requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            (weight - torch.ones(4)).square().sum().backward()
            optimizer.step()

    windows = windows_of(program)
    assert stages(windows) == ["setup 0", *train(3), "end 3"]
    assert [names(window).count(BACKWARD) for window in windows[1:-1]] == [1, 1, 1]


@pytest.mark.parametrize("gradients", [True, False])
def test_acting_belongs_to_the_step_that_learns_from_it(gradients: bool) -> None:
    def program() -> None:
        policy = net()
        optimizer = sgd(policy)
        for _ in range(3):
            seen = []
            for _ in range(5):
                state = torch.randn(1, 4)
                with torch.set_grad_enabled(gradients):
                    seen.append((state, policy(state)))
            returns = torch.stack([value if gradients else policy(state) for state, value in seen])
            optimizer.zero_grad()
            returns.mean().backward()
            optimizer.step()

    windows = windows_of(program)
    assert stages(windows) == ["setup 0", *train(3), "end 3"]
    assert updates(windows) == [["SGD"]] * 3
    for window in windows[2:-1]:
        outermost = [call for call in window.calls if call.levels[-1] == FORWARD and call.receiver == "Sequential"]
        assert len(outermost) == (5 if gradients else 10)


def test_a_loop_inside_a_library() -> None:
    library = types.ModuleType("some_library")
    exec(
        compile(
            "class Trainer:\n"
            "    def __init__(self, model, optimizer): self.model, self.optimizer = model, optimizer\n"
            "    def fit(self, batches):\n"
            "        for x in batches: self.training_step(x)\n"
            "    def training_step(self, x):\n"
            "        self.optimizer.zero_grad()\n"
            "        self.model(x).mean().backward()\n"
            "        self.optimizer.step()\n",
            "/usr/lib/python3/site-packages/some_library.py",
            "exec",
        ),
        vars(library),
    )

    def program() -> None:
        model = net()
        library.Trainer(model, sgd(model)).fit([torch.randn(2, 4) for _ in range(3)])

    windows = windows_of(program)
    assert stages(windows) == ["setup 0", *train(3), "end 3"]
    sites = {call.site for window in windows[1:-1] for call in window.calls if call.levels[-1] == STEP}
    assert [site.split(":")[0].rsplit("/", 1)[-1] for site in sites] == ["test_step_tracker.py"]
    assert "some_library" not in sys.modules
