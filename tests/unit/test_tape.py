"""Tests that a tape computes the function that autograd differentiates, and does not touch the program."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack
from torch.utils.checkpoint import checkpoint

from traincheck.sources.verification.derivatives.derivative_check import Objective, difference
from traincheck.sources.verification.tape.tape import CannotExecute, Computation
from traincheck.sources.verification.tape.tape_operations import fused_attention
from traincheck.sources.verification.tape.tape_recording import TapeRecording

Loss = Callable[[], torch.Tensor]


def recorded(loss: Loss, seed: int = 0) -> tuple[TapeRecording, torch.Tensor]:
    """Record the computation of a loss."""
    torch.manual_seed(seed)
    recording = TapeRecording(lambda: "train.py:1")
    recording.turn_on()
    try:
        value = loss()
    finally:
        recording.turn_off()
    assert not _get_current_dispatch_mode_stack()
    return recording, value


def computed(loss: Loss) -> tuple[Computation, torch.Tensor]:
    recording, value = recorded(loss)
    assert not recording.failed
    return recording.tape.computation([recording.source_of(value)]), value


def derivative_error(computation: Computation) -> float:
    """The distance of the gradients in `.grad` to the derivatives of the tape in double precision."""
    shifts = [(leaf, torch.zeros_like(leaf, dtype=torch.float64).requires_grad_()) for leaf in computation.leaves]
    value = computation.execute((), torch.float64, shifts=shifts, differentiable=True).roots[0]
    derivatives = torch.autograd.grad(value, [shift for _, shift in shifts], allow_unused=True)
    error = size = 0.0
    for (leaf, shift), derivative in zip(shifts, derivatives, strict=True):
        exact = torch.zeros_like(shift) if derivative is None else derivative
        grad = torch.zeros_like(shift) if leaf.grad is None else leaf.grad.to_dense().double()
        error += float((grad - exact).square().sum())
        size += float(exact.square().sum())
    return float((error / size) ** 0.5)


def check(loss: Loss, parameters: Sequence[torch.Tensor], *, most: float = 1e-5, rounding: float = 0.0) -> Computation:
    """The tape gives the same values, and the gradients are its derivatives, which finite differences confirm.

    Values have the same bits where `rounding`, a relative error, is zero.
    """
    for parameter in parameters:
        parameter.grad = None
    computation, value = computed(loss)
    value.backward()
    assert torch.allclose(computation.execute().roots[0], value.detach(), rtol=rounding, atol=0)
    own = {id(leaf) for leaf in computation.leaves}
    assert all(id(parameter) in own for parameter in parameters if parameter.grad is not None)
    assert derivative_error(computation) < most
    gradients = {id(leaf): leaf.grad for leaf in computation.leaves}
    assert difference(Objective(computation, [None]), [value.detach()], gradients) is None
    return computation


torch.manual_seed(0)
X = torch.randn(8, 5)
TOKENS = torch.randint(0, 10, (3, 6))
FIRST: nn.Linear
LAST: nn.Linear
LINEAR: tuple[nn.Parameter, ...]


@pytest.fixture(autouse=True)
def layers() -> Iterator[None]:
    """Layers that are gone after a test of this file, because other tests observe all models of the process."""
    global FIRST, LAST, LINEAR
    torch.manual_seed(0)
    FIRST, LAST = nn.Linear(5, 5), nn.Linear(5, 1)
    LINEAR = (*FIRST.parameters(), *LAST.parameters())
    yield
    del FIRST, LAST, LINEAR


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(a, b)
        out = torch.zeros_like(a)
        out += a.detach() * b
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        a, b = ctx.saved_tensors
        return grad * b, (grad * a).sum(0)


class InPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(a)
        return a.mul_(3)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * 3


class WithInnerGraph(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            inner = a.detach().requires_grad_()
            (slope,) = torch.autograd.grad(inner.sin().sum(), inner)
        ctx.save_for_backward(a)
        return slope

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return -grad * ctx.saved_tensors[0].sin()


def in_place_and_views() -> torch.Tensor:
    hidden = FIRST(X) * 1
    hidden[:, 0] = 0
    filled = torch.zeros(8, 5)
    filled[:, 1] = hidden[:, 1]
    filled[:, 2:4] += hidden[:, 2:4]
    flat = torch.zeros(10)
    flat.index_put_((torch.tensor([1, 2]),), hidden[0, :2])
    hidden.view(-1)[3:5].add_(hidden[1, 0])
    copied = torch.zeros(3)
    copied.copy_(hidden[2, :3])
    return LAST((hidden + filled).relu_()).square().mean() + flat.square().sum() + copied.sin_().sum()


def block(hidden: torch.Tensor) -> torch.Tensor:
    hidden = F.dropout(FIRST(hidden).tanh(), 0.3)
    return hidden + (hidden.round() - hidden).detach()


def gradient_penalty() -> torch.Tensor:
    point = X.clone().requires_grad_()
    (slope,) = torch.autograd.grad(LAST(FIRST(point).tanh()).sum(), point, create_graph=True)
    return (slope.norm(2, 1) - 1).square().mean()


def changed_without_gradients() -> torch.Tensor:
    hidden = FIRST(X)
    hidden.data.mul_(2)
    with torch.no_grad():
        hidden.clamp_(-0.5)
    return hidden.square().sum()


def penalty_through_a_norm() -> torch.Tensor:
    point = X.clone().requires_grad_()
    hidden = F.batch_norm(F.layer_norm(FIRST(point), (5,)), None, None, training=True)
    (slope,) = torch.autograd.grad(LAST(hidden).sin().sum(), point, create_graph=True)
    return (slope.norm(2, 1) - 1).square().mean()


def edited_parameter() -> torch.Tensor:
    first = LAST(FIRST(X)).mean()
    with torch.no_grad():
        FIRST.bias.mul_(1.01)
    FIRST.weight.data.mul_(1.01)
    return first + LAST(FIRST(X)).square().mean()


@pytest.mark.parametrize(
    "loss",
    [
        lambda: LAST(FIRST(X).relu()).square().mean(),
        in_place_and_views,
        lambda: LAST(Scale.apply(FIRST(X), FIRST.bias)).square().mean(),
        lambda: LAST(InPlace.apply(FIRST(X) * 1)).square().mean(),
        lambda: WithInnerGraph.apply(FIRST(X)).square().mean(),
        lambda: LAST(block(FIRST(X))).square().mean(),
        lambda: LAST(checkpoint(block, FIRST(X), use_reentrant=True)).square().mean(),
        lambda: LAST(checkpoint(block, FIRST(X), use_reentrant=False)).square().mean(),
        lambda: LAST(torch.native_dropout(FIRST(X), 0.5, True)[0]).square().mean(),
        lambda: (F.gumbel_softmax(FIRST(X), hard=True) @ LAST.weight.t()).square().mean(),
        lambda: torch.distributions.Normal(FIRST(X), FIRST(X).exp()).rsample().square().mean(),
        lambda: (FIRST(X) * torch.bernoulli(FIRST(X).sigmoid())).sum(),
        lambda: F.binary_cross_entropy_with_logits(LAST(X), torch.ones(8, 1), pos_weight=torch.tensor(2.0)),
        lambda: LAST(X).mean() * FIRST(X).detach().sum() + FIRST(X).mean().item() * LAST(X).sum(),
        lambda: F.cosine_similarity(FIRST(X), X).sum(),
        changed_without_gradients,
        gradient_penalty,
        penalty_through_a_norm,
        edited_parameter,
    ],
    ids=[
        "mlp", "in-place", "function", "dirty", "inner-graph", "straight-through", "reentrant", "checkpoint",
        "native-dropout", "gumbel", "rsample", "bernoulli", "loss", "detach", "cosine", "changed", "second-order",
        "norm", "edited-parameter",
    ],
)  # fmt: skip
def test_gradients_are_derivatives_of_the_tape(loss: Loss) -> None:
    check(loss, LINEAR)


def models() -> dict[str, tuple[nn.Module, Callable[[nn.Module], torch.Tensor]]]:
    image = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
    cnn = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Dropout(), nn.MaxPool2d(2))
    encoder = nn.Sequential(nn.Embedding(10, 8), nn.TransformerEncoderLayer(8, 2, 16, batch_first=True))
    norms = nn.Sequential(
        nn.utils.parametrizations.weight_norm(nn.Linear(5, 5)), nn.utils.parametrizations.spectral_norm(nn.Linear(5, 1))
    )
    return {
        "cnn": (cnn, lambda model: model(image).square().mean()),
        "lstm": (nn.LSTM(5, 6, 2, batch_first=True), lambda model: model(X[None])[0].square().mean()),
        "gru": (nn.GRU(5, 6, batch_first=True), lambda model: model(X[None])[0].square().mean()),
        "transformer": (encoder, lambda model: model(TOKENS).square().sin().mean()),
        "norms": (norms, lambda model: model(X).square().mean()),
        "sparse": (nn.EmbeddingBag(10, 8, sparse=True), lambda model: model(TOKENS).square().mean()),
    }


@pytest.mark.parametrize("name", ["cnn", "lstm", "gru", "transformer", "norms", "sparse"])
def test_gradients_of_models_are_derivatives(name: str) -> None:
    model, loss = models()[name]
    # An LSTM of torch has other bits without gradients: oneDNN then chooses another kernel.
    check(lambda: loss(model), [*model.parameters()], rounding=1e-6 if name == "lstm" else 0.0)


def test_autocast_is_on_the_tape() -> None:
    def loss() -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            out = LAST(FIRST(X).relu())
        return out.float().square().mean()

    check(loss, LINEAR, most=0.05)


def test_a_value_overwritten_through_data_makes_the_gradient_wrong() -> None:
    def loss() -> torch.Tensor:
        hidden = FIRST(X)
        square = hidden * hidden
        hidden.data.mul_(2)
        return square.sum()

    FIRST.zero_grad()
    computation, value = computed(loss)
    value.backward()
    assert derivative_error(computation) == pytest.approx(1, rel=1e-3)


@pytest.mark.parametrize("reentrant", [True, False])
def test_another_dropout_in_the_recomputation_makes_the_gradient_wrong(reentrant: bool) -> None:
    FIRST.zero_grad()
    LAST.zero_grad()
    computation, value = computed(
        lambda: LAST(checkpoint(block, FIRST(X), use_reentrant=reentrant, preserve_rng_state=False)).square().mean()
    )
    value.backward()
    assert derivative_error(computation) > 0.01


@pytest.mark.parametrize("lazy", [torch.conj, lambda x: x.conj().imag])
def test_lazy_views_are_followed(lazy: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """torch writes a conjugate or negative view out below autograd, where an operation needs its values."""

    def loss() -> torch.Tensor:
        hidden = FIRST(X)
        return (torch.fft.rfft(hidden) * lazy(torch.fft.rfft(hidden.tanh()))).abs().sum()

    check(loss, [FIRST.weight, FIRST.bias], rounding=1e-6)


def test_entries_know_their_module_and_their_function() -> None:
    recording = TapeRecording(lambda: "train.py:12")
    handles = [
        nn.modules.module.register_module_forward_pre_hook(lambda module, _: recording.call_begins(module)),
        nn.modules.module.register_module_forward_hook(lambda module, *_: recording.call_ends(module)),
    ]
    recording.turn_on()
    value = Scale.apply(nn.Sequential(FIRST)(X), FIRST.bias).sum()
    recording.turn_off()
    for handle in handles:
        handle.remove()
    entries = recording.tape.computation([recording.source_of(value)]).entries
    calls = {entry.call.module for entry in entries if entry.call is not None}
    functions = {(entry.function.cls, entry.function.site) for entry in entries if entry.function is not None}
    assert (calls, functions) == ({FIRST}, {(Scale, "train.py:12")})


def test_a_module_made_for_one_call_does_not_outlive_it() -> None:
    recording = TapeRecording(lambda: "train.py:12")
    outer, inner = nn.Sequential(), nn.Softmax(dim=1)
    recording.call_begins(outer)
    recording.call_begins(inner)
    call, reference = recording.call, weakref.ref(inner)
    del inner
    assert reference() is None and call is not None
    assert (call.module, call.living) == (None, outer)


def reason(loss: Loss, after: Callable[[], object] = lambda: None) -> str:
    recording, value = recorded(loss)
    after()
    if recording.failed:
        return recording.failed
    with pytest.raises(CannotExecute) as raised:
        recording.tape.computation([recording.source_of(value)]).execute()
    return str(raised.value)


def test_a_constant_that_changed_unseen_cannot_be_executed() -> None:
    constant = torch.ones(5)
    assert "changed since" in reason(lambda: (FIRST(X) * constant).sum(), lambda: constant.add_(1))


def test_a_part_of_a_result_changed_without_gradients_cannot_be_used() -> None:
    def loss() -> torch.Tensor:
        hidden = FIRST(X)
        hidden.data[0].mul_(2)
        return hidden.sum()

    assert "without gradients" in reason(loss)


def test_a_result_from_before_the_recording_cannot_be_executed() -> None:
    hidden = FIRST(X)
    assert "was not recorded" in reason(lambda: hidden.sum())


def test_a_constant_that_the_program_overwrites_keeps_its_value() -> None:
    constant = torch.ones(5)

    def loss() -> torch.Tensor:
        product = FIRST(X) + constant
        constant.add_(1)
        return (product + constant).square().mean()

    check(loss, [*FIRST.parameters()])


def test_a_random_operation_with_gradients_cannot_be_executed() -> None:
    assert "random" in reason(lambda: torch.rrelu(FIRST(X), training=True).sum())


def test_no_recording_under_a_mode_of_the_program() -> None:
    class Own(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    recording = TapeRecording()
    with Own():
        recording.turn_on()
        FIRST(X).sum()
        assert not recording.is_on
    assert "mode" in recording.failed


def test_a_mode_of_the_program_that_begins_later_sees_its_operations() -> None:
    seen = []

    class Own(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    recording = TapeRecording()
    recording.turn_on()
    with Own():
        value = FIRST(X).sum()
        recording.turn_off()
    recording.turn_off()
    assert torch.ops.aten.addmm.default in seen
    assert not recording.is_on and value.requires_grad


def test_an_error_of_the_recording_ends_it_quietly(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise OSError("broken")

    monkeypatch.setattr(TapeRecording, "_record", fails)
    recording, value = recorded(lambda: FIRST(X).sum())
    assert value.requires_grad and "broken" in recording.failed


def test_an_error_of_the_program_stays_its_own() -> None:
    recording = TapeRecording()
    recording.turn_on()
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        FIRST(torch.zeros(2, 3))
    value = FIRST(X).sum()
    recording.turn_off()
    assert not recording.failed
    recording.tape.computation([recording.source_of(value)]).execute()


def test_transforms_of_torch_func_end_the_recording_or_are_right() -> None:
    check(lambda: torch.func.vmap(lambda row: LAST(FIRST(row)))(X).square().mean(), LINEAR)


def test_a_dropped_computation_frees_what_it_held() -> None:
    recording, value = recorded(lambda: (FIRST(X) * 2).sum())
    recording.drop(recording.tape.computation([recording.source_of(value)]))
    assert not recording.tape.entries and not recording.tape.held


@pytest.mark.parametrize(
    ("operation", "further"),
    [
        (torch.ops.aten._scaled_dot_product_flash_attention.default, (0.0, True)),
        (torch.ops.aten._scaled_dot_product_efficient_attention.default, (None, True, 0.0, True)),
    ],
)
def test_fused_attention_has_a_form_in_double_precision(operation: Any, further: tuple[Any, ...]) -> None:
    query, key, value = torch.randn(3, 2, 4, 5, 6, dtype=torch.float64)
    attention = fused_attention(operation)
    assert attention is not None
    output, *others = attention(query, key, value, *further, scale=0.3)
    assert others == [None] * (len(operation._schema.returns) - 1)
    assert torch.allclose(output, F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=0.3))


def test_a_replaced_constant_is_used() -> None:
    computation, _ = computed(lambda: FIRST(X).sum())
    doubled = computation.execute([(X, X * 2)]).roots[0]
    assert torch.equal(doubled, FIRST(X * 2).sum().detach())


def test_operations_that_wait_for_other_ranks_are_not_executed(tmp_path: Path) -> None:
    class Reduced(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, hidden: torch.Tensor) -> torch.Tensor:
            total = hidden.clone()
            dist.all_reduce(total)
            return total

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return grad

    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        assert reason(lambda: Reduced.apply(FIRST(X)).sum()) == "it waits for other ranks"
    finally:
        dist.destroy_process_group()
