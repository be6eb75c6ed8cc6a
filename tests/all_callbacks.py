"""A short program that reaches every callback of TrainCheck, also where the program itself fails."""

from __future__ import annotations

import contextlib
import copy
import io
import random
import tempfile
import warnings
from collections.abc import Callable, Iterator

import numpy as np
import safetensors.torch
import torch
import torch._dynamo
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.optim import lr_scheduler
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.data import DataLoader, Dataset, TensorDataset

Results = list[object]


class Numbers(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Six samples."""

    def __init__(self) -> None:
        self.inputs, self.labels = torch.randn(6, 4), torch.randint(0, 2, (6,))

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.inputs[index], self.labels[index]


class Freezing(nn.Module):
    """Keeps its normalisation in evaluation mode."""

    def __init__(self, num_layers: int = 1) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(num_layers))
        self.register_buffer("noise", torch.randn(4))
        self.frozen = True

    def train(self, mode: bool = True) -> nn.Module:
        super().train(mode)
        if self.frozen:
            self.norm.eval()
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(x) + self.noise
        for layer in self.layers:
            x = layer(x)
        return x


def follows_itself(results: Results) -> None:
    """Trains a model whose target network is the model itself."""
    model = nn.Linear(4, 2)
    target = model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(3, 4)).square().mean().backward()
        optimizer.step()
        with torch.no_grad():
            for old, new in zip(target.parameters(), model.parameters(), strict=True):
                old.lerp_(new, 0.1)
    results += [parameter.detach().clone() for parameter in model.parameters()]


class Shifting(nn.Module):
    """Adds random numbers that are no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 2)
        self.unregistered_shift = torch.randn(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x) + self.unregistered_shift)


def clip_all(parameters: list[torch.Tensor], max_norm: float) -> float:
    """Clips by hand."""
    norm = float(torch.cat([p.grad.flatten() for p in parameters if p.grad is not None]).norm())
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad.mul_(min(1.0, max_norm / (norm + 1e-6)))
    return norm


