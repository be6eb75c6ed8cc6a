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
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, TensorDataset

import traincheck
from observed_process import Seen, observing
from traincheck.sources.functions.value_forms import ValueForms
from traincheck.sources.optimizers import parameter_changes
from traincheck.sources.recording.call_stack import OpenCall
from traincheck.sources.recording.window_buffer import WindowBuffer
from traincheck.sources.tensors import device_transfers as transfers_module
from traincheck.sources.tensors import reading, spot_checks
from traincheck.sources.tensors.deferred_values import (
    DeferredValue,
    Fetch,
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
            seq=number(event.seq),
            call=number(event.call),
            value=0 if _is_fingerprint(event.value) else event.value,
            context=rounded(tuple((name, 0 if _is_fingerprint(value) else value) for name, value in event.context)),
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
    assert looked["wait"] >= len(counts)
    assert set(looked) <= {"wait", *AT_FIRST, *OF_NUMBERS}, looked


LOOKS = ("item", "__bool__", "__float__", "__int__", "__index__", "tolist", "cpu", "numpy")
"""Operations that make the program wait for a tensor."""

AT_FIRST = ("_compare_buffers", "_report_equal", "is_varied", "bytes_of")
"""Components that read a model when they first see it."""

OF_NUMBERS = ("total_norm", "module_added")
"""Components that compute with known numbers, or with the state of the generator on the CPU."""

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


# -- late windows ----------------------------------------------------------------------------------------------------


def handed_on(moments: Callable[[Callable[[str], None]], None], **options: Any) -> tuple[list[str], Seen]:
    """The windows that are handed on at each moment of a training on a simulated accelerator."""
    order: list[str] = []
    with simulated_accelerator(), observing(EVERYTHING, **options) as seen:
        take = seen.windows.append
        seen.recorder._on_window = lambda window: (take(window), order.append(f"{window.stage} {window.step}"))
        moments(order.append)
    return order, seen


def two_steps(note: Callable[[str], None], before_backward: Callable[[nn.Module], object] = lambda model: None) -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        note("forward")
        loss = model(torch.ones(3, 4)).sum()
        before_backward(model)
        note("backward")
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def test_a_window_is_handed_on_at_the_next_backward() -> None:
    order, seen = handed_on(two_steps)
    assert order == ["forward", "setup 0", "backward", "forward", "backward", "train 1", "train 2", "end 2"]
    assert seen.faults == []
    (update,) = (call for call in seen.windows[1].calls if "torch.optim.Optimizer.step" in call.levels)
    changes = [change for change in seen.windows[1].changes if change.call == update.seq and change.kind == "parameter"]
    assert [change.changed for change in changes] == [True, True]


def test_a_window_is_handed_on_at_once_if_the_next_step_is_not_watched() -> None:
    order, _ = handed_on(two_steps, watches=lambda step: step < 2)
    assert order == ["forward", "setup 0", "backward", "forward", "train 1", "backward", "end 2"]


def test_an_evaluation_does_not_delay_the_window_before_it() -> None:
    def moments(note: Callable[[str], None]) -> None:
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.ones(3, 4)).sum().backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            for _ in range(3):
                model(torch.ones(3, 4))
                note("evaluated")

    order, _ = handed_on(moments)
    assert order.index("train 1") <= order.index("evaluated") + 1


def test_a_failed_conclusion_drops_its_late_window() -> None:
    recorders: list[Any] = []

    def fail(values: list[Any], _: object) -> None:
        raise ValueError("a conclusion")

    def moments(note: Callable[[str], None]) -> None:
        def delay(model: nn.Module) -> None:
            if not recorders[0].transfers.late:
                recorders[0].transfers.when_ready("gradients", [later(1)], fail)

        two_steps(note, delay)

    with simulated_accelerator(), observing(EVERYTHING) as seen:
        recorders.append(seen.recorder)
        moments(lambda moment: None)
    assert [str(error) for _, error in seen.faults] == ["a conclusion"]
    assert ("train", 1) not in seen.stages
    assert seen.recorder.dropped_windows >= 1


# -- cost ------------------------------------------------------------------------------------------------------------

MAX_OPERATIONS = 55
"""Operations of TrainCheck on the device in a step that reads no values of calls, some of which launch several kernels.
It may fall."""


