"""Steps and stages: the counter equals what a person would say, for every kind of loop in use."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator

import pytest
import torch
from observing import observing
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from traincheck.vocab.events import Window

STEP = "torch.optim.Optimizer.step"
BACKWARD = "torch.autograd.backward"
FORWARD = "torch.nn.Module.forward"


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.1), nn.Linear(4, 1))


def loader(batches: int = 3) -> DataLoader[tuple[torch.Tensor, ...]]:
    return DataLoader(TensorDataset(torch.randn(batches * 2, 4)), batch_size=2)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.01)


def work(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor | None = None) -> None:
    """One plain training step."""
    optimizer.zero_grad()
    model(torch.randn(2, 4) if x is None else x).square().mean().backward()
    optimizer.step()


def told(program: Callable[[], object]) -> list[Window]:
    """The windows of a program."""
    with observing() as seen:
        program()
    assert seen.faults == []
    assert [window.index for window in seen.windows] == list(range(len(seen.windows)))
    return seen.windows


def stages(windows: list[Window]) -> list[str]:
    return [f"{window.stage} {window.step}" for window in windows]


def names(window: Window) -> list[str]:
    """The most general names of the calls, in order."""
    return [call.levels[-1] for call in window.calls]


def updates(windows: list[Window]) -> list[list[str]]:
    """Which optimizers stepped in each training window."""
    return [
        [call.receiver for call in window.calls if call.levels[-1] == STEP]
        for window in windows
        if window.stage == "train"
    ]


def train(steps: int) -> list[str]:
    return [f"train {step}" for step in range(1, steps + 1)]


def test_a_plain_loop_over_a_loader() -> None:
    def program() -> None:
        model = net()
        optimizer = sgd(model)
        for _ in range(2):
            for (x,) in loader():
                work(model, optimizer, x)

    windows = told(program)
    assert stages(windows) == ["setup 0", *train(6), "end 6"]
    assert updates(windows) == [["SGD"]] * 6
    for window in windows[1:-1]:
        assert names(window).count(BACKWARD) == 1
        assert names(window).index("torch.utils.data.DataLoader.__next__") < names(window).index(BACKWARD)


def test_what_follows_an_update_stays_with_its_step() -> None:
    def program() -> None:
        model = net()
        optimizer = sgd(model)
        scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
        for _ in range(3):
            model(torch.randn(2, 4)).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()

    windows = told(program)
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

    windows = told(program)
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
    windows = told(gan(critic_steps=1, rounds=4))
    assert stages(windows) == ["setup 0", *train(4), "end 4"]
    assert updates(windows) == [["RMSprop", "Adam"]] * 4


def test_several_critic_steps_are_one_window_each() -> None:
    windows = told(gan(critic_steps=3, rounds=3))
    assert stages(windows) == ["setup 0", *train(9), "end 9"]
    assert updates(windows) == [["RMSprop"], ["RMSprop"], ["RMSprop", "Adam"]] * 3
    assert all(names(window).count(BACKWARD) == len(update) for window, update in zip(windows[1:], updates(windows)))


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

    windows = told(program)
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

    windows = told(program)
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

    windows = told(program)
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

    windows = told(program)
    assert stages(windows) == ["setup 0", *train(3), "end 3"]
    sites = {call.site for window in windows[1:-1] for call in window.calls if call.levels[-1] == STEP}
    assert [site.split(":")[0].rsplit("/", 1)[-1] for site in sites] == ["test_steps.py"]
    assert "some_library" not in sys.modules


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

    windows = told(program)
    assert stages(windows) == ["setup 0", "train 1", "train 2", "eval 2", "train 3", "train 4", "eval 4"]
    for window in windows:
        modes = {dict(call.context)["training"] for call in window.calls if call.levels[-1] == FORWARD}
        assert modes == {"train": {True}, "eval": {False}, "setup": set()}[window.stage]


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

    assert stages(told(program)) == ["setup 0", "eval 0", "train 1", "train 2", "end 2"]


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

    windows = told(program)
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

    assert stages(told(program)) == ["setup 0", *train(3), "end 3"]


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

    windows = told(program)
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
            scaler.step(optimizer)
            scaler.update()

    windows = told(program)
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

    windows = told(program)
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

    windows = told(program)
    assert stages(windows) == ["setup 0", *train(3), "end 3"]
    assert updates(windows) == [["Inheriting"]] * 3
