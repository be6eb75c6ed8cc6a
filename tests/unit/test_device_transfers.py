"""What accelerators compute is fetched once a step; tested with tensors of the CPU that are taken for others."""

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
from traincheck.sources.recording.window_buffer import OpenWindow
from traincheck.sources.tensors import device_transfers as transfers_module
from traincheck.sources.tensors.deferred_values import Pending, as_if_elsewhere, fetched, fetches, unlike
from traincheck.sources.tensors.device_transfers import MOST_PENDING, Transfers
from traincheck.sources.tensors.reading import unseen
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
    """What was seen of a training, its losses, and how many transfers there had been when each window was cut."""
    transfers: list[int] = []
    with as_if_elsewhere() if elsewhere else nullcontext(), observing(demand) as seen:
        take = seen.windows.append
        seen.recorder._on_window = lambda window: (take(window), transfers.append(fetches.count))
        losses = train()
    assert seen.faults == []
    return seen, losses, transfers


def _is_fingerprint(value: object) -> bool:
    return type(value) is int and value > LARGEST


def alike(window: Window) -> Window:
    """A window but for what may differ: fingerprints (which are computed in another way), the last digits of norms, and
    the numbers of events (more are set aside than are told)."""
    seqs: dict[int, int] = {}

    def number(seq: int) -> int:
        return seqs.setdefault(seq, len(seqs)) if seq >= 0 else seq

    def rounded(facts: tuple[tuple[str, FactValue], ...]) -> tuple[tuple[str, FactValue], ...]:
        return tuple((name, float(f"{value:.4g}") if isinstance(value, float) else value) for name, value in facts)

    places = [place for call in window.calls for place in (call.seq, call.end)]
    places += [one.seq for one in (*window.changes, *window.readings)]
    for place in sorted(places):
        number(place)
    calls = tuple(
        call._replace(
            seq=number(call.seq),
            end=number(call.end),
            parent=number(call.parent),
            thread=0,
            result=rounded(call.result),
            tensors=tuple(
                one._replace(fingerprint=one.fingerprint is None, facts=rounded(one.facts)) for one in call.tensors
            ),
        )
        for call in window.calls
    )
    changes = tuple(
        one._replace(seq=number(one.seq), call=number(one.call), fingerprint=None) for one in window.changes
    )
    readings = tuple(
        one._replace(seq=number(one.seq), call=number(one.call), value=0 if _is_fingerprint(one.value) else one.value)
        for one in window.readings
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
def test_the_same_is_seen_of_what_lies_elsewhere() -> None:
    here, losses, _ = observed(EVERYTHING, elsewhere=False)
    there, same_losses, _ = observed(EVERYTHING, elsewhere=True)
    assert same_losses == losses
    assert len(here.windows) == len(there.windows) > STEPS
    assert len(here.readings) > STEPS
    for one, other in zip(map(alike, here.windows), map(alike, there.windows), strict=True):
        for mine, theirs in zip(one.calls, other.calls, strict=True):
            assert theirs == mine
        for mine_changed, theirs_changed in zip(one.changes, other.changes, strict=True):
            assert theirs_changed == mine_changed
        for mine_read, theirs_read in zip(one.readings, other.readings, strict=True):
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
    assert looked["_transferred"] >= len(counts)
    assert set(looked) <= {"_transferred", *AT_FIRST, *OF_NUMBERS}, looked


LOOKS = ("item", "__bool__", "__float__", "__int__", "__index__", "tolist", "cpu", "numpy")
"""How the program is made to wait for a tensor."""

AT_FIRST = ("_compare_buffers",)
"""What looks at a model when it is met first."""

OF_NUMBERS = ("norm_over",)
"""What computes with numbers that are known."""

OURS = str(Path(traincheck.__file__).parent)


def _noting(looked: Counter[str], function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that notes which of ours calls it."""

    def noted(*args: Any, **kwargs: Any) -> Any:
        frame = sys._getframe(1)
        if frame.f_code.co_filename.startswith(OURS) and frame.f_code.co_name not in ("wrapper", "__torch_function__"):
            looked[frame.f_code.co_name] += 1
        return function(*args, **kwargs)

    return noted


@pytest.mark.parametrize("watched", [lambda step: step % 3 == 0, lambda step: step > 4])
def test_steps_that_are_not_watched_leave_nothing_behind(watched: Callable[[int], bool]) -> None:
    with observing(EVERYTHING, watches=watched) as here:
        losses = train()
    with as_if_elsewhere(), observing(EVERYTHING, watches=watched) as there:
        assert train() == losses
    assert here.faults == there.faults == []
    assert not there.recorder.transfers
    assert there.stages == here.stages
    assert 2 < sum(stage == TRAIN for stage, _ in there.stages) < STEPS
    for one, other in zip(here.windows, there.windows, strict=True):
        assert alike(other).changes == alike(one).changes


def test_gradients_are_not_held() -> None:
    parameter = nn.Parameter(torch.ones(4))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    with as_if_elsewhere(), observing(EVERYTHING):
        for _ in range(2):
            parameter.sum().backward()
            optimizer.step()
            assert parameter.grad is not None
            gradient = weakref.ref(parameter.grad)
            optimizer.zero_grad()
            gc.collect()
            assert gradient() is None


def test_parameters_are_not_held() -> None:
    with as_if_elsewhere(), observing(EVERYTHING) as seen:
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

    def give_up(self) -> None:
        self.faults.append("given up")


def later(value: float) -> Pending:
    return Pending((torch.tensor(value),), lambda number: number)


def test_what_is_known_is_concluded_at_once() -> None:
    told: list[object] = []
    recorder = Recorder()
    transfers = Transfers(recorder, OpenWindow())
    transfers.when("a", (1, "two"), lambda known, next_seq: told.append((known, next_seq())))
    assert told == [([1, "two"], 0)]
    assert not transfers


def test_conclusions_keep_their_order_and_their_places() -> None:
    told: list[object] = []
    recorder = Recorder()
    transfers = Transfers(recorder, OpenWindow())

    def tell(known: list[object], next_seq: Callable[[], int]) -> None:
        told.append((known, next_seq()))

    transfers.when("a", [later(0.5), 7], tell, events=3)
    assert recorder.next_seq() == 3
    transfers.when("b", ["known"], tell, events=1)  # what came before it is not known yet
    transfers.when("c", [later(3)], lambda *_: 1 // 0)
    transfers.when("d", [later(4)], tell, events=1)
    assert told == []
    assert transfers
    transfers.settle()
    assert told == [([0.5, 7], 0), (["known"], 4), ([4], 5)]
    assert recorder.faults == ["c: integer division or modulo by zero"]
    assert not transfers


def test_not_everything_is_put_off_for_ever() -> None:
    recorder = Recorder()
    transfers = Transfers(recorder, OpenWindow())
    known: list[int] = []
    before = fetches.count
    number = torch.tensor(1)
    for _ in range(3 * MOST_PENDING // 1000):
        transfers.when("a", [Pending((number,), int)] * 1000, lambda told, _: known.append(len(told)))
    assert sum(known) > 2 * MOST_PENDING
    assert fetches.count == before + 2


def test_nothing_is_waited_for_while_a_graph_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    transfers = Transfers(recorder, OpenWindow())
    transfers.when("a", [later(1)], lambda *_: pytest.fail("concluded"))
    monkeypatch.setattr(transfers_module, "is_capturing", lambda: True)
    before = fetches.count
    transfers.settle()
    assert recorder.faults == ["given up"]
    assert fetches.count == before
    assert not transfers


def test_what_is_added_to_a_call_late_is_in_its_window() -> None:
    window = OpenWindow()
    transfers = Transfers(Recorder(), window)
    call, other = (OpenCall(seq, -1, "module", ("m",), "", "", (), ()) for seq in (0, 2))
    window.calls += [Call(one.seq, one.seq + 1, -1, "module", ("m",), result=(("a", 1),)) for one in (call, other)]

    def conclude(known: list[int], _: object) -> None:
        call.context, call.result = (("grads", "some"),), (("norm", known[0]),)

    transfers.when("a", [later(2)], conclude, call=call)
    transfers.when("a", [later(2)], lambda *_: None, call=other)
    transfers.settle()
    assert [(one.context, one.result) for one in window.calls] == [
        ((("grads", "some"),), (("norm", 2),)),
        ((), (("a", 1),)),
    ]


@pytest.mark.parametrize("number", [0.1, -2.5, 1e300, float("inf"), 2**63 - 1, -(2**63), True, 0])
def test_numbers_come_as_they_are(number: float) -> None:
    told = [torch.tensor(number, dtype=torch.float64 if isinstance(number, float) else torch.int64)]
    told.append(torch.tensor(1, dtype=torch.int32))
    told.append(torch.tensor([0.5], dtype=torch.bfloat16))
    told.append(torch.tensor(True))
    with unseen():
        found = fetched([5, Pending(tuple(told), lambda *numbers: numbers), None, later(0.25)])
    assert found == [5, (number, 1, 0.5, 1), None, 0.25]


def test_whether_two_values_differ_may_be_known_later() -> None:
    pairs = [(1, 1), (1, 2), (later(1), 1), (later(1), 2), (1, later(1)), (later(1), later(1)), (later(1), later(2))]
    assert fetched([unlike(old, new) for old, new in pairs]) == [False, True, False, True, False, False, True]
    assert unlike(None, later(1)) is not True
    assert fetched([unlike(None, later(1))]) == [True]
