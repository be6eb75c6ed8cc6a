"""A tape gives the bits of the program, and its derivatives are the gradients, for random sequences of operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from hypothesis import given
from hypothesis import strategies as st

from traincheck.sources.verification.tape.tape_recording import TapeRecording

Operation = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, value: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(value)
        out = value.detach().clone()
        return out.mul_(value).mul_(value)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, grad: torch.Tensor) -> torch.Tensor:
        (value,) = ctx.saved_tensors  # type: ignore[attr-defined]
        return 3 * grad * value * value


def without_gradients(hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        scale = hidden.abs().mean()
    return hidden / (1 + scale)


def row_in_place(hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    hidden = hidden.clone()
    hidden[1].mul_(weight[0])
    hidden.t()[0].add_(hidden[2].sum())
    return hidden


def into_a_constant(hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    filled = torch.ones(4, 4)
    filled[:2] = hidden[:2]
    filled.view(-1)[8:].copy_(hidden.reshape(-1)[8:]).mul_(weight.view(-1)[8:])
    return filled


OPERATIONS: Sequence[Operation] = (
    lambda hidden, weight: (hidden @ weight).tanh(),
    lambda hidden, weight: hidden * weight.t(),
    lambda hidden, weight: hidden + torch.where(hidden > 0, hidden, weight),
    lambda hidden, weight: torch.relu_(hidden * 1),
    lambda hidden, weight: torch.cat(hidden.chunk(2, 1)[::-1], 1).contiguous(),
    lambda hidden, weight: hidden.transpose(0, 1).reshape(4, 4),
    lambda hidden, weight: hidden + (hidden.round() - hidden).detach(),
    lambda hidden, weight: torch.nn.functional.dropout(hidden, 0.2),
    lambda hidden, weight: hidden.softmax(-1) + hidden.data,
    lambda hidden, weight: Cube.apply(hidden.sin()),
    lambda hidden, weight: torch.nn.functional.layer_norm(hidden, (4,), weight[0]),
    lambda hidden, weight: hidden[torch.tensor([2, 0, 3, 1])],
    without_gradients,
    row_in_place,
    into_a_constant,
)


@given(st.lists(st.integers(0, len(OPERATIONS) - 1), min_size=1, max_size=12), st.integers(0, 1000))
def test_a_tape_repeats_the_program(chosen: list[int], seed: int) -> None:
    torch.manual_seed(seed)
    weight = torch.randn(4, 4, requires_grad=True)
    batch = torch.randn(4, 4)

    def program() -> torch.Tensor:
        torch.manual_seed(seed)
        hidden = batch @ weight
        for number in chosen:
            hidden = OPERATIONS[number](hidden, weight)
        return hidden.square().mean()

    plain = program()
    (unobserved,) = torch.autograd.grad(plain, weight)
    recording = TapeRecording()
    recording.turn_on()
    try:
        loss = program()
    finally:
        recording.turn_off()
    (grad,) = torch.autograd.grad(loss, weight)
    assert torch.equal(loss, plain) and torch.equal(grad, unobserved)
    assert not recording.failed
    computation = recording.tape.computation([recording.source_of(loss)])
    assert torch.equal(computation.execute().roots[0], loss.detach())
    shift = torch.zeros(4, 4, requires_grad=True)
    (derivative,) = torch.autograd.grad(computation.execute(shifts=[(weight, shift)], differentiable=True).roots, shift)
    assert torch.allclose(grad, derivative, rtol=1e-3, atol=1e-4 * float(derivative.abs().max()))
