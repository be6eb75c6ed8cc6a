"""Checkpoints that hold the state of an optimizer: training that goes on without it, and programs that mean it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR, StepLR
from torch.utils.data import DataLoader, TensorDataset

from trained_programs import Net, errors_of

DIAGNOSIS = "resumed-without-optimizer-state"

Parts = dict[str, Any]


def new_loader() -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.randn(24, 6), torch.arange(24) % 3), batch_size=8, shuffle=True)


def built(model: nn.Module | None = None, lr: float = 0.01) -> Parts:
    model = model or Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    return {"model": model, "optimizer": optimizer, "scheduler": StepLR(optimizer, 1, 0.9)}


def trained(parts: Parts, loader: DataLoader[Any], epochs: int = 2) -> None:
    for _ in range(epochs):
        for x, y in loader:
            parts["optimizer"].zero_grad()
            F.cross_entropy(parts["model"](x), y).backward()
            parts["optimizer"].step()
        parts["scheduler"].step()


def saved(parts: Parts, path: Path, epoch: int = 1, **further: Any) -> None:
    torch.save({**{name: part.state_dict() for name, part in parts.items()}, "epoch": epoch, **further}, path)


def restored(parts: Parts, path: Path, *names: str) -> int:
    checkpoint = torch.load(path)
    for name in names:
        parts[name].load_state_dict(checkpoint[name])
    return int(checkpoint["epoch"])


def interrupted(path: Path, *names: str, builds_again: bool = False, lr: float = 0.01) -> None:
    """Train, save, and go on with new objects that restore these parts of the file."""
    loader = new_loader()
    parts = built()
    trained(parts, loader)
    saved(parts, path)
    parts = built(lr=lr)
    restored(parts, path, *names)
    if builds_again:
        parts["optimizer"] = torch.optim.Adam(parts["model"].parameters(), lr=lr)
    trained(parts, loader)


def another_process(path: Path) -> None:
    parts = built()
    trained(parts, new_loader())
    saved(parts, path, 1)


def resumed(path: Path, *names: str, writes: str = "last-1.pt", counts_on: bool = True) -> None:
    parts = built()
    epoch = restored(parts, path, *names) + 1 if counts_on else 0 * restored(parts, path, *names)
    trained(parts, new_loader(), 1)
    saved(parts, path.parent / writes, epoch)


ALL = ("model", "optimizer", "scheduler")


@pytest.mark.parametrize(
    ("names", "builds_again", "is_wrong"),
    [
        (("model",), False, True),
        (("model", "scheduler"), False, True),
        (ALL, True, True),
        (("model", "scheduler"), True, True),
        (ALL, False, False),
        (("model",), True, False),  # an optimizer that is built after the load may be a new stage
    ],
)
def test_new_objects(tmp_path: Path, names: tuple[str, ...], builds_again: bool, is_wrong: bool) -> None:
    found = errors_of(tmp_path, lambda: interrupted(tmp_path / "last.pt", *names, builds_again=builds_again))
    assert (DIAGNOSIS in found) is is_wrong


@pytest.mark.parametrize(
    ("names", "writes", "is_wrong"),
    [
        (("model",), "last-1.pt", True),
        (("model",), "last-2.pt", True),
        (("model",), "last-2.pt.tmp", True),  # which it then renames
        (("model", "scheduler"), "none.pt", True),
        (("model",), "fine-tuned.pt", False),
        (ALL, "last-2.pt", False),
        (("model", "optimizer"), "last-2.pt", False),
    ],
)
def test_a_file_of_another_process(tmp_path: Path, names: tuple[str, ...], writes: str, is_wrong: bool) -> None:
    torch.manual_seed(0)
    another_process(tmp_path / "last-1.pt")
    found = errors_of(tmp_path, lambda: resumed(tmp_path / "last-1.pt", *names, writes=writes))
    assert (DIAGNOSIS in found) is is_wrong


def test_two_networks_of_which_one_optimizer_is_restored(tmp_path: Path) -> None:
    def adversarial(*names: str) -> None:
        loader = new_loader()
        parts = {f"{name}{number}": part for number in range(2) for name, part in built().items()}
        pairs = [{name: parts[f"{name}{number}"] for name in ALL} for number in range(2)]
        for pair in pairs:
            trained(pair, loader)
        saved(parts, path := tmp_path / "gan.pt")
        trained(pairs[0], loader)
        parts = {f"{name}{number}": part for number in range(2) for name, part in built().items()}
        restored(parts, path, *names)
        for number in range(2):
            trained({name: parts[f"{name}{number}"] for name in ALL}, loader)

    networks = ("model0", "model1", "optimizer0")
    assert DIAGNOSIS in errors_of(tmp_path / "wrong", lambda: adversarial(*networks))
    assert DIAGNOSIS not in errors_of(tmp_path / "right", lambda: adversarial(*networks, "optimizer1"))


def in_the_loop(path: Path, *names: str) -> None:
    """Save, and restore these parts of the file into the model and a new optimizer, between two epochs."""
    parts, loader = built(), new_loader()
    for epoch in range(4):
        if epoch == 2:
            saved(parts, path, epoch)
            parts = built(parts["model"])
            restored(parts, path, *names)
        trained(parts, loader, 1)


def test_an_optimizer_that_is_built_again_in_the_loop(tmp_path: Path) -> None:
    assert DIAGNOSIS in errors_of(tmp_path / "wrong", lambda: in_the_loop(tmp_path / "last.pt", "model"))
    assert DIAGNOSIS not in errors_of(tmp_path / "right", lambda: in_the_loop(tmp_path / "last.pt", *ALL))


# -- programs that mean it -------------------------------------------------------------------------------------------


def best_weights_are_evaluated(path: Path) -> None:
    parts, loader = built(), new_loader()
    trained(parts, loader)
    saved(parts, path)
    best = built()
    restored(best, path, "model")
    with torch.no_grad():
        best["model"].eval()(next(iter(loader))[0])


def rolled_back(path: Path) -> None:
    parts, loader = built(), new_loader()
    for epoch in range(3):
        trained(parts, loader, 1)
        saved(parts, path, epoch)
        restored(parts, path, "model")
    trained(parts, loader)


def second_stage(path: Path) -> None:
    interrupted(path, "model", lr=0.001)


def other_data(path: Path) -> None:
    """Self-training, tasks, clients: each round starts from the file of the one before."""
    for number in range(3):
        parts = built()
        if number:
            restored(parts, path, "model")
        trained(parts, new_loader())
        saved(parts, path, 1)


def rewound(path: Path) -> None:
    """A lottery ticket: early weights, of which some are pruned, and a new optimizer."""
    parts, loader = built(), new_loader()
    trained(parts, loader, 1)
    saved(parts, path)
    trained(parts, loader)
    mask = {name: value.abs() > value.abs().median() for name, value in parts["model"].state_dict().items()}
    parts = built()
    restored(parts, path, "model")
    for name, parameter in parts["model"].named_parameters():
        parameter.data.mul_(mask[name])
    trained(parts, loader)


def rewound_without_a_mask(path: Path) -> None:
    parts, loader = built(), new_loader()
    trained(parts, loader, 1)
    saved(parts, path)
    trained(parts, loader)
    parts = built()
    restored(parts, path, "model")
    trained(parts, loader)


def new_head(path: Path) -> None:
    parts, loader = built(), new_loader()
    trained(parts, loader)
    saved(parts, path)
    parts = built()
    restored(parts, path, "model")
    parts["model"].head.reset_parameters()
    trained(parts, loader)


def only_the_head_is_trained(path: Path) -> None:
    parts, loader = built(), new_loader()
    trained(parts, loader)
    saved(parts, path)
    model = Net()
    optimizer = torch.optim.Adam(model.head.parameters(), lr=0.01)
    parts = {"model": model, "optimizer": optimizer, "scheduler": StepLR(optimizer, 1)}
    restored(parts, path, "model")
    trained(parts, loader)


def averaged(path: Path) -> None:
    parts, loader = built(), new_loader()
    states = []
    for epoch in range(2):
        trained(parts, loader, 1)
        saved(parts, path, epoch)
        states.append(torch.load(path)["model"])
    parts = built()
    parts["model"].load_state_dict({name: (states[0][name] + states[1][name]) / 2 for name in states[0]})
    trained(parts, loader)


def exploited(path: Path) -> None:
    """Population based training: the worse worker takes the weights of the better one, and keeps its optimizer."""
    workers, loader = [built(), built()], new_loader()
    for _ in range(2):
        for worker in workers:
            trained(worker, loader, 1)
        saved(workers[0], path)
        restored(workers[1], path, "model")


def teacher_is_loaded(path: Path) -> None:
    parts, loader = built(), new_loader()
    trained(parts, loader)
    saved(parts, path)
    teacher, student = built(), built()
    restored(teacher, path, "model")
    for x, _ in loader:
        student["optimizer"].zero_grad()
        with torch.no_grad():
            target = teacher["model"].eval()(x).softmax(dim=1)
        F.cross_entropy(student["model"](x), target).backward()
        student["optimizer"].step()


def another_optimizer(path: Path) -> None:
    loader, parts = new_loader(), built()
    trained(parts, loader)
    saved(parts, path)
    parts = built()
    parts["optimizer"] = torch.optim.SGD(parts["model"].parameters(), lr=0.01, momentum=0.9)
    restored(parts, path, "model")
    trained(parts, loader)


class Around(torch.optim.Optimizer):
    """An optimizer that steps another one."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        super().__init__(inner.param_groups, dict(inner.defaults))
        self.inner, self.param_groups = inner, inner.param_groups

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.inner.step()

    def state_dict(self) -> Any:
        return self.inner.state_dict()

    def load_state_dict(self, state_dict: Any) -> None:
        self.inner.load_state_dict(state_dict)


