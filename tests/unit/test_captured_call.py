"""Tests that a replayed call has the same results and no lasting effects."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from traincheck.sources.replay import captured_call, restorable_call
from traincheck.sources.replay.captured_call import CapturedCall
from traincheck.sources.replay.fingerprints import CannotReplay
from traincheck.sources.replay.state_snapshot import without_modes


@pytest.fixture(autouse=True)
def nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code compiled earlier in this process (by another test) would prevent observation of modules inside."""
    monkeypatch.setattr(captured_call, "has_compiled_code", lambda: False)
    monkeypatch.setattr(restorable_call, "has_compiled_code", lambda: False)


class Odd(nn.Module):
    """Draws random numbers, counts calls, and keeps tensors while it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.calls, self.seen, self.kept = 0, [], torch.zeros(2)

    def forward(self, x: torch.Tensor, *, scale: float = 1.0) -> dict[str, torch.Tensor]:
        self.calls += 1
        self.seen.append(self.calls)
        self.kept.add_(1)
        self.last = x
        noise = torch.rand(4) + random.random()
        out = self.norm(self.layer(x.clone())) * scale * self.calls + noise
        x.add_(1)  # what it was given is changed under its hands
        return {"out": nn.functional.dropout(out), "aside": out.detach()}


def captured(module: nn.Module, *args: Any, **keywords: Any) -> tuple[CapturedCall, Any]:
    call = CapturedCall("model", module, args, keywords)
    handles = [
        inner.register_forward_hook(lambda hooked, _, output: call.inner_returned(hooked, output))
        for inner in module.modules()
    ]
    result = module(*args, **keywords)
    for handle in handles:
        handle.remove()
    call.returns(result)
    return call, result


def trained(module: nn.Module, *args: Any, loss: Callable[[Any], torch.Tensor], **keywords: Any) -> CapturedCall:
    call, result = captured(module, *args, **keywords)
    total = loss(result)
    call.backward_begins(total)
    total.backward()
    call.remove_hooks()
    return call


def state(model: Odd) -> tuple[Any, ...]:
    tensors = [*model.state_dict().values(), model.kept, *(p.grad for p in model.parameters() if p.grad is not None)]
    held = [tensor.clone() for tensor in tensors]
    return held, model.calls, list(model.seen), model.last, torch.get_rng_state(), random.getstate()


def test_a_call_gives_the_same_again_and_leaves_nothing() -> None:
    torch.manual_seed(0)
    model = Odd()
    call = trained(model, torch.randn(8, 4), scale=2.0, loss=lambda output: output["out"].square().sum())
    before = state(model)
    for _ in range(3):
        assert call.seen.first_difference(call.execute(several_ranks=False)) is None
    after = state(model)
    assert all(torch.equal(tensor, other) for tensor, other in zip(before[0], after[0], strict=True))
    assert before[1:3] == after[1:3] and before[3] is after[3]
    assert torch.equal(before[4], after[4]) and before[5] == after[5]
    assert call.seen.gradients.resolve().keys() == {name for name, _ in model.named_parameters()}


def test_a_value_that_differs_is_named() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    call = trained(model, torch.randn(2, 4), loss=torch.sum)
    with torch.no_grad():
        model[2].bias.view(torch.int32)[0] ^= 1 << 20
    assert call.seen.first_difference(call.execute(False)) == ("forward", "the result")
    assert call.seen.first_difference(call.execute(False, observe_modules=True)) == ("forward", "2")
    assert not call.unchanged


def test_hooks_of_the_program_are_not_called() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    called: list[str] = []
    model[0].register_forward_hook(lambda *_: called.append("forward"))
    model[0].register_full_backward_hook(lambda *_: called.append("backward"))
    model[1].weight.register_hook(lambda grad: called.append("gradient"))
    call = trained(model, torch.randn(2, 4), loss=torch.sum)
    assert sorted(called) == ["backward", "forward", "gradient"]
    assert call.seen.first_difference(call.execute(False)) is None
    assert sorted(called) == ["backward", "forward", "gradient"]
    model(torch.randn(2, 4)).sum().backward()
    assert len(called) == 6  # they are back
    assert "1.weight" not in call.seen.gradients.resolve()


def test_modes_of_the_program_see_nothing() -> None:
    class Counts(TorchFunctionMode):
        times = 0

        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            Counts.times += 1
            return function(*args, **(kwargs or {}))

    model = nn.Linear(4, 1)
    with Counts():
        call = trained(model, torch.randn(2, 4), loss=torch.sum)
        before = Counts.times
        with without_modes():
            call.execute(False)
        assert Counts.times == before
        torch.zeros(1) + 1
        assert Counts.times > before


def test_gradients_of_several_calls_are_not_compared() -> None:
    model = nn.Linear(4, 1)
    call, result = captured(model, torch.randn(2, 4))
    call.shared_calls += 1
    (result.sum() + model(torch.randn(2, 4)).sum()).backward()
    assert call.has_gradients and not call.one_backward
    again = call.execute(False)
    assert not again.gradients.resolve() and call.seen.first_difference(again) is None


def test_gradients_of_another_result_are_recomputed() -> None:
    class Model(nn.Linear):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            logits = super().forward(x)
            first, second = logits.split(2, dim=1)
            return {"loss": first.square().mean(), "logits": logits, "two": second, "bias": self.bias}

    for loss in (lambda output: output["loss"], lambda output: output["loss"] + output["two"].sum()):
        call = trained(Model(4, 4), torch.randn(2, 4), loss=loss)
        assert call.one_backward and call.seen.first_difference(call.execute(False)) is None


class Variational(nn.Module):
    """Its first result is computed from its second one, and it keeps what it computed first."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.mean, self.decoder = nn.Linear(4, 4), nn.Linear(4, 3), nn.Linear(3, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.kept = torch.tanh(self.hidden(x))
        mean = self.mean(self.kept)
        return self.decoder(mean), mean


