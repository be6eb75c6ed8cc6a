"""To look closer in mid-run changes neither the training nor any name, number or verdict, and leaves nothing behind."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import nn
from torch._dynamo import convert_frame
from torch.utils.data import DataLoader, TensorDataset

from observed_process import TESTS
from recorded_runs import write_run
from small_trainings import process_state
from traincheck.checking.engine import Engine, demand_of
from traincheck.inference.learn import learn
from traincheck.invariants.book import Book
from traincheck.relations.parts import UPDATE
from traincheck.runtime.control import State
from traincheck.runtime.launching.import_hooks import when_imported
from traincheck.runtime.recording.burst_recording import MAX_TIMES, BurstRecorder
from traincheck.sources.attachment import Attachment, CannotReattach
from traincheck.sources.recording.call_sites import CallSites
from traincheck.sources.recording.listener import RecorderListener
from traincheck.sources.recording.recorder import Recorder
from traincheck.sources.recording.step_tracker import Cut
from traincheck.sources.registry import build_all
from traincheck.testing.demand_filter import observed
from traincheck.vocab.builtin_rules import CUT_OFF, PARAMETER
from traincheck.vocab.call_kinds import kinds_of
from traincheck.vocab.demand import EVERYTHING, NOTHING, Demand
from traincheck.vocab.events import Window

SCRIPT = "train.py"


class Looking(RecorderListener):
    """A recorder with sources for a demand, and a closer as a session has it."""

    def __init__(self, demand: Demand, steps: int = 3) -> None:
        self.windows: list[Window] = []
        self.faults: list[str] = []
        self.recorder = recorder = Recorder(
            CallSites((TESTS,)), self.windows.append, lambda source, error: self.faults.append(f"{source}: {error!r}")
        )
        built = build_all(recorder, lambda: None, when_imported)
        self.attachment = Attachment(built.sources, demand, recorder, lambda: bool(built.call_context.training_flags))
        self.state = State()
        self.closer = BurstRecorder(self.attachment, recorder, self.state, steps)
        recorder.add_listener(self)

    def between_calls(self) -> None:
        self.closer.at_rest()

    def window_closed(self, cut: Cut) -> None:
        self.closer.at_border(cut.step, cut.stage)


@contextmanager
def looking(demand: Demand, steps: int = 3) -> Iterator[Looking]:
    listener = Looking(demand, steps)
    try:
        yield listener
    finally:
        listener.recorder.finish()
        listener.attachment.undo.close()


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8)
        self.drop = nn.Dropout(0.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(torch.tanh(self.norm(x)))


def scale(outputs: torch.Tensor, factor: float) -> torch.Tensor:
    return outputs * factor


def train(
    seed: int, after: Callable[[int], object] = lambda step: None, *, epochs: int = 4, clears: bool = True
) -> tuple[list[float], list[torch.Tensor]]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 8), Block(), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    x = torch.randn(16, 4)
    loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=4, shuffle=True)
    losses: list[float] = []
    for _ in range(epochs):
        model.train()
        for batch, target in loader:
            if clears or len(losses) < 8:
                optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                outputs = scale(model(batch), 0.5)
            loss = nn.functional.mse_loss(outputs.float(), target)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.item())
            after(len(losses))
        schedule.step()
        model.eval()
        with torch.no_grad():
            losses.append(scale(model(x), 0.5).sum().item())
        losses.pop()
        model.load_state_dict(model.state_dict())
    return losses, [value.clone() for value in (*model.state_dict().values(), torch.rand(3))]


def same(first: tuple[list[float], list[torch.Tensor]], second: tuple[list[float], list[torch.Tensor]]) -> bool:
    return first[0] == second[0] and all(map(torch.equal, first[1], second[1]))


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Book:
    home = tmp_path_factory.mktemp("good")
    for seed in (1, 2, 3):
        with looking(EVERYTHING) as seen:
            train(seed)
        write_run(home / str(seed), SCRIPT, seen.windows, started=f"2026-01-0{seed}T03:04:05+00:00")
    return learn([home / str(seed) for seed in (1, 2, 3)]).book


def demands(book: Book) -> dict[str, Demand]:
    """The demands of the whole book, and of parts of it."""
    rules = book.invariants
    return {
        "all": demand_of(rules),
        "without functions": demand_of(rule for rule in rules if "functional" not in rule.sentence),
        "few": demand_of(rules[::7]),
        "nothing": NOTHING,
    }


def judged(book: Book, windows: list[Window], demand: Demand) -> tuple[object, object]:
    """Violations and counts of the rules that the demand is of."""
    rules = [rule for rule in book.invariants if demand.covers(demand_of([rule]))]
    engine = Engine(rules)
    for window in windows:
        engine.feed(window)
    tried = {name: (counts.triggered, counts.failed) for name, counts in engine.outcome.tried.items()}
    return sorted(
        (violation.step, violation.invariant.id, violation.occasions) for violation in engine.outcome.violations
    ), tried


def requested_events(windows: list[Window], demand: Demand) -> list[tuple[object, ...]]:
    """Return the demanded events, without positions."""
    events = []
    for window in windows:
        kept = observed(window, demand)
        requested = [
            call
            for call in kept.calls
            if demand.records_call((*call.levels, *kinds_of(call))) or kept.changes_of.get(call.seq)
        ]
        calls = [
            (call.levels, call.receiver, call.context, [ancestor.name for ancestor in kept.ancestors(call)])
            for call in requested
        ]
        changes = Counter((change[2:]) for change in kept.changes)
        readings = Counter(reading[2:] for reading in kept.readings)
        events.append((window.index, window.step, window.stage, calls, changes, readings))
    return events


@pytest.mark.parametrize("which", ["all", "without functions", "few", "nothing"])
@pytest.mark.parametrize("clears", [True, False], ids=["clean", "broken"])
def test_the_demand_does_not_change(which: str, clears: bool, book: Book) -> None:
    demand = demands(book)[which]
    plain = train(4, clears=clears)
    before = process_state()
    with looking(demand) as unlooked:
        assert same(train(4, clears=clears), plain)
    with looking(demand) as looked:

        def after(step: int) -> None:
            if step in (4, 11):
                looked.closer.ask(2)

        assert same(train(4, after, clears=clears), plain)
    assert process_state() == before
    assert looked.faults == []
    assert looked.state.full == [(6, 7), (13, 14)] and not looked.attachment.records_everything
    assert requested_events(looked.windows, demand) == requested_events(unlooked.windows, demand)
    assert judged(book, looked.windows, demand) == judged(book, unlooked.windows, demand)


def test_the_windows_are_full_and_those_after_them_are_not(book: Book) -> None:
    with looking(EVERYTHING) as all_told:
        train(4)
    with looking(demands(book)["few"]) as looked:
        train(4, lambda step: looked.closer.ask(3) if step == 4 else None)
    calls = {
        window.step: Counter(call.name for call in window.calls)
        for window in all_told.windows
        if window.stage == "train"
    }
    for window in looked.windows:
        if window.stage == "train":
            now = Counter(call.name for call in window.calls)
            if window.step in (6, 7, 8):
                assert now == calls[window.step], window.step
            if window.step in (1, 2, 3, 4, 10, 11, 12):
                assert now.total() < calls[window.step].total() / 2, window.step


def test_a_run_looks_closer_by_itself_once_for_a_rule_and_a_few_times_in_all() -> None:
    with looking(NOTHING, steps=1) as looked:

        def after(step: int) -> None:
            looked.closer.violated((f"rule {step // 2}",))

        train(4, after, epochs=6)
    assert sum(last - first + 1 for first, last in looked.state.full) == MAX_TIMES


def test_zero_steps_record_nothing() -> None:
    with looking(NOTHING, steps=0) as looked:
        train(4, lambda step: looked.closer.violated(("rule",)))
    assert looked.state.full == []


def test_an_open_region_is_recorded_whole(book: Book) -> None:
    """One that is entered while all is observed, and left when it is not, keeps the calls in it together."""
    with looking(demands(book)["few"]) as looked:
        torch.manual_seed(0)
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def steps(count: int) -> None:
            for _ in range(count):
                optimizer.zero_grad()
                model(torch.ones(2, 4)).sum().backward()
                optimizer.step()

        steps(2)
        looked.closer.ask(2)
        steps(1)
        with torch.autocast("cpu", torch.bfloat16):
            steps(6)
        steps(3)
    assert looked.faults == [] and looked.state.full == [(3, 4)]
    last = [window for window in looked.windows if window.stage == "train"][-1]
    assert not any(call.parent >= 0 and call.parent not in last.by_seq for call in last.calls)


# -- where it waits, or does not -------------------------------------------------------------------------------------


class Quiet(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def test_it_waits_while_the_program_is_inside_a_mode_of_its_own() -> None:
    with looking(NOTHING) as looked:
        looked.closer.ask(2)
        with Quiet() as mode:
            train(4, epochs=1)
            assert torch.overrides._get_current_function_mode_stack() == [mode]
        assert looked.state.full == []
        train(5, epochs=2)
        assert len(looked.state.full) == 1
    assert torch.overrides._get_current_function_mode_stack() == []


def test_it_waits_where_a_mode_was_entered_since() -> None:
    with looking(NOTHING) as looked:
        looked.closer.ask(1)
        mode = Quiet()

        def after(step: int) -> None:
            if step == 2:
                mode.__enter__()
            if step == 7:
                mode.__exit__(None, None, None)

        train(4, after)
        assert looked.state.full == [(2, 2)] or looked.state.full
        assert torch.overrides._get_current_function_mode_stack() == [] and not looked.attachment.records_everything


def test_it_is_declined_in_another_thread() -> None:
    with looking(NOTHING) as looked:
        thread = threading.Thread(target=train, args=(4, lambda step: looked.closer.ask(1)))
        thread.start()
        thread.join()
    assert looked.state.full == []
    assert looked.state.remarks == [
        "burst recording is not available: the program trains in another thread than the one that imported torch"
    ]


def test_a_burst_is_declined_if_the_program_replaced_a_wrapped_function() -> None:
    original = torch.nn.utils.clip_grad_norm_
    try:
        with looking(EVERYTHING) as looked:
            ours = torch.nn.utils.clip_grad_norm_
            torch.nn.utils.clip_grad_norm_ = lambda *a, **k: ours(*a, **k)  # type: ignore[assignment]
            with pytest.raises(CannotReattach, match=r"replaced torch\.nn\.utils"):
                looked.attachment.record_everything(True)
    finally:
        torch.nn.utils.clip_grad_norm_ = original


@pytest.mark.parametrize("demand", [NOTHING, EVERYTHING], ids=["nothing", "everything"])
def test_the_sampling_gate_does_not_grow_with_reattachments(demand: Demand) -> None:
    with looking(demand) as looked:
        gate = looked.recorder.sampling_gate
        sizes = []
        for everything in (True, False) * 3:
            looked.attachment.record_everything(everything)
            sizes.append((len(gate._suspendables), len(gate._resets), len(gate._repeats)))
        assert sizes == sizes[:2] * 3
    assert not gate._suspendables


def test_sources_are_reattached_while_hooks_are_suspended() -> None:
    with looking(EVERYTHING) as looked:
        gate = looked.recorder.sampling_gate
        gate.suspend()
        looked.attachment.record_everything(True)
        assert not looked.recorder.profiler.suspended
        assert gate.resume()
        train(1)
    assert looked.windows and looked.faults == []


def test_a_burst_after_the_first_step_loses_no_parameters_that_are_cut_off() -> None:
    demand = Demand.of_calls(UPDATE) | Demand.of_readings(f"{PARAMETER}.{CUT_OFF}")
    with looking(demand) as looked:
        first, last = nn.Linear(4, 8), nn.Linear(8, 1)
        optimizer = torch.optim.SGD([*first.parameters(), *last.parameters()], lr=0.1)
        for step in range(3):
            optimizer.zero_grad()
            last(first(torch.randn(8, 4)).detach()).square().mean().backward()
            optimizer.step()
            if step == 0:
                looked.attachment.record_everything(True)
    found = {r.variable for w in looked.windows for r in w.readings if (r.kind, r.attribute) == (PARAMETER, CUT_OFF)}
    assert found == {"Linear.weight", "Linear.bias"}


def test_bursts_cause_no_recompilation() -> None:
    def trained(ask: Callable[[int], object]) -> tuple[list[float], int]:
        torch._dynamo.reset()
        torch.manual_seed(0)
        before = sum(convert_frame.FRAME_COMPILE_COUNTER.values())
        model = torch.compile(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)), backend="eager")
        optimizer = torch.optim.Adam(model.parameters())
        step_on, losses = torch.compile(lambda: optimizer.step(), backend="eager"), []
        for step in range(1, 10):
            optimizer.zero_grad()
            loss = model(torch.randn(8, 4)).square().mean()
            loss.backward()
            step_on()
            losses.append(loss.item())
            ask(step)
        return losses, sum(convert_frame.FRAME_COMPILE_COUNTER.values()) - before

    alone = trained(lambda step: None)
    with looking(NOTHING) as looked:
        assert trained(lambda step: looked.closer.ask(3) if step == 4 else None) == alone
    torch._dynamo.reset()
    assert looked.state.full == [(5, 7)] and looked.faults == []


def test_a_burst_waits_for_the_end_of_a_call() -> None:
    with looking(NOTHING) as looked:
        seen: list[str] = []

        class Asks(nn.Linear):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                try:
                    looked.attachment.record_everything(True)
                except CannotReattach as error:
                    seen.append(str(error))
                return super().forward(x)

        Asks(2, 2)(torch.ones(1, 2))
    assert seen == ["a call is under way"]


def test_a_profiler_of_the_program_stays() -> None:
    if sys.version_info >= (3, 12):
        pytest.skip("sys.monitoring takes no profiler's place")
    with looking(NOTHING) as looked:

        def profiler(frame: object, event: str, arg: object) -> None: ...

        sys.setprofile(profiler)
        try:
            train(4, lambda step: looked.closer.ask(2) if step == 3 else None)
            assert sys.getprofile() is profiler
        finally:
            sys.setprofile(None)
    assert looked.state.full


def test_loader_workers_continue(tmp_path: Path, book: Book) -> None:
    x = torch.randn(64, 4)
    with looking(demands(book)["all"]) as looked:
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for number, (batch,) in enumerate(DataLoader(TensorDataset(x), batch_size=4, num_workers=2)):
            if number == 5:
                looked.closer.ask(2)
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()
    assert looked.faults == [] and looked.state.full
