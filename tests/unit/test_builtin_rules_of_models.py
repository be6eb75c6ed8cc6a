"""Built-in rules about models, optimizers and scalers: real trainings with an error, and such that mean it."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import traincheck
from trained_programs import Net, clipped, errors_of, loss_of, trained

NO_EFFECT = "flag-without-effect"
NOT_CAST = "autocast-not-applied"
NOT_AVERAGED = "gradients-differ-between-ranks"
NOT_SCHEDULED = "schedule-does-not-fit-run"
STILL_SCALED = "gradients-still-scaled"
NEVER_CALLED = "layer-never-called"
START_ALIKE = "layers-start-alike"
STALE_COPY = "evaluated-copy-is-stale"
STATE_LOST = "optimizer-state-lost"
IN_EVALUATION = "training-in-evaluation-mode"
"""Diagnoses."""


def rate_set(*, on: str = "attribute") -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(6):
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()
        if on == "attribute":
            optimizer.lr = 0.1 / (number + 1)  # type: ignore[attr-defined]
        else:
            optimizer.param_groups[0]["lr"] = 0.1 / (number + 1)


def rate_set_in_a_group() -> None:
    rate_set(on="group")


def with_scaler(*, unscales: str = "before clipping", steps: bool = True) -> None:
    model = Net()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu")
    for _ in range(6):
        optimizer.zero_grad()
        scaler.scale(loss_of(model)).backward()
        if unscales == "before clipping":
            scaler.unscale_(optimizer)
        if unscales:
            clipped(model)
        if steps:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()


def clipped_before_unscaling() -> None:
    with_scaler(unscales="after clipping")


def stepped_without_the_scaler() -> None:
    with_scaler(unscales="", steps=False)


def scaled_and_not_clipped() -> None:
    with_scaler(unscales="")


def under_autocast(*, calls_model: bool = True, enabled: bool = True) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        x = torch.randn(9, 6)
        with torch.autocast("cpu", torch.bfloat16, enabled=calls_model and enabled):
            scores = model(x)
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            loss = F.cross_entropy(scores, torch.arange(9) % 3)
        loss.backward()
        optimizer.step()


def only_the_loss_is_under_autocast() -> None:
    under_autocast(calls_model=False)


def autocast_is_disabled() -> None:
    under_autocast(enabled=False)


def a_teacher_is_under_autocast() -> None:
    model, teacher = Net(), Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        x = torch.randn(9, 6)
        with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
            target = teacher(x)
        F.mse_loss(model(x), target.float()).backward()
        optimizer.step()


def scheduled(*, steps_from: int = 0, passes: int = 3) -> None:
    model, data = Net(), TensorDataset(torch.randn(40, 6), torch.arange(40) % 3)
    loader = DataLoader(data, batch_size=8, shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    for number in range(passes):
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        if number >= steps_from:
            scheduler.step()


def never_scheduled() -> None:
    scheduled(steps_from=9)


def scheduled_late() -> None:
    scheduled(steps_from=2)


def one_pass_without_a_step_of_the_scheduler() -> None:
    scheduled(steps_from=9, passes=1)


def data_parallel(*, syncs_last: bool = True, by_hand: bool = False) -> None:
    """Accumulate over two micro-batches in a job of one rank."""
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        model = nn.parallel.DistributedDataParallel(Net())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for number in range(6):
            last = number % 2 == 1
            with contextlib.nullcontext() if last and syncs_last else model.no_sync():
                loss_of(model).backward()
            if last:
                for parameter in model.parameters() if by_hand else ():
                    torch.distributed.all_reduce(parameter.grad)
                optimizer.step()
                optimizer.zero_grad()
    finally:
        torch.distributed.destroy_process_group()


def never_averaged() -> None:
    data_parallel(syncs_last=False)


def averaged_by_hand() -> None:
    data_parallel(syncs_last=False, by_hand=True)


class WithNorm(Net):
    """A net that makes a layer; subclasses use it, or do not."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(6)


class UsesNorm(WithNorm):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(self.norm(x))