def reconstruction(result: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return result[0].square().mean()


def divergence(result: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return result[1].pow(2).mean() * 0.1


@pytest.mark.parametrize(
    ("term", "compared"),
    [
        (lambda model, result: divergence(result), {"hidden", "mean", "decoder"}),
        (lambda model, result: result[1].sum() * result[0].sum(), {"hidden", "mean", "decoder"}),
        (lambda model, result: model.kept.square().mean(), {"mean", "decoder"}),
        (lambda model, result: model.mean.weight.norm() + model.mean.bias.norm(), {"hidden", "decoder"}),
    ],
    ids=["an inner result", "a product of both results", "what the model kept", "parameters"],
)
def test_gradients_from_outside_are_as_they_were(
    term: Callable[[Variational, Any], torch.Tensor], compared: set[str]
) -> None:
    model = Variational()
    call = trained(model, torch.randn(5, 4), loss=lambda result: reconstruction(result) + term(model, result))
    again = call.execute(False)
    assert call.one_backward and call.seen.first_difference(again) is None
    assert {name.partition(".")[0] for name in again.gradients.resolve()} == compared


def test_a_backward_from_an_inner_result_alone_is_followed() -> None:
    call = trained(Variational(), torch.randn(5, 4), loss=divergence)
    again = call.execute(False)
    assert call.one_backward and call.seen.first_difference(again) is None
    assert set(again.gradients.resolve()) == {"hidden.weight", "hidden.bias", "mean.weight", "mean.bias"}


def test_a_wrong_gradient_behind_an_inner_result_is_named() -> None:
    def backward(grad: torch.Tensor) -> torch.Tensor:
        return grad + 1 if wrong else grad

    class Model(Variational):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            result = super().forward(x)
            self.kept.register_hook(backward)
            return result

    wrong = True
    call = trained(Model(), torch.randn(5, 4), loss=lambda result: reconstruction(result) + divergence(result))
    wrong = False
    assert call.seen.first_difference(call.execute(False)) in (
        ("backward", "hidden.weight"),
        ("backward", "hidden.bias"),
    )


def test_a_result_that_is_changed_in_place_is_not_compared() -> None:
    class Model(nn.Linear):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            inner = super().forward(x)
            return inner + 1, inner

    call, (out, inner) = captured(Model(4, 3), torch.randn(5, 4))
    inner.mul_(2)
    total = out.sum() + inner.square().sum()
    call.backward_begins(total)
    total.backward()
    call.remove_hooks()
    assert call.has_gradients and not call.one_backward


def test_autocast_is_as_it_was() -> None:
    model = nn.Linear(4, 4)
    with torch.autocast("cpu", torch.bfloat16):
        call, result = captured(model, torch.randn(2, 4))
    result.float().sum().backward()
    assert result.dtype == torch.bfloat16
    assert call.seen.first_difference(call.execute(False)) is None


@pytest.mark.parametrize(
    ("make", "given", "reason"),  # (made at once, the modules would be seen by the tests of others)
    [
        (lambda: nn.SyncBatchNorm(4), torch.zeros(2, 4), "SyncBatchNorm"),
        (lambda: nn.Linear(4, 4, device="meta"), torch.zeros(2, 4), "holds a"),
        (
            lambda: nn.Linear(4, 4),
            torch.zeros(2, 4).as_subclass(type("Marked", (torch.Tensor,), {})),
            "is given a Marked",
        ),
    ],
)
def test_unsupported_calls_are_refused(make: Callable[[], nn.Module], given: torch.Tensor, reason: str) -> None:
    with pytest.raises(CannotReplay, match=reason):
        CapturedCall("model", make(), (given,), {})


def test_a_forward_that_raises_cannot_be_replayed() -> None:
    class Once(nn.Linear):
        calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            Once.calls += 1
            if Once.calls > 1:
                raise ValueError("once is enough")
            return super().forward(x)

    call = trained(Once(4, 1), torch.randn(2, 4), loss=torch.sum)
    with pytest.raises(CannotReplay, match="ValueError: once is enough"):
        call.execute(False)


def test_an_error_without_the_hooks_of_the_program_says_so() -> None:
    class Hooked(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * self.scales.pop()

    def fill(module: Hooked, _: Any) -> None:
        module.scales = [2.0]  # type: ignore[assignment]

    model = Hooked(4, 1)
    model.scales = []  # type: ignore[assignment]
    model.register_forward_pre_hook(fill)
    call = trained(model, torch.randn(2, 4), loss=torch.sum)
    with pytest.raises(CannotReplay, match=r"IndexError: .* does not call the hooks of the program"):
        call.execute(False)


def test_another_rank_executes_it_with_parameters_of_that_step() -> None:
    torch.manual_seed(1)
    mine, theirs = (nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.Linear(4, 1)) for _ in range(2))
    theirs.load_state_dict(mine.state_dict())
    call = trained(mine, torch.randn(2, 4), loss=torch.sum)
    torch.manual_seed(2)
    other = trained(theirs, torch.randn(2, 4), loss=torch.sum)
    held = [parameter.detach().clone() for parameter in theirs.parameters()]
    with torch.no_grad():
        theirs[0].weight.add_(1)  # it has gone on meanwhile
    before, stream = theirs[0].weight.detach().clone(), torch.get_rng_state()
    peer_call = call.for_peer()
    again = other.execute_peer_call(peer_call, held)
    assert again is not None and peer_call.executed().first_difference(again) is None
    assert torch.equal(theirs[0].weight, before) and torch.equal(torch.get_rng_state(), stream)
    held[0][0, 0] += 1
    assert other.execute_peer_call(peer_call, held) is None