def wrapped(path: Path) -> None:
    loader = new_loader()
    for _ in range(2):
        parts = built()
        parts["optimizer"] = Around(parts["optimizer"])
        if path.exists():
            restored(parts, path, *ALL)
        trained(parts, loader)
        saved(parts, path)


def state_does_not_fit(path: Path) -> None:
    """The program catches the error of a state that it cannot restore."""
    loader, parts = new_loader(), built()
    trained(parts, loader)
    saved(parts, path)
    model = Net()
    groups = [{"params": [*model.body.parameters()]}, {"params": [*model.head.parameters()]}]
    optimizer = torch.optim.Adam(groups, lr=0.01)
    parts = {"model": model, "optimizer": optimizer, "scheduler": StepLR(optimizer, 1, 0.9)}
    restored(parts, path, "model", "scheduler")
    with pytest.raises(ValueError, match="different number"):
        restored(parts, path, "optimizer")
    trained(parts, loader)


def adagrad(path: Path, *names: str) -> None:
    """An optimizer that makes its state before its first step."""
    loader = new_loader()
    for _ in range(2):
        parts = built()
        parts["optimizer"] = torch.optim.Adagrad(parts["model"].parameters(), lr=0.01)
        if path.exists():
            restored(parts, path, *(names or ("model", "optimizer")))
        trained(parts, loader)
        saved(parts, path)


