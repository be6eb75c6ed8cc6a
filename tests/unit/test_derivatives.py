"""Tests the experiment `derivative` in whole trainings: right gradients agree, wrong ones are located, and weights are
those of a training without TrainCheck."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import traincheck
from traincheck.trace.folder import RunFolder
from traincheck.vocab.facts import value_of
from traincheck.vocab.verification import AGREES, DERIVATIVE, DISAGREES, UNDECIDED

STEPS = 5

Program = Callable[[], tuple[Iterable[nn.Module], Callable[[int], None]]]
"""Builds models, and returns them with a function that makes a step."""


class Verdicts(NamedTuple):
    """The verdicts by step, with the subjects; `first` and `found` of all that disagree or are undecided."""

    verdicts: set[str]
    subjects: set[str]
    first: set[str]
    found: set[str]


def trained(program: Program) -> list[torch.Tensor]:
    torch.manual_seed(0)
    models, step = program()
    for number in range(STEPS):
        step(number)
    tensors = [tensor.detach().clone() for model in models for tensor in (*model.parameters(), *model.buffers())]
    return [*tensors, torch.get_rng_state()]


def verified(folder: Path, program: Program) -> Verdicts:
    """Train plainly and with every step verified: both have to end with the same bits."""
    plain = trained(program)
    gc.collect()
    gc.freeze()  # TrainCheck looks for existing modules: those of other tests would take their names
    with traincheck.checked(folder / "run", packs="none", verify_every=1, record="all", budget="1/1"):
        observed = trained(program)
    assert all(map(torch.equal, plain, observed))
    assert not torch.utils._python_dispatch._get_current_dispatch_mode_stack()
    readings = [
        reading
        for _, windows in RunFolder.open(folder / "run").windows()
        for window in windows
        for reading in window.readings
        if reading.attribute == DERIVATIVE.name
    ]
    facts = [
        {str(value_of(reading.context, fact) or "") for reading in readings if reading.value != AGREES}
        for fact in ("first", "found")
    ]
    return Verdicts(
        {str(reading.value) for reading in readings}, {reading.variable for reading in readings}, facts[0], facts[1]
    )


class Functional(nn.Module):
    """A model that calls a function of it and its input."""

    def __init__(self, compute: Callable[[Any, torch.Tensor], torch.Tensor], **parts: Any) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self.compute = compute

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.compute(self, x)


def regression(build: Callable[[], nn.Module], x: Callable[[], torch.Tensor] | None = None, **options: Any) -> Program:
    """A training on random data with a squared loss."""

    def program() -> tuple[Iterable[nn.Module], Callable[[int], None]]:
        model = build()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, **options)

        def step(number: int) -> None:
            out = model(torch.randn(16, 6) if x is None else x())
            optimizer.zero_grad()
            (out - 1).square().mean().backward()
            optimizer.step()

        return [model], step

    return program


def tokens() -> torch.Tensor:
    return torch.randint(0, 12, (4, 7))


def transformer() -> nn.Module:
    def compute(model: Any, x: torch.Tensor) -> torch.Tensor:
        hidden = model.layer(model.embedding(x), src_mask=nn.Transformer.generate_square_subsequent_mask(7))
        return hidden @ model.embedding.weight.t()  # tied

    return Functional(
        compute,
        embedding=nn.Embedding(12, 8, padding_idx=0),
        layer=nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
    )


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Dropout(0.2), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(16, 2),
    )  # fmt: skip


def in_blocks(reentrant: bool, keep: bool = True) -> Callable[[], nn.Module]:
    def compute(model: Any, x: torch.Tensor) -> torch.Tensor:
        hidden = model.stem(x)
        return model.head(checkpoint(model.block, hidden, use_reentrant=reentrant, preserve_rng_state=keep))

    return lambda: Functional(
        compute,
        stem=nn.Linear(6, 6),
        block=nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Dropout(0.4)),
        head=nn.Linear(6, 1),
    )


class Round(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return (x * 4).round() / 4

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return -0.5 * grad


class Multiply(torch.autograd.Function):
    """Multiplies each row by a vector; `wrong` is the error in its backward."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, vector: torch.Tensor, wrong: str) -> torch.Tensor:
        ctx.save_for_backward(rows, vector)
        ctx.wrong = wrong
        return rows * vector

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        rows, vector = ctx.saved_tensors
        first, second = grad * vector, grad * rows
        if ctx.wrong == "factor":
            first = first / 2
        if ctx.wrong == "cut":
            return first, None, None
        return first, second.mean(0) if ctx.wrong == "mean" else second.sum(0), None