def epochs(results: Results) -> None:
    """Training and evaluation as usual."""
    torch.manual_seed(0)
    model = nn.Sequential(Freezing(num_layers=2), nn.Dropout(0.2), nn.Linear(4, 2))
    nn.init.xavier_uniform_(model[2].weight)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = lr_scheduler.SequentialLR(
        optimizer, [lr_scheduler.StepLR(optimizer, 2), lr_scheduler.StepLR(optimizer, 3)], [4]
    )
    data = Numbers()
    for _ in range(2):
        model.train()
        for x, y in DataLoader(data, batch_size=2, shuffle=True):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = nn.functional.cross_entropy(model(x).float(), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            results.append(loss.item())
        scheduler.step()
        model.eval()
        with torch.no_grad():
            results.append(model(torch.randn(3, 4)).sum().item())
            results.append(copy.deepcopy(model)(torch.randn(3, 4)).sum().item())
    results += [value.clone() for value in model.state_dict().values()]


def workers(results: Results) -> None:
    """A loader with a worker that persists, and one that is abandoned."""
    torch.manual_seed(0)
    data = Numbers()
    loader = DataLoader(data, batch_size=3, num_workers=1, persistent_workers=True)
    results += [float(x.sum()) for _ in range(2) for x, _ in loader]
    results.append(float(next(iter(DataLoader(data, batch_size=4)))[0].sum()))


def files(results: Results) -> None:
    """Saves and loads, including into uninitialized memory."""
    torch.manual_seed(1)
    with torch.device("meta"):
        model = nn.Linear(3, 2)
    model.to_empty(device="cpu").load_state_dict(nn.Linear(3, 2).state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    with tempfile.TemporaryDirectory() as folder:
        safetensors.torch.save_file(model.state_dict(), f"{folder}/saved")
        results += list(safetensors.torch.load_file(f"{folder}/saved").values())
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    model.load_state_dict(loaded["model"])
    optimizer.load_state_dict(loaded["optimizer"])
    results += [parameter.detach().clone() for parameter in model.parameters()]


def scaled(results: Results) -> None:
    """Gradient scaling, a closure, master gradients by hand, and gradients of functions."""
    torch.manual_seed(2)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    for _ in range(2):
        model.zero_grad()
        scaler.scale(model(torch.randn(2, 3)).sum()).backward()
        scaler.unscale_(optimizer)
        results.append(clip_all(list(model.parameters()), max_norm=0.5))
        scaler.step(optimizer)
        scaler.update()
    lbfgs = torch.optim.LBFGS(model.parameters(), max_iter=2)

    def closure() -> float:
        lbfgs.zero_grad()
        loss = model(torch.ones(2, 3)).pow(2).sum()
        loss.backward()
        return loss.item()

    lbfgs.step(closure)
    x = torch.ones(2, requires_grad=True)
    results += list(torch.autograd.grad((x * x).sum(), [x]))
    results += [parameter.detach().clone() for parameter in model.parameters()]


def regions(results: Results) -> None:
    """Context managers."""
    x = torch.ones(2, 1, 2, 2)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH), torch.random.fork_rng():
        results.append(nn.functional.scaled_dot_product_attention(x, x, x).clone())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.autograd.detect_anomaly(), torch.inference_mode():
            results.append((x * 2).sum().item())
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        results.append(x.sum().item())


def ranks(results: Results) -> None:
    """Collectives of a group of one, and messages to a rank that does not answer."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        tensor = torch.ones(3)
        dist.all_reduce(tensor)
        dist.barrier()
        results.append(tensor)
        with contextlib.suppress(Exception):
            dist.all_reduce(tensor, group="no group")
        work = dist.all_reduce(tensor, async_op=True)
        while not work.is_completed():
            pass
        results += [work.is_completed() for _ in range(2)]  # so that it is asked three times at least
        work.wait()
        model = nn.parallel.DistributedDataParallel(nn.Linear(3, 2))
        with warnings.catch_warnings(), Join([model]):  # it sets filters when it ends
            model(tensor[None]).sum().backward()
    finally:
        dist.destroy_process_group()
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        sent = dist.isend(tensor, 1)
        received = dist.irecv(torch.zeros(3), 1)
        if sent is not None and received is not None:
            results.append(sent.is_completed())
            sent.wait()
            received.wait()
    finally:
        dist.destroy_process_group()


class OwnError(Exception):
    """The program's own."""


class Failing(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise OwnError


def _raises(*_: object, **__: object) -> None:
    raise OwnError


def fails() -> None:
    """A function of the program's that raises."""
    raise OwnError


class NoOrder:
    """A sampler that fails at once."""

    def __iter__(self) -> Iterator[list[int]]:
        raise OwnError


def errors(results: Results) -> None:
    """Calls that raise, each caught by the program."""
    torch.manual_seed(3)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 if step == 0 else 1 / 0)
    scaler = torch.amp.GradScaler("cpu")
    held = torch.ones(2, requires_grad=True)
    held.register_hook(_raises)

    with torch.inference_mode():
        model.weight.grad = torch.ones(1, 2)  # which nothing may be written to outside

    def region(enter: Callable[[], contextlib.AbstractContextManager[object]]) -> None:
        with enter():
            raise OwnError

    class Broken(Dataset[int]):
        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> int:
            raise OwnError

    tries: list[Callable[[], object]] = [
        fails,
        lambda: nn.Sequential(nn.Linear(2, 2), Failing(2, 2))(torch.ones(1, 2)),
        lambda: held.sum().backward(),
        lambda: torch.autograd.grad(held.sum() * torch.ones(2), held),
        lambda: optimizer.step(_raises),
        lambda: scheduler.step(),
        lambda: scaler.scale("nothing"),
        lambda: scaler.step(optimizer, closure=_raises),
        lambda: nn.utils.clip_grad_norm_(5, 1.0),
        lambda: torch.save(model, "/no such folder/file"),
        lambda: torch.load("/no such folder/file", weights_only=True),
        lambda: model.load_state_dict({"weight": torch.ones(5)}),
        lambda: optimizer.load_state_dict({"param_groups": [], "state": {}}),
        lambda: list(DataLoader(Broken())),
        lambda: torch.ones(2) + torch.ones(3),
        lambda: nn.init.eye_(torch.ones(2)),
        lambda: region(torch.no_grad),
        lambda: region(lambda: torch.autocast("cpu")),
        lambda: model.train("no flag"),  # type: ignore[arg-type]
        lambda: torch.manual_seed("no seed"),  # type: ignore[arg-type]
        lambda: optimizer.zero_grad(set_to_none=False),
        lambda: model.zero_grad(set_to_none=False),
        lambda: iter(DataLoader(Numbers(), batch_sampler=NoOrder(), num_workers=1)),
    ]
    for work in tries:
        try:
            work()
        except Exception as error:
            results.append(type(error).__name__)
        else:
            results.append("went well")


def compiles(results: Results) -> None:
    """Compiles a model, an update with its schedule, and an unknown function."""
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = lr_scheduler.StepLR(optimizer, 1)
    compiled = torch.compile(model, backend="eager")

    @torch.compile(backend="eager")
    def step_on() -> None:
        optimizer.step()
        schedule.step()

    @torch.compile(backend="eager")
    def scaled_loss(x: torch.Tensor) -> torch.Tensor:
        return compiled(x).square().mean() * 2

    for _ in range(3):
        optimizer.zero_grad()
        loss = scaled_loss(torch.randn(3, 4)) + compiled(torch.randn(3, 4)).sum()
        loss.backward()
        step_on()
        results += [loss.item(), optimizer.param_groups[0]["lr"]]
    torch._dynamo.reset()


def detaches(results: Results) -> None:
    """Cuts layers off from the loss, which an optimizer holds."""
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model[1](model[0](torch.randn(2, 3)).detach()).sum().backward()
        optimizer.step()
    results += [parameter.detach().clone() for parameter in model.parameters()]


def shifts(results: Results) -> None:
    """Trains around random numbers that are no buffer."""
    model = Shifting()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(2, 4)).square().mean().backward()
        optimizer.step()
    results += [parameter.detach().clone() for parameter in model.parameters()]