def test_an_optimizer_that_makes_its_state_before_its_first_step(tmp_path: Path) -> None:
    assert DIAGNOSIS in errors_of(tmp_path, lambda: adagrad(tmp_path / "last.pt", "model"))


def without_momentum(path: Path) -> None:
    loader = new_loader()
    for _ in range(2):
        parts = built()
        parts["optimizer"] = torch.optim.SGD(parts["model"].parameters(), lr=0.01)
        if path.exists():
            restored(parts, path, "model")
        trained(parts, loader)
        saved(parts, path)


def state_is_set_by_hand(path: Path) -> None:
    loader, parts = new_loader(), built()
    trained(parts, loader)
    saved(parts, path)
    old = parts["optimizer"]
    parts = built()
    restored(parts, path, "model", "scheduler")
    for parameter, kept in zip(parts["model"].parameters(), old.state.values(), strict=True):
        parts["optimizer"].state[parameter] = copy.deepcopy(kept)
    trained(parts, loader)


@pytest.mark.parametrize(
    "program",
    [
        best_weights_are_evaluated,
        rolled_back,
        second_stage,
        other_data,
        rewound,
        rewound_without_a_mask,
        new_head,
        only_the_head_is_trained,
        averaged,
        exploited,
        teacher_is_loaded,
        another_optimizer,
        wrapped,
        state_does_not_fit,
        adagrad,
        without_momentum,
        state_is_set_by_hand,
    ],
)
def test_programs_that_take_only_weights_on_purpose(tmp_path: Path, program: Callable[[Path], None]) -> None:
    assert DIAGNOSIS not in errors_of(tmp_path, lambda: program(tmp_path / "last.pt"))


def test_fine_tuning_of_a_file_in_the_same_folder(tmp_path: Path) -> None:
    torch.manual_seed(0)
    another_process(tmp_path / "last-1.pt")
    assert DIAGNOSIS not in errors_of(
        tmp_path, lambda: resumed(tmp_path / "last-1.pt", "model", writes="last-1.pt", counts_on=False)
    )


# -- schedulers ------------------------------------------------------------------------------------------------------

RESTARTS = "resumed-schedule-restarts"


def goes_on(path: Path, *names: str, prepare: Callable[[Parts], None] = lambda parts: None, gamma: float = 0.9) -> None:
    """Train, save, and go on with new objects that restore these parts of the file."""
    loader, parts = new_loader(), built()
    trained(parts, loader, 3)
    saved(parts, path)
    parts = built()
    parts["scheduler"] = StepLR(parts["optimizer"], 1, gamma)
    restored(parts, path, *names)
    prepare(parts)
    trained(parts, loader, 3)


