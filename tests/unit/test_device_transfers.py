"""Tests that values on accelerators are fetched once a step, on CPU tensors that simulate an accelerator."""

from __future__ import annotations

import gc
import itertools
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.data import DataLoader, TensorDataset

import traincheck
from observed_process import Seen, observing
from traincheck.sources.recording.call_stack import OpenCall
from traincheck.sources.recording.window_buffer import WindowBuffer
from traincheck.sources.tensors import device_transfers as transfers_module
from traincheck.sources.tensors.deferred_values import (
    DeferredValue,
    fetch_values,
    fetches,
    not_equal,
    simulated_accelerator,
)
from traincheck.sources.tensors.device_transfers import MAX_PENDING, DeviceTransfers
from traincheck.sources.tensors.reading import hidden_from_modes
from traincheck.vocab.demand import EVERYTHING, Demand
from traincheck.vocab.events import TRAIN, Call, Window
from traincheck.vocab.facts import FactValue

STEPS = 10

LARGEST = 1 << 20
"""Larger numbers are fingerprints."""


class Model(nn.Module):
    """An embedding of which few rows have a gradient, normalisation with buffers, a part that is frozen and one that no
    batch is given to, and weights that are large enough for samples."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(2000, 64)
        self.none = nn.Linear(0, 4)
        self.body = nn.Sequential(nn.Linear(64, 300), nn.BatchNorm1d(300), nn.ReLU(), nn.Linear(300, 300))
        self.frozen = nn.Linear(300, 64).requires_grad_(False)
        self.unused = nn.Linear(4, 4)
        self.head = nn.Linear(64, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.none(torch.zeros(2, 0))
        return self.head(self.frozen(self.body(self.table(x))).softmax(-1))


def train(steps: int = STEPS) -> list[float]:
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    samples = TensorDataset(torch.randint(0, 100, (8 * steps,)), torch.randint(0, 3, (8 * steps,)))
    losses = []
    for step, (x, y) in enumerate(DataLoader(samples, batch_size=8)):
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        if step != 5:  # one in which an update is missing
            optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def observed(demand: Demand, *, elsewhere: bool) -> tuple[Seen, list[float], list[int]]:
    """The events of a training, its losses, and the number of transfers at the end of each window."""
    transfers: list[int] = []
    with simulated_accelerator() if elsewhere else nullcontext(), observing(demand) as seen:
        take = seen.windows.append
        seen.recorder._on_window = lambda window: (take(window), transfers.append(fetches.count))
        losses = train()
    assert seen.faults == []
    return seen, losses, transfers


def _is_fingerprint(value: object) -> bool:
    return type(value) is int and value > LARGEST


def normalized(window: Window) -> Window:
    """A window without the expected differences: fingerprints (another algorithm), the last digits of norms, and the
    numbers of events, because more positions are reserved than used."""
    seqs: dict[int, int] = {}

    def number(seq: int) -> int:
        return seqs.setdefault(seq, len(seqs)) if seq >= 0 else seq

    def rounded(facts: tuple[tuple[str, FactValue], ...]) -> tuple[tuple[str, FactValue], ...]:
        return tuple((name, float(f"{value:.4g}") if isinstance(value, float) else value) for name, value in facts)

    positions = [position for call in window.calls for position in (call.seq, call.end)]
    positions += [event.seq for event in (*window.changes, *window.readings)]
    for position in sorted(positions):
        number(position)
    calls = tuple(
        call._replace(
            seq=number(call.seq),
            end=number(call.end),
            parent=number(call.parent),
            thread=0,
            result=rounded(call.result),
            tensors=tuple(
                event._replace(fingerprint=event.fingerprint is None, facts=rounded(event.facts))
                for event in call.tensors
            ),
        )
        for call in window.calls
    )
    changes = tuple(
        event._replace(seq=number(event.seq), call=number(event.call), fingerprint=None) for event in window.changes
    )
    readings = tuple(
        event._replace(
            seq=number(event.seq), call=number(event.call), value=0 if _is_fingerprint(event.value) else event.value
        )
        for event in window.readings
    )
    return replace(window, calls=calls, changes=changes, readings=readings)


@pytest.fixture(params=["alone", "of two ranks"])
def job(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.param == "alone":
        yield
        return
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        yield
    finally:
        dist.destroy_process_group()


@pytest.mark.usefixtures("job")
def test_tensors_on_an_accelerator_yield_the_same_events() -> None:
    here, losses, _ = observed(EVERYTHING, elsewhere=False)
    there, same_losses, _ = observed(EVERYTHING, elsewhere=True)
    assert same_losses == losses
    assert len(here.windows) == len(there.windows) > STEPS
    assert len(here.readings) > STEPS
    for window, other in zip(map(normalized, here.windows), map(normalized, there.windows), strict=True):
        for mine, theirs in zip(window.calls, other.calls, strict=True):
            assert theirs == mine
        for mine_changed, theirs_changed in zip(window.changes, other.changes, strict=True):
            assert theirs_changed == mine_changed
        for mine_read, theirs_read in zip(window.readings, other.readings, strict=True):
            assert theirs_read == mine_read


@pytest.mark.usefixtures("job")
def test_a_step_takes_one_transfer(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: Counter[str] = Counter()
    for holder, name in (*((torch.Tensor, name) for name in LOOKS), (torch, "equal"), (torch, "allclose")):
        monkeypatch.setattr(holder, name, _noting(looked, getattr(holder, name)))
    seen, _, transfers = observed(EVERYTHING, elsewhere=True)
    counts = [
        after - before
        for window, before, after in zip(seen.windows[1:], transfers, transfers[1:], strict=False)
        if window.stage == TRAIN and window.step > 1  # in the first, what stays as it is is read once
    ]
    assert len(counts) >= STEPS - 2
    assert set(counts) == {1}
    assert looked["_transfer"] >= len(counts)
    assert set(looked) <= {"_transfer", *AT_FIRST, *OF_NUMBERS}, looked


LOOKS = ("item", "__bool__", "__float__", "__int__", "__index__", "tolist", "cpu", "numpy")
"""Operations that make the program wait for a tensor."""

AT_FIRST = ("_compare_buffers",)
"""Components that read a model when they first see it."""

OF_NUMBERS = ("total_norm",)
"""Components that compute with known numbers."""

OURS = str(Path(traincheck.__file__).parent)


def _noting(looked: Counter[str], function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that records which TrainCheck function calls it."""

    def noted(*args: Any, **kwargs: Any) -> Any:
        frame = sys._getframe(1)
        if frame.f_code.co_filename.startswith(OURS) and frame.f_code.co_name not in ("wrapper", "__torch_function__"):
            looked[frame.f_code.co_name] += 1
        return function(*args, **kwargs)

    return noted