class UsesNormLater(WithNorm):
    """A branch that these steps do not take."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(self.norm(x) if len(x) > 100 else x)


def a_layer_is_not_called() -> None:
    trained(WithNorm())


def a_layer_is_called() -> None:
    trained(UsesNorm())


def a_layer_is_called_later() -> None:
    trained(UsesNormLater())


def a_layer_is_called_from_outside() -> None:
    model = WithNorm()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        F.cross_entropy(model(model.norm(torch.randn(9, 6))), torch.arange(9) % 3).backward()
        optimizer.step()


class Seeded(nn.Module):
    def __init__(self, *, seeds: bool = True) -> None:
        super().__init__()
        if seeds:
            torch.manual_seed(0)
        self.layer = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).relu()


def stacked(*, blocks: list[nn.Module]) -> None:
    trained(nn.Sequential(*blocks, nn.Linear(6, 3)))


def layers_set_the_seed() -> None:
    stacked(blocks=[Seeded(), Seeded()])


class SharesLayers(nn.Module):
    """Keeps the list of layers that it gets, and calls them as parts of others (TabNet)."""

    def __init__(self, shared: nn.ModuleList) -> None:
        super().__init__()
        self.shared = shared
        self.steps = nn.ModuleList(nn.Sequential(layer, nn.ReLU()) for layer in shared)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for step in self.steps:
            x = step(x)
        return x


class WithSharedLayers(Net):
    def __init__(self) -> None:
        super().__init__()
        shared = nn.ModuleList([nn.Linear(6, 6), nn.Linear(6, 6)])
        self.blocks = nn.Sequential(SharesLayers(shared), SharesLayers(shared))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(self.blocks(x))


def layers_have_a_second_name() -> None:
    trained(WithSharedLayers())


def layers_do_not_set_the_seed() -> None:
    stacked(blocks=[Seeded(seeds=False), Seeded(seeds=False)])


def layers_are_copies() -> None:
    first = Seeded()
    stacked(blocks=[first, copy.deepcopy(first), Seeded(seeds=False)])


def layers_take_their_weights_from_others() -> None:
    """A copy by hand, while the program sets its seed twice."""
    torch.manual_seed(0)
    trained(Net())
    torch.manual_seed(0)
    first, second = Seeded(seeds=False), Seeded(seeds=False)
    second.layer.weight.data.copy_(first.layer.weight.data)
    stacked(blocks=[first, second])


def layers_share_a_weight() -> None:
    """As the embedding and the output of a language model do. The program sets its seed twice."""
    layers = []
    for _ in range(2):
        torch.manual_seed(0)
        layers.append(nn.Sequential(nn.Linear(6, 6, bias=False)))
    layers[1][0].weight = layers[0][0].weight
    stacked(blocks=layers)


class Mixing(nn.Module):
    """Begins as the identity (hyper-connections)."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight


def layers_start_with_the_same_pattern() -> None:
    """The program sets its seed, and nothing draws numbers between two layers."""
    stacked(blocks=[nn.Sequential(Mixing()), nn.Sequential(Mixing())])


def layers_are_initialised_on_another_device() -> None:
    """On the meta device, as on an accelerator, no layer draws from the generator of the CPU."""
    with torch.device("meta"):
        model = nn.Sequential(Seeded(seeds=False), Seeded(seeds=False), nn.Linear(6, 3))
    model.to_empty(device="cpu")
    for parameter in model.parameters():
        nn.init.normal_(parameter, generator=torch.Generator().manual_seed(0))
    trained(model)


def evaluated(*, copies: bool = True, updates: bool = False) -> None:
    model = Net()
    other = copy.deepcopy(model) if copies else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        for _ in range(2):
            optimizer.zero_grad()
            loss_of(model).backward()
            optimizer.step()
        if updates:
            for average, parameter in zip(other.parameters(), model.parameters(), strict=True):
                average.data.lerp_(parameter.data, 0.1)
        other.eval()
        loss_of(other)
        other.train()


def an_average_is_evaluated() -> None:
    evaluated(updates=True)


def the_model_is_evaluated() -> None:
    evaluated(copies=False)


def a_copy_is_evaluated_beside_the_model() -> None:
    model = Net()
    first, optimizer = copy.deepcopy(model).eval(), torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()
        with torch.no_grad():
            loss_of(model.eval())
            loss_of(first)
        model.train()