def by_hand(results: Results) -> None:
    """Updates parameters without an optimizer."""
    model = Freezing()
    for _ in range(3):
        model.zero_grad()
        model(torch.randn(2, 4)).square().mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad
    results += [parameter.detach().clone() for parameter in model.parameters()]


def many_steps(results: Results) -> None:
    """Short passes over data, many enough for steps that are only counted."""
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(10):
        for (x,) in DataLoader(TensorDataset(torch.ones(8, 2)), batch_size=2):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
    results += [parameter.detach().clone() for parameter in model.parameters()]


PARTS: tuple[Callable[[Results], None], ...] = (
    epochs,
    workers,
    files,
    scaled,
    regions,
    ranks,
    errors,
    compiles,
    by_hand,
    detaches,
    shifts,
    follows_itself,
    many_steps,
)


def run() -> Results:
    """Return the results of the program: numbers, tensors, names of errors, and its random streams afterwards."""
    random.seed(0)
    np.random.seed(0)
    results: Results = []
    for part in PARTS:
        part(results)
    results += [torch.rand(1), random.random(), np.random.rand()]
    return results


def same(first: Results, second: Results) -> bool:
    """Return whether two runs computed the same bits."""
    return len(first) == len(second) and all(map(_equal, first, second))


def _equal(first: object, second: object) -> bool:
    if isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor):
        return torch.equal(first, second)
    return type(first) is type(second) and first == second


def differing(first: Results, second: Results) -> Iterator[int]:
    """The indices at which two runs differ."""
    return (index for index, (a, b) in enumerate(zip(first, second, strict=True)) if not _equal(a, b))