@pytest.mark.parametrize("watched", [lambda step: step % 3 == 0, lambda step: step > 4])
def test_steps_outside_the_sample_leave_no_deferred_values(watched: Callable[[int], bool]) -> None:
    with observing(EVERYTHING, watches=watched) as here:
        losses = train()
    with simulated_accelerator(), observing(EVERYTHING, watches=watched) as there:
        assert train() == losses
    assert here.faults == there.faults == []
    assert not there.recorder.transfers
    assert there.stages == here.stages
    assert 2 < sum(stage == TRAIN for stage, _ in there.stages) < STEPS
    for window, other in zip(here.windows, there.windows, strict=True):
        assert normalized(other).changes == normalized(window).changes


def test_gradients_are_not_held() -> None:
    parameter = nn.Parameter(torch.ones(4))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    with simulated_accelerator(), observing(EVERYTHING):
        for _ in range(2):
            parameter.sum().backward()
            optimizer.step()
            assert parameter.grad is not None
            gradient = weakref.ref(parameter.grad)
            optimizer.zero_grad()
            gc.collect()
            assert gradient() is None


def test_parameters_are_not_held() -> None:
    with simulated_accelerator(), observing(EVERYTHING) as seen:
        model = Model()
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(2):  # gradients add up
            model(torch.zeros(4, dtype=torch.int64)).square().sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
        assert seen.recorder.transfers
        held = [weakref.ref(parameter) for parameter in model.parameters()]
        del model, optimizer
        gc.collect()
        assert [parameter() for parameter in held] == [None] * len(held)


# -- by themselves ---------------------------------------------------------------------------------------------------


class Recorder:
    """As far as it is asked anything."""

    def __init__(self) -> None:
        self.next_seq = itertools.count().__next__
        self.faults: list[str] = []

    def fault(self, source: str, error: BaseException) -> None:
        self.faults.append(f"{source}: {error}")

    def drop_window(self) -> None:
        self.faults.append("given up")


def later(value: float) -> DeferredValue:
    return DeferredValue((torch.tensor(value),), lambda number: number)