def multiplied(wrong: str) -> Callable[[], nn.Module]:
    def compute(model: Any, x: torch.Tensor) -> torch.Tensor:
        return model.head(Multiply.apply(model.stem(x), model.scale, wrong).tanh())

    return lambda: Functional(
        compute, stem=nn.Linear(6, 6), scale=nn.Parameter(torch.rand(6) + 0.5), head=nn.Linear(6, 1)
    )


class AtTimes(torch.autograd.Function):
    """Adds multiples of a vector at three times, which require gradients in the forward, as those of a solver may."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, vector: torch.Tensor) -> torch.Tensor:
        for step in range(1, 4):
            time = torch.tensor(step / 3)
            with torch.enable_grad():
                time.requires_grad_()
                rows = rows + (vector * time.square()).detach()
        return rows

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad, grad.sum(0) * (1 + 4 + 9) / 9


def at_times() -> nn.Module:
    def compute(model: Any, x: torch.Tensor) -> torch.Tensor:
        return model.head(AtTimes.apply(model.stem(x), model.scale).tanh())

    return Functional(compute, stem=nn.Linear(6, 6), scale=nn.Parameter(torch.rand(6) + 0.5), head=nn.Linear(6, 1))


class Flow(torch.autograd.Function):
    """Four steps of Euler's method, and the adjoint equation in the backward, with a factor in one gradient."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, matrix: torch.Tensor, factor: float) -> torch.Tensor:
        for _ in range(4):
            rows = rows + 0.1 * (rows @ matrix).tanh()
        ctx.save_for_backward(rows, matrix)
        ctx.factor = factor
        return rows

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        rows, matrix = ctx.saved_tensors
        total = torch.zeros_like(matrix)
        for _ in range(4):
            with torch.enable_grad():
                state, weight = rows.detach().requires_grad_(), matrix.detach().requires_grad_()
                velocity = (state @ weight).tanh()
                by_state, by_weight = torch.autograd.grad(velocity, (state, weight), grad)
            rows, grad, total = rows - 0.1 * velocity.detach(), grad + 0.1 * by_state, total + 0.1 * by_weight
        return grad, total * ctx.factor, None


def flow(factor: float) -> Callable[[], nn.Module]:
    def compute(model: Any, x: torch.Tensor) -> torch.Tensor:
        return model.head(Flow.apply(model.stem(x), model.matrix, factor))

    return lambda: Functional(
        compute, stem=nn.Linear(6, 6), matrix=nn.Parameter(torch.randn(6, 6)), head=nn.Linear(6, 1)
    )