class CountingMode(TorchDispatchMode):
    """Counts the operations that compute something, by name."""

    def __init__(self, counts: Counter[str]) -> None:
        super().__init__()
        self.counts = counts

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        returns = func._schema.returns
        if not any(value.alias_info is not None and not value.alias_info.is_write for value in returns):  # no view
            self.counts[str(func)] += 1
        return func(*args, **(kwargs or {}))


def operations_in_a_step(layers: int, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """TrainCheck's operations in the twelfth step of a model with this number of layers."""
    counts: Counter[str] = Counter()
    open_modes: list[CountingMode] = []
    enter, leave = reading._HiddenFromModes.__enter__, reading._HiddenFromModes.__exit__

    def enter_and_count(self: Any) -> None:
        enter(self)
        open_modes.append(CountingMode(counts))
        open_modes[-1].__enter__()

    def stop_and_leave(self: Any, *error: object) -> None:
        open_modes.pop().__exit__(None, None, None)
        leave(self, *error)

    monkeypatch.setattr(reading._HiddenFromModes, "__enter__", enter_and_count)
    monkeypatch.setattr(reading._HiddenFromModes, "__exit__", stop_and_leave)
    monkeypatch.setattr(ValueForms, "should_read", lambda *_: False)  # the functions here are those of a project
    for module in (spot_checks, parameter_changes):
        monkeypatch.setattr(module, "LARGE_BYTES", 4 * 144)
    model = nn.Sequential(*(nn.Linear(144, 144) for _ in range(layers)))
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    with simulated_accelerator(), observing(EVERYTHING) as seen:
        for _ in range(12):
            counts.clear()
            model(torch.ones(2, 144)).square().sum().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    assert seen.faults == []
    return counts


def test_the_number_of_operations_does_not_grow_with_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patches:
        few = operations_in_a_step(3, patches)
    many = operations_in_a_step(9, monkeypatch)
    assert few.total() <= MAX_OPERATIONS, few
    assert many == few


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

    def finish_late_window(self) -> None:
        self.faults.append("late")


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


def test_a_number_that_several_values_need_travels_once() -> None:
    norm, row = torch.tensor(2.5), torch.tensor([[7]])
    values = [DeferredValue((norm,), float), DeferredValue((row, norm), lambda *both: both), not_equal(later(2), 3)]
    with hidden_from_modes():
        fetch = Fetch([*values, DeferredValue((norm,), lambda number: -number)])
        assert fetch.size == 3
        assert fetch.wait() == [2.5, (7, 2.5), True, -2.5]


def test_a_comparison_of_deferred_values_is_deferred() -> None:
    pairs = [(1, 1), (1, 2), (later(1), 1), (later(1), 2), (1, later(1)), (later(1), later(1)), (later(1), later(2))]
    assert fetch_values([not_equal(old, new) for old, new in pairs]) == [False, True, False, True, False, False, True]
    assert not_equal(None, later(1)) is not True
    assert fetch_values([not_equal(None, later(1))]) == [True]


# -- on a GPU --------------------------------------------------------------------------------------------------------

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@on_gpu
def test_numbers_and_fingerprints_of_a_gpu_are_those_of_a_simulated_one() -> None:
    tensors = [torch.randn(size) for size in (1, 5, 5000, 70_000, (1 << 22) + 3)]
    tensors += [torch.randint(-9, 9, (70_001,), dtype=dtype) for dtype in (torch.int8, torch.int64)]
    with hidden_from_modes():
        on_device = reading.fingerprints([tensor.cuda() for tensor in tensors])
        fetch = Fetch([later(0.5), DeferredValue((torch.tensor(7, device="cuda"),), int), 3], {})
        with simulated_accelerator():
            assert on_device == reading.fingerprints(tensors)
        assert fetch.wait() == [0.5, 7, 3]


@on_gpu
def test_a_watched_step_does_not_wait_for_a_gpu() -> None:
    model = nn.Sequential(nn.Linear(300, 300), nn.LayerNorm(300), nn.Linear(300, 300)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    batch = torch.randn(8, 300, device="cuda")
    with observing(EVERYTHING) as seen:
        try:
            for step in range(14):
                # The first steps copy tables to the device, and read a new model.
                torch.cuda.set_sync_debug_mode("error" if step > 9 else "default")
                model(batch).square().mean().backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert seen.faults == []
    assert seen.stages[-2] == (TRAIN, 14)
