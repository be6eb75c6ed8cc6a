"""Fault injection: what strikes, where, how often, again in the same way, and that nothing is left behind."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import nn

from traincheck.errors import BadOption
from traincheck.sdc.workload.workload import load_workload
from traincheck.testing.corruption import Fault, inject, parse_fault

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
WORD = {2: torch.int16, 4: torch.int32, 8: torch.int64}


class Net(nn.Module):
    """Two linear layers that take the same input, and one behind them."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.last = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.left(x)) + self.right(x))


def training(fault: Fault | None, steps: int = 6, dtype: torch.dtype = torch.float32):
    """The losses and the last parameters of a training, and what was injected into it."""
    torch.manual_seed(3)
    model = Net().to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(5)

    def train() -> list[torch.Tensor]:
        losses = []
        for _ in range(steps):
            x = torch.randn(16, 8, generator=generator).to(dtype)
            optimizer.zero_grad()
            loss = model(x).float().pow(2).mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return losses

    if fault is None:
        return train(), [p.detach().clone() for p in model.parameters()], None
    with inject(model, optimizer, fault) as injected:
        losses = train()
    return losses, [p.detach().clone() for p in model.parameters()], injected


def same(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


SITES = ("forward", "backward", "gradient", "optimizer")


def zeros(site: str = "forward", pattern: str = "*") -> Fault:
    """A fault that makes all elements zero."""
    return Fault("intermittent", site, pattern, zeros=1, nonfinite=0, stride=1, share=1.0, chance=1)


@pytest.mark.parametrize("site", SITES)
def test_strikes_again_in_the_same_way_and_another_seed_otherwise(site: str) -> None:
    pattern = "l*t.weight" if site in ("gradient", "optimizer") else "last"
    fault = Fault("bitflip", site, pattern, bit="mantissa", chance=0.5, elements=3, seed=1)
    first, again = training(fault), training(fault)
    assert 0 < first[2].times < 12 and first[2].hits == again[2].hits
    assert same(first[0], again[0]) and same(first[1], again[1])
    assert not same(first[1], training(None)[1])
    assert not same(first[1], training(Fault("bitflip", site, pattern, bit="mantissa", chance=0.5, elements=3))[1])


@pytest.mark.parametrize("site", SITES)
def test_a_fault_that_never_strikes_changes_no_bit(site: str) -> None:
    losses, parameters, injected = training(Fault("bitflip", site, chance=0.0))
    plain = training(None)
    assert injected.times == 0 and same(losses, plain[0]) and same(parameters, plain[1])


@pytest.mark.parametrize("site", SITES)
def test_summed_gradients_stay_unchanged(site: str) -> None:
    workload = load_workload("decoder-tiny", 0, torch.device("cpu"))

    def gradients(fault: Fault | None) -> list[torch.Tensor]:
        model = workload.build_model()
        optimizer = workload.build_optimizer(model)
        with inject(model, optimizer, fault) if fault else nullcontext():
            workload.loss(model, workload.batch(1)).backward()
            optimizer.step()
        return [value for p in model.parameters() for value in (p.grad, p.detach())]

    assert same(gradients(Fault(site=site, chance=0.0)), gradients(None))
    assert not same(gradients(Fault(site=site, bit=20)), gradients(None))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("bit", [0, 7, "sign", "exponent", "mantissa", 63])
def test_one_bit_of_one_element_is_flipped(dtype: torch.dtype, bit: int | str) -> None:
    module, x = nn.Identity(), torch.randn(5, 7).to(dtype)
    with inject(module, None, Fault(bit=bit)):
        y = module(x)
    width = x.element_size() * 8
    mask = (1 << width) - 1
    before, after = (t.view(WORD[t.element_size()]).flatten().tolist() for t in (x, y))
    changed = [(a ^ b) & mask for a, b in zip(before, after, strict=True) if a != b]
    assert len(changed) == 1 and changed[0].bit_count() == 1
    position, highest = changed[0].bit_length() - 1, width - 1
    mantissa = {torch.float32: 23, torch.bfloat16: 7, torch.float16: 10, torch.float64: 52}[dtype]
    allowed = {
        "sign": {highest},
        "exponent": set(range(mantissa, highest)),
        "mantissa": set(range(mantissa)),
    }
    assert position in (allowed[bit] if isinstance(bit, str) else {min(bit, highest)})
    assert torch.equal(module(x), x)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_stuck_bit_has_its_value_at_the_same_places_each_time(dtype: torch.dtype) -> None:
    module, places = nn.Identity(), []
    highest = torch.finfo(dtype).bits - 1
    with inject(module, None, Fault("stuck", bit=highest, to=1, elements=4)) as injected:
        for _ in range(3):
            y = module(torch.full((8, 8), 1.5, dtype=dtype))
            places.append((y < 0).nonzero().tolist())
            injected.next_step()
    assert len(places[0]) == 4 and places[0] == places[1] == places[2]
    with inject(module, None, Fault("stuck", bit="sign", to=0, share=1.0)):
        assert (module(torch.full((8,), -1.5, dtype=dtype)) == 1.5).all()


def test_backward_hits_the_gradient_of_this_call_alone() -> None:
    model, x = Net(), torch.randn(4, 8, requires_grad=True)
    model(x).sum().backward()
    clean = {name: p.grad.clone() for name, p in model.named_parameters()}
    right = x.grad.clone()
    model.zero_grad()
    x.grad = None
    with inject(model, None, zeros("backward", "left")) as injected:
        model(x).sum().backward()
    assert [hit.name for hit in injected.hits] == ["left"]
    assert all(torch.equal(p.grad, clean[name]) for name, p in model.named_parameters())
    through_right = torch.autograd.grad(model.last(model.right(x)).sum(), x)[0]
    assert torch.allclose(x.grad, through_right) and not torch.allclose(x.grad, right)


def test_forward_hit_lets_the_gradient_flow() -> None:
    model, x = Net(), torch.randn(4, 8, requires_grad=True)
    with inject(model, None, zeros("forward", "last")):
        y = model(x)
        assert (y == 0).all()
        y.sum().backward()
    assert x.grad.abs().sum() > 0


def test_classes_are_patterns_too_and_outputs_may_be_nested() -> None:
    class Several(nn.Module):
        def forward(self, x: torch.Tensor) -> dict[str, object]:
            return {"a": (x, None), "n": 3, "i": torch.arange(3)}

    model = nn.Sequential(Several())
    with inject(model, None, zeros(pattern="Several")) as injected:
        output = model(torch.ones(3))
    assert (output["a"][0] == 0).all() and output["i"].tolist() == [0, 1, 2] and injected.times == 1


def test_injection_leaves_no_traces_even_after_an_error() -> None:
    model, x = Net(), torch.randn(2, 8, requires_grad=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    collective = torch.distributed.all_reduce
    for site in SITES:
        with pytest.raises(ZeroDivisionError), inject(model, optimizer, Fault(site=site)):
            raise ZeroDivisionError
    with inject(model, optimizer, Fault(site="communication")):
        assert torch.distributed.all_reduce is not collective
    assert torch.distributed.all_reduce is collective
    for module in model.modules():
        assert not module._forward_hooks and not module._forward_pre_hooks and not module._backward_hooks
    assert all(not p._backward_hooks for p in model.parameters())
    assert not optimizer._optimizer_step_pre_hooks and not optimizer._optimizer_step_post_hooks
    with inject(model, optimizer, zeros("backward", "left")) as injected:
        y = model(x)
    y.sum().backward()  # its graph was made in the block; it is hit no more
    assert injected.times == 0 and x.grad.abs().sum() > 0


def test_random_streams_are_not_drawn_from() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    with inject(nn.Identity(), None, Fault()) as injected:
        injected.strike("x", torch.ones(3))
    assert torch.equal(before, torch.get_rng_state()) and injected.times == 1


def test_steps_bursts_and_ranks() -> None:
    assert {hit.step for hit in training(Fault(first=2, last=3))[2].hits} == {2, 3}
    fault = Fault(burst=(3, 10), seed=4)
    active = [step for step in range(1, 101) if fault.active(step)]
    assert len(active) == 30
    starts = {(step - 1) % 10 for step in active if not fault.active(step - 1) or (step - 1) % 10 == 0}
    assert len(starts) > 2
    for begin in range(0, 100, 10):
        of_period = [step for step in active if begin < step <= begin + 10]
        assert of_period == list(range(of_period[0], of_period[0] + 3))
    assert training(Fault(rank=1))[2].times == 0 and training(Fault(rank=0))[2].times > 0


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("bitflip", "KIND@SITE"),
        ("flip@forward", "one of bitflip, stuck, intermittent"),
        ("bitflip@sideways", "one of forward, backward"),
        ("bitflip@forward:", "pattern"),
        ("bitflip@forward,bits=3", "'bits=3'"),
        ("bitflip@forward,bit=high", "bit= of --fault was given 'high'"),
        ("bitflip@forward,bit=64", "0 to 63"),
        ("bitflip@forward,chance=2", "0 to 1"),
        ("bitflip@forward,chance=often", "a number"),
        ("bitflip@forward,burst=5", "STEPS/PERIOD"),
        ("bitflip@forward,burst=5/3", "STEPS <= PERIOD"),
        ("intermittent@forward,share=0", "more than 0"),
        ("intermittent@forward,share=0.5,elements=3", "only one of"),
        ("stuck@forward,to=2", "0 or 1"),
        ("bitflip@forward,to=0", "only for the kind stuck"),
        ("bitflip@forward,stride=4", "only for the kind intermittent"),
        ("stuck@forward,zeros=0", "only for the kind intermittent"),
        ("intermittent@forward,stride=0", "1 or more"),
        ("intermittent@forward,flips=65", "1 to 64"),
        ("intermittent@forward,nonfinite=2", "0 to 1"),
        ("intermittent@forward,zeros=-1", "0 to 1"),
        ("intermittent@forward,first=5,last=3", "not less than first"),
        ("intermittent@forward,rank=-1", "0 or more"),
    ],
)
def test_a_wrong_text_is_reported_by_its_part(text: str, part: str) -> None:
    with pytest.raises(BadOption) as error:
        parse_fault(text)
    assert part in str(error.value)


def test_text_and_fault_are_the_same() -> None:
    fault = Fault("stuck", "backward", "*.mlp", bit=14, to=0, share=0.25, chance=0.5, burst=(3, 20), rank=1, seed=9)
    assert parse_fault(fault.text) == fault
    fault = Fault("intermittent", "forward", "*.mlp", stride=3, flips=2, nonfinite=0.0, zeros=0.25, elements=9)
    assert parse_fault(fault.text) == fault and parse_fault("intermittent@forward") == Fault("intermittent")
    assert parse_fault("bitflip@forward") == Fault() and Fault().text == "bitflip@forward:*"


@pytest.mark.parametrize("site", ["forward", "gradient", "communication"])
def test_a_pattern_that_names_nothing_is_reported(site: str) -> None:
    with pytest.raises(BadOption, match="one that matches"), inject(Net(), None, Fault(site=site, pattern="nowhere")):
        pass


def test_an_optimizer_fault_needs_an_optimizer() -> None:
    with pytest.raises(BadOption, match="an optimizer in addition"), inject(Net(), None, Fault(site="optimizer")):
        pass