def fast_forward(parts: Parts) -> None:
    for _ in range(3):
        parts["scheduler"].step()


def set_position(parts: Parts) -> None:
    parts["scheduler"].last_epoch = 3


def build_again(parts: Parts) -> None:
    parts["scheduler"] = StepLR(parts["optimizer"], 1, 0.5)


def test_a_schedule_that_begins_again(tmp_path: Path) -> None:
    assert RESTARTS in errors_of(tmp_path, lambda: goes_on(tmp_path / "last.pt", "model", "optimizer"))


@pytest.mark.parametrize("prepare", [fast_forward, set_position, build_again])
def test_a_schedule_that_goes_on_in_another_way(tmp_path: Path, prepare: Callable[[Parts], None]) -> None:
    program = lambda: goes_on(tmp_path / "last.pt", "model", "optimizer", prepare=prepare)  # noqa: E731
    assert RESTARTS not in errors_of(tmp_path, program)


def test_schedules_that_are_restored_or_new(tmp_path: Path) -> None:
    assert RESTARTS not in errors_of(tmp_path / "all", lambda: goes_on(tmp_path / "last.pt", *ALL))
    program = lambda: goes_on(tmp_path / "new.pt", "model", "optimizer", gamma=0.5)  # noqa: E731
    assert RESTARTS not in errors_of(tmp_path / "new", program)


def warm_up(parts: Parts, last_epoch: int = -1) -> LambdaLR:
    return LambdaLR(parts["optimizer"], lambda update: min(1.0, (update + 1) / 4), last_epoch)


def goes_on_without(path: Path, begins: Callable[[Parts], object], lr: float = 0.01) -> None:
    """Train with a warm-up, save without the scheduler, and go on with new objects; `begins` makes the scheduler."""
    loader, parts = new_loader(), built()
    parts["scheduler"] = warm_up(parts)
    trained(parts, loader, 3)
    parts.pop("scheduler")
    saved(parts, path)
    parts = built(lr=lr)
    parts.pop("scheduler")
    begins(parts)
    trained(parts, loader, 3)


def test_a_warm_up_that_begins_again_though_no_file_holds_its_scheduler(tmp_path: Path) -> None:
    def built_after(parts: Parts) -> None:
        restored(parts, tmp_path / "last.pt", "model", "optimizer")
        parts["scheduler"] = warm_up(parts)

    def built_before(parts: Parts) -> None:
        parts["scheduler"] = warm_up(parts)
        restored(parts, tmp_path / "last.pt", "model", "optimizer")

    for name, begins in (("after", built_after), ("before", built_before)):
        errors = errors_of(tmp_path / name, lambda begins=begins: goes_on_without(tmp_path / "last.pt", begins))
        assert RESTARTS in errors, name


def test_schedules_that_go_on_though_no_file_holds_them(tmp_path: Path) -> None:
    def with_position(parts: Parts) -> None:
        restored(parts, tmp_path / "last.pt", "model", "optimizer")
        parts["scheduler"] = warm_up(parts, 3)

    def with_steps(parts: Parts) -> None:
        restored(parts, tmp_path / "last.pt", "model", "optimizer")
        parts["scheduler"] = warm_up(parts)
        fast_forward(parts)

    def that_multiply(parts: Parts) -> None:
        restored(parts, tmp_path / "last.pt", "model", "optimizer")
        parts["scheduler"] = StepLR(parts["optimizer"], 1, 0.5)

    def of_another_rate(parts: Parts) -> None:
        parts["scheduler"] = warm_up(parts)
        rates = [group["initial_lr"] for group in parts["optimizer"].param_groups]
        restored(parts, tmp_path / "last.pt", "model", "optimizer")
        for group, rate in zip(parts["optimizer"].param_groups, rates, strict=True):
            group["initial_lr"] = rate
        parts["scheduler"] = warm_up(parts)

    def new_optimizers(parts: Parts) -> None:
        restored(parts, tmp_path / "last.pt", "model")
        parts["scheduler"] = warm_up(parts)

    for name, begins, lr in (
        ("position", with_position, 0.01),
        ("steps", with_steps, 0.01),
        ("multiply", that_multiply, 0.01),
        ("another rate", of_another_rate, 0.03),
        ("new optimizer", new_optimizers, 0.01),
    ):
        program = lambda begins=begins, lr=lr: goes_on_without(tmp_path / "last.pt", begins, lr)  # noqa: E731
        assert RESTARTS not in errors_of(tmp_path / name, program), name