def built_for_each_pass(*, momentum: float = 0.9, new_data: bool = False, passes: int = 1) -> None:
    model, data = Net(), TensorDataset(torch.randn(40, 6), torch.arange(40) % 3)
    for _ in range(3):
        data = TensorDataset(torch.randn(40, 6), torch.arange(40) % 3) if new_data else data
        loader = DataLoader(data, batch_size=4, shuffle=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)
        for _ in range(passes):
            for x, y in loader:
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()


def built_for_each_pass_without_momentum() -> None:
    built_for_each_pass(momentum=0.0)


def built_for_each_task() -> None:
    built_for_each_pass(new_data=True)


def built_for_each_phase() -> None:
    built_for_each_pass(passes=2)


class Normalized(Net):
    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.BatchNorm1d(8)  # type: ignore[assignment]


def normalized(*, passes_with_batches: int = 0, loads: bool = False, is_trained: bool = True) -> None:
    model = Normalized()
    if loads:
        model.drop.running_mean.fill_(0.1)
    model.drop.requires_grad_(is_trained)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(6):
        model.train()
        model.drop.train(number < passes_with_batches)
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()


def statistics_are_never_set() -> None:
    normalized()


def statistics_are_frozen_later() -> None:
    normalized(passes_with_batches=1)


def statistics_were_loaded() -> None:
    normalized(loads=True)


def a_random_network_is_frozen_with_its_normalisation() -> None:
    normalized(is_trained=False)


@pytest.mark.parametrize(
    ("program", "diagnosis"),
    [
        (rate_set, NO_EFFECT),
        (clipped_before_unscaling, STILL_SCALED),
        (stepped_without_the_scaler, STILL_SCALED),
        (only_the_loss_is_under_autocast, NOT_CAST),
        (never_averaged, NOT_AVERAGED),
        (never_scheduled, NOT_SCHEDULED),
        (a_layer_is_not_called, NEVER_CALLED),
        (layers_set_the_seed, START_ALIKE),
        (evaluated, STALE_COPY),
        (built_for_each_pass, STATE_LOST),
        (statistics_are_never_set, IN_EVALUATION),
    ],
)
def test_an_error_is_found_without_a_good_run(tmp_path: Path, program: Callable[[], None], diagnosis: str) -> None:
    assert diagnosis in errors_of(tmp_path, program)


@pytest.mark.parametrize(
    "program",
    [
        rate_set_in_a_group,
        with_scaler,
        scaled_and_not_clipped,
        under_autocast,
        scheduled,
        scheduled_late,
        data_parallel,
        averaged_by_hand,
        one_pass_without_a_step_of_the_scheduler,
        autocast_is_disabled,
        a_teacher_is_under_autocast,
        a_layer_is_called,
        a_layer_is_called_later,
        a_layer_is_called_from_outside,
        layers_have_a_second_name,
        layers_do_not_set_the_seed,
        layers_are_copies,
        layers_take_their_weights_from_others,
        layers_share_a_weight,
        layers_start_with_the_same_pattern,
        layers_are_initialised_on_another_device,
        an_average_is_evaluated,
        the_model_is_evaluated,
        a_copy_is_evaluated_beside_the_model,
        built_for_each_pass_without_momentum,
        built_for_each_task,
        built_for_each_phase,
        statistics_are_frozen_later,
        statistics_were_loaded,
        a_random_network_is_frozen_with_its_normalisation,
    ],
)
def test_what_is_meant_so_is_clean(tmp_path: Path, program: Callable[[], None]) -> None:
    assert not errors_of(tmp_path, program)


class OwnCall(Net):
    def __call__(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return self.forward(x)


class OwnCallWithHooks(Net):
    def __call__(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return super().__call__(x)


@pytest.mark.parametrize(("model", "is_unseen"), [(Net, False), (OwnCall, True), (OwnCallWithHooks, False)])
def test_the_report_says_which_model_it_cannot_see(model: type[Net], is_unseen: bool, tmp_path: Path) -> None:
    with traincheck.checked(tmp_path, packs="shipped") as run:
        trained(model())
    reason = "own calls: those of OwnCall cannot be seen: OwnCall defines __call__ itself, so torch runs no hooks"
    assert run.report is not None and (reason in run.report.not_observed) is is_unseen
    assert run.report.counts.not_observed == 0
