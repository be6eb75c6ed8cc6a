"""Trains with torch.compile in every way that there is, and prints for each what came out and what was compiled.

python compiled_ways.py [WAY ...]     all but the slow ones without arguments; one JSON object a line
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import io
import json
import sys
import warnings
from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

WAYS: dict[str, Callable[[], tuple[list[float], list[torch.Tensor]]]] = {}
SLOW = ("inductor", "reduce_overhead")


def way(function: Callable[[], tuple[list[float], list[torch.Tensor]]]) -> Callable[..., object]:
    WAYS[function.__name__] = function
    return function


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self, talks: bool = False, saves: bool = False) -> None:
        super().__init__()
        self.stem = nn.Linear(6, 8)
        self.batch_norm = nn.BatchNorm1d(8)
        self.blocks = nn.ModuleList(Block(8) for _ in range(2))
        self.drop = nn.Dropout(0.1)
        self.head = nn.Linear(8, 3)
        self._talks = talks
        self._saves = saves

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.batch_norm(self.stem(x))
        if self._talks:
            print("a graph ends here")
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self._saves else block(x)
        return self.head(self.drop(x))


def batches(count: int = 8, sizes: Iterable[int] = (16,)) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(7)
    rows = list(sizes)
    batches = []
    for number in range(count):
        x = torch.randn(rows[number % len(rows)], 6, generator=generator)
        batches.append((x, x[:, :3].argmax(1)))
    return batches


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.01)


def outcome(losses: list[float], model: nn.Module) -> tuple[list[float], list[torch.Tensor]]:
    return losses, [value.detach().clone() for value in model.state_dict().values()]


def train(
    model: nn.Module,
    called: Callable[[torch.Tensor], torch.Tensor] | None = None,
    *,
    loss_function: Callable[..., torch.Tensor] = F.cross_entropy,
    update: Callable[[torch.optim.Optimizer], Callable[[], object]] | None = None,
    every: int = 1,
    sizes: Iterable[int] = (16,),
    steps: int = 8,
    optimizer: torch.optim.Optimizer | None = None,
) -> tuple[list[float], list[torch.Tensor]]:
    """A plain loop: `called` is what is called for the model, `update` makes what is called for a step. Where a model
    trains again, `optimizer` is that of the first time."""
    called = model if called is None else called
    optimizer = adam(model) if optimizer is None else optimizer
    step = update(optimizer) if update else optimizer.step
    losses = []
    for number, (x, y) in enumerate(batches(steps * every, sizes), 1):
        loss = loss_function(called(x), y)
        (loss / every).backward()
        if number % every == 0:
            step()
            optimizer.zero_grad()
        losses.append(loss.item())
    model.eval()
    with torch.no_grad():
        losses.append(loss_function(called(x), y).item())
    return outcome(losses, model)


@way
def plain() -> tuple[list[float], list[torch.Tensor]]:
    return train(Net())


@way
def plain_accumulation() -> tuple[list[float], list[torch.Tensor]]:
    return train(Net(), every=2)


# -- the model ---------------------------------------------------------------------------------------------------------


@way
def whole_model() -> tuple[list[float], list[torch.Tensor]]:
    model = Net()
    return train(model, torch.compile(model, backend="eager"))


@way
def whole_model_aot() -> tuple[list[float], list[torch.Tensor]]:
    model = Net()
    return train(model, torch.compile(model, backend="aot_eager"))


@way
def in_place() -> tuple[list[float], list[torch.Tensor]]:
    model = Net()
    model.compile(backend="eager")
    return train(model)


@way
def full_graph() -> tuple[list[float], list[torch.Tensor]]:
    model = Net()
    return train(model, torch.compile(model, backend="eager", fullgraph=True))


@way
def optimizer_of_the_compiled() -> tuple[list[float], list[torch.Tensor]]:
    compiled = torch.compile(Net(), backend="eager")
    return train(compiled)  # type: ignore[arg-type]


@way
def inner_modules() -> tuple[list[float], list[torch.Tensor]]:
    model = Net()
    for index, block in enumerate(model.blocks):
        model.blocks[index] = torch.compile(block, backend="eager")  # type: ignore[assignment]
    return train(model)


@way
def inner_module_in_place() -> tuple[list[float], list[torch.Tensor]]:
    model = Net()
    model.blocks[1].compile(backend="aot_eager")
    return train(model)


@way
def layer_of_torch() -> tuple[list[float], list[torch.Tensor]]:
    model = Net()
    model.head = torch.compile(model.head, backend="eager")  # type: ignore[assignment]
    return train(model)


@way
def forward_method() -> tuple[list[float], list[torch.Tensor]]:
    model = Net()
    model.forward = torch.compile(model.forward, backend="eager")  # type: ignore[method-assign]
    return train(model)


@way
def graph_break() -> tuple[list[float], list[torch.Tensor]]:
    model = Net(talks=True)
    with contextlib.redirect_stdout(io.StringIO()):
        return train(model, torch.compile(model, backend="eager"))


@way
def checkpointed() -> tuple[list[float], list[torch.Tensor]]:
    model = Net(saves=True)
    return train(model, torch.compile(model, backend="aot_eager"))


@way
def checkpoint_around() -> tuple[list[float], list[torch.Tensor]]:
    model = Net(saves=True)
    for block in model.blocks:
        block.compile(backend="eager")
    return train(model)


@way
def varying_batches() -> tuple[list[float], list[torch.Tensor]]:
    model = Net()
    return train(model, torch.compile(model, backend="eager"), sizes=(16, 9, 12, 5, 16, 7))


@way
def dynamic() -> tuple[list[float], list[torch.Tensor]]:
    model = Net()
    return train(model, torch.compile(model, backend="aot_eager", dynamic=True), sizes=(16, 9, 12, 5))


@way
def accumulation() -> tuple[list[float], list[torch.Tensor]]:
    model = Net()
    return train(model, torch.compile(model, backend="eager"), every=2)


@way
def hooks_of_the_program() -> tuple[list[float], list[torch.Tensor]]:
    model, seen = Net(), []
    model.blocks[0].register_forward_hook(lambda module, args, result: seen.append(1))
    everywhere = nn.modules.module.register_module_forward_hook(lambda module, args, result: result * 1.0)
    try:
        losses, state = train(model, torch.compile(model, backend="eager"))
    finally:
        everywhere.remove()
    return [*losses, float(len(seen))], state


@way
def mode_of_the_program() -> tuple[list[float], list[torch.Tensor]]:
    class Nothing(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: object, types: object, args: object = (), kwargs: object = None) -> object:
            return func(*args, **(kwargs or {}))  # type: ignore[operator,misc,attr-defined]

    model = Net()
    compiled = torch.compile(model, backend="eager")
    optimizer = adam(model)
    with Nothing():
        train(model, compiled, steps=3, optimizer=optimizer)
    model.train()
    return train(model, compiled, steps=3, optimizer=optimizer)


@way
def autocast() -> tuple[list[float], list[torch.Tensor]]:
    model = Net()
    compiled = torch.compile(model, backend="aot_eager")

    def called(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return compiled(x).float()

    return train(model, called)


@way
def trained_then_evaluated() -> tuple[list[float], list[torch.Tensor]]:
    model = Net()
    compiled = torch.compile(model, backend="eager")
    optimizer = adam(model)
    losses, _ = train(model, compiled, steps=3, optimizer=optimizer)
    compiled.train()
    more, _ = train(model, compiled, steps=3, optimizer=optimizer)
    return more + losses, list(model.state_dict().values())


@way
def compiled_late() -> tuple[list[float], list[torch.Tensor]]:
    model = Net()
    optimizer = adam(model)
    losses, _ = train(model, steps=4, optimizer=optimizer)
    model.train()
    model.compile(backend="eager")
    more, state = train(model, steps=4, optimizer=optimizer)
    return losses + more, state


# -- functions ---------------------------------------------------------------------------------------------------------


@way
def loss_function() -> tuple[list[float], list[torch.Tensor]]:
    @torch.compile(backend="eager", fullgraph=True)
    def smoothed(logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits, y, label_smoothing=0.1) + 1e-3 * logits.square().mean()

    return train(Net(), loss_function=smoothed)


@way
def forward_and_loss() -> tuple[list[float], list[torch.Tensor]]:
    model = Net()
    optimizer = adam(model)

    @torch.compile(backend="aot_eager")
    def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(model(x), y)

    losses = []
    for x, y in batches():
        optimizer.zero_grad()
        loss = loss_of(x, y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return outcome(losses, model)


@way
def train_step() -> tuple[list[float], list[torch.Tensor]]:
    model = Net()
    optimizer = adam(model)

    @torch.compile(backend="eager")
    def one_step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    return outcome([one_step(x, y).item() for x, y in batches()], model)


# -- the optimizer -----------------------------------------------------------------------------------------------------


@way
def step_in_a_lambda() -> tuple[list[float], list[torch.Tensor]]:
    return train(Net(), update=lambda optimizer: torch.compile(lambda: optimizer.step(), backend="eager"))


@way
def step_method() -> tuple[list[float], list[torch.Tensor]]:
    def update(optimizer: torch.optim.Optimizer) -> Callable[[], object]:
        optimizer.step = torch.compile(optimizer.step, backend="aot_eager")  # type: ignore[method-assign]
        return lambda: optimizer.step()

    return train(Net(), update=update)


@way
def step_with_schedule() -> tuple[list[float], list[torch.Tensor]]:
    def update(optimizer: torch.optim.Optimizer) -> Callable[[], object]:
        for group in optimizer.param_groups:
            group["lr"] = torch.tensor(group["lr"])
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=5)

        @torch.compile(backend="eager", fullgraph=False)
        def both() -> None:
            optimizer.step()
            schedule.step()

        return both

    return train(Net(), update=update)


@way
def step_after_a_schedule() -> tuple[list[float], list[torch.Tensor]]:
    def update(optimizer: torch.optim.Optimizer) -> Callable[[], object]:
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        compiled = torch.compile(optimizer.step, backend="eager")

        def both() -> None:
            compiled()
            schedule.step()

        return both

    return train(Net(), update=update)


@way
def model_and_step() -> tuple[list[float], list[torch.Tensor]]:
    model = Net()
    return train(
        model,
        torch.compile(model, backend="aot_eager"),
        update=lambda optimizer: torch.compile(lambda: optimizer.step(), backend="aot_eager"),
    )


# -- what else follows a program ---------------------------------------------------------------------------------------


@way
def compiled_autograd() -> tuple[list[float], list[torch.Tensor]]:
    model = Net()
    compiled = torch.compile(model, backend="aot_eager")
    optimizer = adam(model)
    losses = []
    for x, y in batches(5):
        optimizer.zero_grad()
        loss = F.cross_entropy(compiled(x), y)
        with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
            loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return outcome(losses, model)


@way
def exported() -> tuple[list[float], list[torch.Tensor]]:
    model = Net()
    losses, state = train(model, steps=3)
    (x, _), *_ = batches()
    for strict in (False, True):
        program = torch.export.export(model, (x,), strict=strict)
        losses.append(program.module()(x).sum().item())
        losses.append(float(len(program.graph.nodes)))
    return losses, state


@way
def scripted() -> tuple[list[float], list[torch.Tensor]]:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    losses, state = train(torch.jit.script(model), steps=3)
    (x, _), *_ = batches()
    traced = torch.jit.trace(model, x)
    return [*losses, traced(x).sum().item(), torch.jit.script(model)(x).sum().item()], state


@way
def transforms() -> tuple[list[float], list[torch.Tensor]]:
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    values = {name: value.detach() for name, value in model.named_parameters()}

    def loss_of(values: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(torch.func.functional_call(model, values, (x.unsqueeze(0),)), y.unsqueeze(0))

    losses = []
    gradients_per_sample = torch.func.vmap(torch.func.grad_and_value(loss_of), in_dims=(None, 0, 0))
    for x, y in batches(4):
        gradients, loss = gradients_per_sample(values, x, y)
        values = {name: value - 0.1 * gradients[name].mean(0) for name, value in values.items()}
        losses.append(loss.mean().item())
    (x, y), *_ = batches()
    jacobian = torch.func.jacrev(lambda x: model(x))(x[0])
    hessian = torch.func.hessian(lambda x: model(x).square().sum())(x[0])
    pushed = torch.func.jvp(lambda x: model(x), (x,), (torch.ones_like(x),))[1]
    losses += [jacobian.sum().item(), hessian.sum().item(), pushed.sum().item()]
    losses.append(torch.compile(gradients_per_sample, backend="eager")(values, x, y)[1].sum().item())
    return losses, list(values.values())


@way
def force_eager() -> tuple[list[float], list[torch.Tensor]]:
    model = Net()
    compiled = torch.compile(model, backend="eager")
    optimizer = adam(model)
    with torch.compiler.set_stance("force_eager"):
        losses, _ = train(model, compiled, steps=3, optimizer=optimizer)
    model.train()
    more, state = train(model, compiled, steps=3, optimizer=optimizer)
    return losses + more, state


@way
def copied() -> tuple[list[float], list[torch.Tensor]]:
    model = torch.compile(Net(), backend="eager")
    model(batches()[0][0])
    return train(copy.deepcopy(model), steps=3)  # type: ignore[type-var]


# -- with the compiler that is slow ------------------------------------------------------------------------------------


@way
def inductor() -> tuple[list[float], list[torch.Tensor]]:
    model = Net()
    return train(model, torch.compile(model), update=lambda o: torch.compile(lambda: o.step()))


@way
def reduce_overhead() -> tuple[list[float], list[torch.Tensor]]:
    model = Net()
    return train(model, torch.compile(model, mode="reduce-overhead"))


def result_of(name: str) -> dict[str, object]:
    """The result of a program, and the compilations that it caused."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    torch._dynamo.convert_frame.FRAME_COUNTER = 0
    torch._dynamo.convert_frame.FRAME_COMPILE_COUNTER.clear()
    torch.manual_seed(3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        losses, state = WAYS[name]()
    digest = hashlib.sha256()
    for value in state:
        digest.update(value.detach().numpy().tobytes())
    counters = torch._dynamo.utils.counters
    return {
        "way": name,
        "losses": losses,
        "weights": digest.hexdigest()[:16],
        "random": torch.rand(1).item(),
        "frames": dict(counters["frames"]),
        "compiled": sum(torch._dynamo.convert_frame.FRAME_COMPILE_COUNTER.values()),
        "stats": dict(counters["stats"]),
        "breaks": sum(counters["graph_break"].values()),
        "warnings": sorted({str(warning.message)[:90] for warning in caught}),
    }


def main() -> None:
    for name in sys.argv[1:] or [name for name in WAYS if name not in SLOW]:
        print(json.dumps(result_of(name)), flush=True)


if __name__ == "__main__":
    main()