def test_known_values_are_concluded_at_once() -> None:
    concluded: list[object] = []
    recorder = Recorder()
    transfers = DeviceTransfers(recorder, WindowBuffer())
    transfers.when_ready("a", (1, "two"), lambda values, next_seq: concluded.append((values, next_seq())))
    assert concluded == [([1, "two"], 0)]
    assert not transfers


def test_conclusions_keep_their_order_and_their_positions() -> None:
    concluded: list[object] = []
    recorder = Recorder()
    transfers = DeviceTransfers(recorder, WindowBuffer())

    def conclude(values: list[object], next_seq: Callable[[], int]) -> None:
        concluded.append((values, next_seq()))

    transfers.when_ready("a", [later(0.5), 7], conclude, events=3)
    assert recorder.next_seq() == 3
    transfers.when_ready("b", ["known"], conclude, events=1)  # what came before it is not known yet
    transfers.when_ready("c", [later(3)], lambda *_: 1 // 0)
    transfers.when_ready("d", [later(4)], conclude, events=1)
    assert concluded == []
    assert transfers
    transfers.flush()
    assert concluded == [([0.5, 7], 0), (["known"], 4), ([4], 5)]
    assert recorder.faults == ["c: integer division or modulo by zero"]
    assert not transfers


def test_the_number_of_deferred_values_is_limited() -> None:
    recorder = Recorder()
    transfers = DeviceTransfers(recorder, WindowBuffer())
    counts: list[int] = []
    before = fetches.count
    number = torch.tensor(1)
    for _ in range(3 * MAX_PENDING // 1000):
        transfers.when_ready("a", [DeferredValue((number,), int)] * 1000, lambda values, _: counts.append(len(values)))
    assert sum(counts) > 2 * MAX_PENDING
    assert fetches.count == before + 2


def test_no_transfer_happens_while_a_graph_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    transfers = DeviceTransfers(recorder, WindowBuffer())
    transfers.when_ready("a", [later(1)], lambda *_: pytest.fail("concluded"))
    monkeypatch.setattr(transfers_module, "is_capturing", lambda: True)
    before = fetches.count
    transfers.flush()
    assert recorder.faults == ["given up"]
    assert fetches.count == before
    assert not transfers


def test_late_facts_of_a_call_are_in_its_window() -> None:
    window = WindowBuffer()
    transfers = DeviceTransfers(Recorder(), window)
    call, other = (OpenCall(seq, -1, "module", ("m",), "", "", (), ()) for seq in (0, 2))
    window.calls += [
        Call(late_call.seq, late_call.seq + 1, -1, "module", ("m",), result=(("a", 1),)) for late_call in (call, other)
    ]

    def conclude(values: list[int], _: object) -> None:
        call.context, call.result = (("grads", "some"),), (("norm", values[0]),)

    transfers.when_ready("a", [later(2)], conclude, call=call)
    transfers.when_ready("a", [later(2)], lambda *_: None, call=other)
    transfers.flush()
    assert [(late_call.context, late_call.result) for late_call in window.calls] == [
        ((("grads", "some"),), (("norm", 2),)),
        ((), (("a", 1),)),
    ]


@pytest.mark.parametrize("number", [0.1, -2.5, 1e300, float("inf"), 2**63 - 1, -(2**63), True, 0])
def test_numbers_of_every_type_are_fetched_exactly(number: float) -> None:
    tensors = [torch.tensor(number, dtype=torch.float64 if isinstance(number, float) else torch.int64)]
    tensors.append(torch.tensor(1, dtype=torch.int32))
    tensors.append(torch.tensor([0.5], dtype=torch.bfloat16))
    tensors.append(torch.tensor(True))
    with hidden_from_modes():
        fetched = fetch_values([5, DeferredValue(tuple(tensors), lambda *numbers: numbers), None, later(0.25)])
    assert fetched == [5, (number, 1, 0.5, 1), None, 0.25]


def test_a_comparison_of_deferred_values_is_deferred() -> None:
    pairs = [(1, 1), (1, 2), (later(1), 1), (later(1), 2), (1, later(1)), (later(1), later(1)), (later(1), later(2))]
    assert fetch_values([not_equal(old, new) for old, new in pairs]) == [False, True, False, True, False, False, True]
    assert not_equal(None, later(1)) is not True
    assert fetch_values([not_equal(None, later(1))]) == [True]
