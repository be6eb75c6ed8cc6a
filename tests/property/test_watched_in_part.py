"""Steps, calls and verdicts of a watched step do not depend on which other steps are watched."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from test_drivers_agree import ALL, BUGGY, GOOD, Net, in_full, judged, loader, rules
from torch import nn

from observed_process import Seen, observing
from traincheck.checking.engine import demand_of
from traincheck.runtime.recording.sampling import in_sample
from traincheck.vocab.demand import EVERYTHING, Demand
from traincheck.vocab.events import TRAIN, Window


class Wrapper(nn.Module):
    """Takes its own steps in its forward, as engines do."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 2)
        self.optimizer = torch.optim.SGD(self.inner.parameters(), lr=0.1)

    def forward(self, x: torch.Tensor) -> None:
        for _ in range(2):
            self.optimizer.zero_grad()
            self.inner(x).square().mean().backward()
            self.optimizer.step()


def inside_a_module() -> None:
    engine = Wrapper()
    for (x,) in torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(12, 4)), batch_size=3):
        engine(x)


def functions_only() -> None:
    weight = torch.randn(4, 2, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(8):
        optimizer.zero_grad()
        (torch.randn(3, 4) @ weight).square().mean().backward()
        optimizer.step()


def uneven() -> None:
    """One optimizer steps three times for each step of the other, and an evaluation comes in between."""
    generator, critic = nn.Linear(4, 4), nn.Linear(4, 1)
    of_generator, of_critic = torch.optim.Adam(generator.parameters()), torch.optim.Adam(critic.parameters())
    for number in range(12):
        critic.zero_grad()
        (critic(torch.randn(3, 4)) - critic(generator(torch.randn(3, 4)).detach())).mean().backward()
        of_critic.step()
        if number % 3 == 2:
            generator.zero_grad()
            critic(generator(torch.randn(3, 4))).mean().backward()
            of_generator.step()
        if number % 4 == 1:
            generator.eval()
            with torch.no_grad():
                generator(torch.randn(3, 4))
            generator.train()


def with_a_closure() -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(torch.ones(5, 3)).square().mean()
        loss.backward()
        return loss

    for _ in range(6):
        optimizer.step(closure)


@contextmanager
def own_mode() -> Iterator[None]:
    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: object, types: object, args: object = (), kwargs: object = None) -> object:
            return func(*args, **(kwargs or {}))  # type: ignore[operator]

    with Mode():
        yield


def under_a_mode() -> None:
    """The program enters its own mode in some steps and leaves it in others."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    mode = own_mode()
    for number in range(9):
        if number == 3:
            mode.__enter__()
        if number == 6:
            mode.__exit__(None, None, None)
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=number % 2 == 0):
            loss = model(torch.randn(4, 4)).float().mean()
        loss.backward()
        optimizer.step()


def scaled() -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    for x, _ in loader(8):
        optimizer.zero_grad()
        scaler.scale(model(x).square().mean()).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()


ODD: dict[str, Callable[[], None]] = {
    "inside a module": inside_a_module,
    "functions only": functions_only,
    "uneven": uneven,
    "closure": with_a_closure,
    "own mode": under_a_mode,
    "scaled": scaled,
}
PROGRAMS = {**ALL, **ODD}
MAX_STEPS = 16


def record(name: str, watches: Callable[[int], bool], demand: Demand = EVERYTHING) -> Seen:
    torch.manual_seed(0)
    with observing(demand, watches=watches) as seen:
        PROGRAMS[name]()
    assert seen.faults == [] and seen.missing == []
    return seen


@functools.cache
def whole(name: str) -> list[Window]:
    return record(name, lambda step: True).windows


def calls(window: Window) -> list[object]:
    """The calls of a window, with each one's parent by its place. (A full recording reads values of some of them.)"""
    places = {call.seq: index for index, call in enumerate(window.calls)}
    return [
        (
            call.levels,
            call.receiver,
            call.end >= 0,
            places.get(call.parent),
            call.context,
            call.args,
            [(tensor.role, tensor.dtype, tensor.shape) for tensor in call.tensors],
        )
        for call in window.calls
    ]


def changes(window: Window) -> list[object]:
    """The changes around calls (what came about between calls may have done so before the window was watched)."""
    places = {call.seq: index for index, call in enumerate(window.calls)}
    return [
        change._replace(seq=0, call=places[change.call], fingerprint=None)
        for change in window.changes
        if change.call in places
    ]


@pytest.mark.parametrize("name", PROGRAMS)
@given(st.sets(st.integers(1, MAX_STEPS)))
@example(set())
@example({3, 4})
@settings(max_examples=6)
def test_a_watched_window_is_recorded_as_if_all_were(name: str, watched: set[int]) -> None:
    expected = {window.index: window for window in whole(name)}
    seen = record(name, lambda step: step in watched)
    last = seen.windows[-1]
    for window in seen.windows[:-1]:
        full = expected[window.index]
        assert (window.step, window.stage) == (full.step, full.stage)
        assert repr(calls(window)) == repr(calls(full))  # what is not a number equals nothing
        assert changes(window) == changes(full)
    assert last.index == max(expected) and last.step == expected[last.index].step
    indices = {window.index for window in seen.windows}
    trained = {window.step for window in seen.windows if window.stage == TRAIN}
    steps_to_watch = {window.step for window in expected.values() if window.stage == TRAIN} & watched
    if name != "inside a module":  # in whose midst nothing can be put on again
        assert trained - {last.step} == steps_to_watch - {last.step}
    assert 0 in indices
    assert seen.recorder.steps.completed == max(window.step for window in expected.values())


@pytest.mark.parametrize("name", PROGRAMS)
def test_training_is_the_same(name: str) -> None:
    def stream() -> list[int]:
        return torch.get_rng_state().tolist()

    torch.manual_seed(0)
    PROGRAMS[name]()
    plain = stream()
    record(name, lambda step: step % 3 == 0)
    assert stream() == plain


@pytest.mark.parametrize("name", [*GOOD, *BUGGY])
@given(st.sets(st.integers(1, MAX_STEPS)))
@settings(max_examples=5)
def test_no_verdict_is_worse_than_that_of_the_whole_run(name: str, watched: set[int]) -> None:
    """The events of a watched step do not depend on the sampling of other steps."""
    full = judged(rules(), in_full(name))
    in_whole = {(violation.invariant.id, violation.window) for violation in full.violations}
    for demand in (EVERYTHING, demand_of(rules())):
        seen = record(name, lambda step: step in watched, demand)
        outcome = judged(rules(), seen.windows)
        assert {(violation.invariant.id, violation.window) for violation in outcome.violations} <= in_whole


@pytest.mark.parametrize("name", GOOD)
@pytest.mark.parametrize("interval", [2, 3, 5])
def test_a_clean_program_stays_clean(name: str, interval: int) -> None:
    seen = record(name, lambda step: in_sample(step, interval), demand_of(rules()))
    assert judged(rules(), seen.windows).violations == []