class Stages(torch.autograd.Function):
    """Multiplies twice by a vector, through a buffer that it fills stage by stage, as solvers do; then by its mean."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, vector: torch.Tensor, share: float) -> torch.Tensor:
        ctx.save_for_backward(rows, vector)
        ctx.share = share
        stages = torch.empty(*rows.shape, 2)
        stages.data[..., 0] = rows * vector
        stages.data[..., 1] = stages[..., 0] * vector
        return (stages * vector.mean()).sum(-1)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        rows, vector = ctx.saved_tensors
        mean, total = vector.mean(), (grad * (rows * vector + rows * vector**2)).sum() / len(vector)
        of_vector = (grad * mean * (rows + 2 * rows * vector)).sum(0)
        return grad * mean * (vector + vector**2), of_vector + ctx.share * total, None


def staged(share: float) -> Callable[[], nn.Module]:
    def compute(model: Any, x: torch.Tensor) -> torch.Tensor:
        return model.head(Stages.apply(model.stem(x), model.scale, share).tanh())

    return lambda: Functional(
        compute, stem=nn.Linear(6, 6), scale=nn.Parameter(torch.rand(6) + 0.5), head=nn.Linear(6, 1)
    )


def rounded(function: type[torch.autograd.Function]) -> nn.Module:
    return Functional(
        lambda model, x: model.head(function.apply(model.stem(x))), stem=nn.Linear(6, 6), head=nn.Linear(6, 1)
    )


def straight_through() -> nn.Module:
    def compute(model: Any, x: torch.Tensor) -> torch.Tensor:
        hidden = model.stem(x)
        return model.head(hidden + (hidden.round() - hidden).detach())

    return Functional(compute, stem=nn.Linear(6, 6), head=nn.Linear(6, 1))


def functorch() -> nn.Module:
    def compute(model: Any, x: torch.Tensor) -> torch.Tensor:
        return model.head(torch.func.vmap(model.stem)(x))

    return Functional(compute, stem=nn.Linear(6, 6), head=nn.Linear(6, 1))


def packed() -> nn.Module:
    return Functional(
        lambda model, x: model.head(model.lstm(x[None])[0]), lstm=nn.LSTM(6, 5, batch_first=True), head=nn.Linear(5, 1)
    )


@pytest.mark.parametrize(
    "program",
    [
        regression(lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1)), momentum=0.9),
        regression(cnn, lambda: torch.randn(4, 1, 6, 6)),
        regression(transformer, tokens),
        regression(packed),
        regression(in_blocks(reentrant=True)),
        regression(in_blocks(reentrant=False)),
        regression(straight_through),
        regression(functorch),
        regression(multiplied("")),
        regression(staged(1.0)),
        regression(at_times),
    ],
    ids=[
        "mlp", "cnn", "transformer", "lstm", "reentrant", "checkpointed", "straight-through", "vmap", "function",
        "buffer", "times",
    ],
)  # fmt: skip
def test_right_gradients_agree(tmp_path: Path, program: Program) -> None:
    verdicts = verified(tmp_path, program)
    assert verdicts.verdicts == {AGREES}, verdicts


def mixed_precision(dtype: torch.dtype) -> Program:
    def program() -> tuple[Iterable[nn.Module], Callable[[int], None]]:
        model = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 3))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        scaler = torch.amp.GradScaler("cpu", enabled=dtype == torch.float16)

        def step(number: int) -> None:
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype):
                loss = F.cross_entropy(model(torch.randn(16, 6)), torch.randint(0, 3, (16,)))
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            scaler.step(optimizer)
            scaler.update()

        return [model], step

    return program


def accumulated() -> tuple[Iterable[nn.Module], Callable[[int], None]]:
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters())

    def step(number: int) -> None:
        for _ in range(3):
            (model(torch.randn(4, 6)).square().mean() / 3).backward()
        optimizer.step()
        optimizer.zero_grad()

    return [model], step


def adversarial() -> tuple[Iterable[nn.Module], Callable[[int], None]]:
    generator = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 6))
    critic = nn.Sequential(nn.Linear(6, 8), nn.LeakyReLU(), nn.Linear(8, 1))
    optimizers = [torch.optim.Adam(model.parameters()) for model in (generator, critic)]

    def step(number: int) -> None:
        fake, real = generator(torch.randn(8, 3)), torch.randn(8, 6)
        mixed = (fake.detach() * 0.3 + real * 0.7).requires_grad_()
        (slope,) = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)
        optimizers[1].zero_grad()
        penalty = (slope.norm(2, 1) - 1).square().mean()
        (critic(fake.detach()).mean() - critic(real).mean() + penalty).backward()
        optimizers[1].step()
        optimizers[0].zero_grad()
        (-critic(fake).mean()).backward()
        optimizers[0].step()

    return [generator, critic], step


def two_losses() -> tuple[Iterable[nn.Module], Callable[[int], None]]:
    trunk, heads = nn.Linear(6, 6), nn.ModuleList([nn.Linear(6, 1), nn.Linear(6, 1)])
    optimizer = torch.optim.SGD([*trunk.parameters(), *heads.parameters()], lr=0.05)

    def step(number: int) -> None:
        optimizer.zero_grad()
        hidden = trunk(torch.randn(8, 6)).tanh()
        heads[0](hidden).square().mean().backward(retain_graph=True)
        (heads[1](hidden) - 1).square().mean().backward()
        optimizer.step()

    return [trunk, heads], step


def with_a_target() -> tuple[Iterable[nn.Module], Callable[[int], None]]:
    online, target = nn.Linear(6, 4), nn.Linear(6, 4)
    optimizer = torch.optim.SGD(online.parameters(), lr=0.05)

    def step(number: int) -> None:
        x = torch.randn(8, 6)
        with torch.no_grad():
            wanted = target(x)
        loss = -F.cosine_similarity(online(x), wanted).mean() + (online(x) - target(x).detach()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(target.parameters(), online.parameters(), strict=True):
                slow.lerp_(fast, 0.1)

    return [online, target], step


def second_order() -> tuple[Iterable[nn.Module], Callable[[int], None]]:
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    def step(number: int) -> None:
        loss = model(torch.randn(8, 6)).square().mean()
        slopes = torch.autograd.grad(loss, [*model.parameters()], create_graph=True)
        optimizer.zero_grad()
        (loss + sum(slope.square().sum() for slope in slopes)).backward()
        optimizer.step()

    return [model], step


def graph_of_a_backward() -> tuple[Iterable[nn.Module], Callable[[int], None]]:
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    def step(number: int) -> None:
        optimizer.zero_grad()
        model(torch.randn(8, 6)).square().mean().backward(create_graph=True)
        sum(parameter.grad.square().sum() for parameter in model.parameters()).backward()
        optimizer.step()
        for parameter in model.parameters():
            parameter.grad = None

    return [model], step


def with_a_closure() -> tuple[Iterable[nn.Module], Callable[[int], None]]:
    model = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 1))
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

    def step(number: int) -> None:
        x = torch.randn(8, 6)

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = (model(x) - x[:, :1]).square().mean()
            loss.backward()
            return loss

        optimizer.step(closure)

    return [model], step


def frozen_in_turns() -> tuple[Iterable[nn.Module], Callable[[int], None]]:
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    def step(number: int) -> None:
        loss = model(torch.randn(8, 6)).square().mean()
        model[0].weight.requires_grad_(False)
        optimizer.zero_grad()
        loss.backward()
        model[0].weight.requires_grad_(True)
        optimizer.step()

    return [model], step


def functional_gradients() -> tuple[Iterable[nn.Module], Callable[[int], None]]:
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 1))

    def step(number: int) -> None:
        x = torch.randn(8, 6)
        parameters = dict(model.named_parameters())

        def loss(values: dict[str, torch.Tensor]) -> torch.Tensor:
            return torch.func.functional_call(model, values, (x,)).square().mean()

        slopes = torch.func.grad(loss)(parameters)
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter -= 0.05 * slopes[name]

    return [model], step


@pytest.mark.parametrize(
    ("program", "subjects"),
    [
        (mixed_precision(torch.bfloat16), {"Sequential"}),
        (mixed_precision(torch.float16), {"Sequential"}),
        (accumulated, {"Sequential"}),
        (adversarial, {"Sequential", "Sequential#2"}),
        (two_losses, {"Linear"}),
        (with_a_target, {"Linear"}),
        (second_order, {"Sequential"}),
        (graph_of_a_backward, {"Sequential"}),
        (with_a_closure, {"Sequential"}),
        (frozen_in_turns, {"Sequential"}),
    ],
    ids=[
        "bfloat16",
        "float16",
        "accumulation",
        "gan",
        "two-losses",
        "target",
        "second-order",
        "graph",
        "closure",
        "frozen",
    ],
)
def test_right_loops_agree(tmp_path: Path, program: Program, subjects: set[str]) -> None:
    verdicts = verified(tmp_path, program)
    assert (verdicts.verdicts, verdicts.subjects) == ({AGREES}, subjects), verdicts


def test_gradients_of_torch_func_are_not_verified(tmp_path: Path) -> None:
    assert not verified(tmp_path, functional_gradients).verdicts


@pytest.mark.parametrize(
    ("wrong", "found"),
    [
        ("mean", "the gradient of Functional.scale is 0.0625 times the derivative"),
        ("factor", "times the derivative"),
        ("cut", "Functional.scale gets no gradient, but the loss depends on it"),
    ],
)
def test_a_wrong_custom_function_is_named(tmp_path: Path, wrong: str, found: str) -> None:
    verdicts = verified(tmp_path, regression(multiplied(wrong)))
    assert verdicts.verdicts == {DISAGREES}
    assert all(first.startswith("function Multiply (") for first in verdicts.first)
    assert any(found in text for text in verdicts.found), verdicts.found


def test_a_wrong_function_with_a_buffer_is_named(tmp_path: Path) -> None:
    result = verified(tmp_path, regression(staged(0.0)))
    assert DISAGREES in result.verdicts and "Stages" in " ".join(result.first), result


def overwritten(model: Any, x: torch.Tensor) -> torch.Tensor:
    hidden = model.stem(x)
    square = hidden * hidden
    hidden.data.mul_(2)
    return model.head(square)


@pytest.mark.parametrize(
    ("build", "first"),
    [
        (lambda: nn.Sequential(Functional(overwritten, stem=nn.Linear(6, 6), head=nn.Linear(6, 6))), "Sequential.0"),
        (in_blocks(reentrant=False, keep=False), "Functional.block.2"),
    ],
    ids=["overwritten", "other-dropout"],
)
def test_a_wrong_gradient_is_located(tmp_path: Path, build: Callable[[], nn.Module], first: str) -> None:
    verdicts = verified(tmp_path, regression(build))
    assert (verdicts.verdicts, {name[: len(first)] for name in verdicts.first}) == ({DISAGREES}, {first}), verdicts


def test_other_dropout_under_reentrant_checkpointing_disagrees(tmp_path: Path) -> None:
    verdicts = verified(tmp_path, regression(in_blocks(reentrant=True, keep=False)))
    assert verdicts.verdicts == {DISAGREES}, verdicts


@pytest.mark.parametrize("function", [Round, Reverse])
def test_a_chosen_derivative_is_undecided(tmp_path: Path, function: type[torch.autograd.Function]) -> None:
    verdicts = verified(tmp_path, regression(lambda: rounded(function)))
    assert verdicts.verdicts == {UNDECIDED}
    assert verdicts.found == {f"the backward of {function.__name__} may replace a derivative on purpose"}


@pytest.mark.parametrize(("factor", "verdict"), [(1.0, UNDECIDED), (3.0, DISAGREES)])
def test_an_adjoint_may_approximate(tmp_path: Path, factor: float, verdict: str) -> None:
    verdicts = verified(tmp_path, regression(flow(factor)))
    assert verdicts.verdicts == {verdict}, verdicts
    if verdict == UNDECIDED:
        assert verdicts.found == {"the backward of Flow differentiates on its own, and may approximate"}


def test_gradients_that_pass_hooks_of_the_program_are_undecided(tmp_path: Path) -> None:
    def compute(model: Any, x: torch.Tensor) -> torch.Tensor:
        hidden = model.stem(x)
        hidden.register_hook(lambda grad: grad / 2)
        return model.head(hidden)

    verdicts = verified(tmp_path, regression(lambda: Functional(compute, stem=nn.Linear(6, 6), head=nn.Linear(6, 1))))
    assert verdicts.verdicts == {UNDECIDED}
    assert verdicts.found == {"its gradients pass hooks of the program"}


def test_no_grad_under_reentrant_checkpointing_is_undecided(tmp_path: Path) -> None:
    def block(model: Any, hidden: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            scale = model.inner(hidden).square()
        return model.inner(hidden) * scale

    def compute(model: Any, x: torch.Tensor) -> torch.Tensor:
        return model.head(checkpoint(block, model, model.stem(x), use_reentrant=True))

    verdicts = verified(
        tmp_path,
        regression(lambda: Functional(compute, stem=nn.Linear(6, 6), inner=nn.Linear(6, 6), head=nn.Linear(6, 1))),
    )
    assert verdicts.found == {"it uses no_grad under reentrant checkpointing"}


def test_compiled_models_are_undecided(tmp_path: Path) -> None:
    def program() -> tuple[Iterable[nn.Module], Callable[[int], None]]:
        model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 1))
        compiled = torch.compile(model, backend="eager")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

        def step(number: int) -> None:
            optimizer.zero_grad()
            compiled(torch.randn(8, 6)).square().mean().backward()
            optimizer.step()

        return [model], step

    verdicts = verified(tmp_path, program)
    assert verdicts.found == {"it is compiled"}
