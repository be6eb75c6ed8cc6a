"""In unwatched steps, costly hooks are suspended; afterwards sources reset, and counts continue."""

from __future__ import annotations

import sys
import threading
import types
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.modules import module as hooks
from torch.utils.data import DataLoader

from loops import loader, net, sgd, work
from observed_process import Seen, observing
from traincheck.sources.recording import recorder
from traincheck.sources.recording.sampling_gate import SamplingGate
from traincheck.vocab.builtin_rules import NEVER_STEPPED
from traincheck.vocab.demand import EVERYTHING
from traincheck.vocab.events import NO_CALL, TRAIN

SCHEDULE = "torch.optim.lr_scheduler.LRScheduler.step"


def only(*steps: int) -> Callable[[int], bool]:
    return lambda step: step in steps


def readings(seen: Seen, step: int, kind: str) -> set[tuple[str, str]]:
    """The variables and attributes that were read in the training window of a step."""
    return {
        (reading.variable, reading.attribute)
        for window in seen.windows
        if (window.step, window.stage) == (step, TRAIN)
        for reading in window.readings
        if reading.kind == kind
    }


def installed_now() -> tuple[int, int, int, bool]:
    """Global hooks of modules, modes, and whether a profiler is set (before Python 3.12)."""
    modes = len(torch.overrides._get_current_function_mode_stack())
    profiler = sys.version_info < (3, 12) and sys.getprofile() is not None
    return len(hooks._global_forward_pre_hooks), len(hooks._global_forward_hooks), modes, profiler


class HookCounter(nn.Module):
    """Records which hooks are installed while it is called."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 1)
        self.installed: list[tuple[int, int, int, bool]] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.installed.append(installed_now())
        return self.inner(x)


def test_costly_hooks_are_suspended_in_steps_that_are_not_watched() -> None:
    before = installed_now()
    with observing(watches=only(1, 4)) as seen:
        model = HookCounter()
        optimizer = sgd(model)
        for x in loader(6):
            work(model, optimizer, x[0])
    assert installed_now() == before
    profiled = sys.version_info < (3, 12)
    full, bare = (1, 1, 1, profiled), (0, 0, 0, False)  # one hook waits for the first call of a step
    assert model.installed == [full, bare, bare, full, bare, bare]
    assert [window.step for window in seen.windows if window.stage == TRAIN] == [1, 4]


def test_the_waiting_hook_is_suspended_and_not_registered_again_in_each_step() -> None:
    handles, hook_counts = [], []
    with observing(watches=only(1)):
        model, table = net(), hooks._global_forward_pre_hooks
        optimizer = sgd(model)
        for x in loader(6):
            work(model, optimizer, x[0])
            handles.append(torch.utils.hooks.RemovableHandle.next_id)
            hook_counts.append(len(table))
    assert len(set(handles[1:])) == 1 and hook_counts == [1] * 6
    assert not table


def test_a_suspended_hook_does_not_run_for_externally_reported_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of compiled models are reported this way."""
    forwards: list[int] = []
    with observing(watches=only(1)) as seen:
        model, x = net(), next(iter(loader(1)))[0]
        optimizer, outside = sgd(model), seen.recorder.hooks
        for _ in range(3):
            work(model, optimizer, x)
        monkeypatch.setattr(seen.recorder.steps, "forward", lambda seq, training, grad: forwards.append(seq))
        outside.before_module(model, (x,), {})  # it waits for this one
        monkeypatch.undo()
        loss = model(x).sum()
        monkeypatch.setattr(seen.recorder.steps, "forward", lambda seq, training, grad: forwards.append(seq))
        outside.before_module(model, (x,), {})
        monkeypatch.undo()
        loss.backward()
        optimizer.step()
    assert len(forwards) == 1 and seen.faults == []


def test_a_mode_that_the_program_enters_in_a_gap_stays_on_top() -> None:
    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: object, types: object, args: object = (), kwargs: object = None) -> object:
            return func(*args, **(kwargs or {}))  # type: ignore[operator]

    stack = torch.overrides._get_current_function_mode_stack
    before = stack()
    model, (x,) = net(), next(iter(loader(1)))
    with observing(watches=only(1, 4, 5)) as seen:
        optimizer = sgd(model)
        for _ in range(3):
            work(model, optimizer, x)
        with Mode() as mode:
            for _ in range(3):
                work(model, optimizer, x)
                assert stack()[-1] is mode and len(stack()) == len(before) + 2
        work(model, optimizer, x)
        assert stack() == before
    assert stack() == before
    names = {window.step: {call.name for call in window.calls} for window in seen.windows if window.stage == TRAIN}
    assert names.keys() == {1, 4, 5} and all("torch.nn.functional.linear" in calls for calls in names.values())


def test_a_default_device_that_is_set_in_a_gap_stays_at_the_bottom() -> None:
    try:
        with observing(watches=only(1, 5)) as seen:
            model = net()
            optimizer = sgd(model)
            for step in range(1, 8):
                if step == 3:
                    torch.set_default_device("cpu")
                work(model, optimizer)
                if step == 6:
                    torch.set_default_device(None)
    finally:
        torch.set_default_device(None)
    assert seen.faults == []
    assert [window.step for window in seen.windows if window.stage == TRAIN] == [1, 5]


def test_a_profiler_of_the_program_is_not_replaced() -> None:
    if sys.version_info >= (3, 12):
        pytest.skip("sys.monitoring takes no profiler's place")

    def profiler(frame: types.FrameType, event: str, arg: object) -> None: ...

    model = net()
    with observing(watches=only(1, 5)):
        optimizer = sgd(model)
        for _ in range(1, 4):
            work(model, optimizer)
        sys.setprofile(profiler)
        try:
            for _ in range(4, 8):
                work(model, optimizer)
                assert sys.getprofile() is profiler
        finally:
            sys.setprofile(None)


def test_settings_are_reported_again_after_a_gap() -> None:
    with observing(watches=only(1, 2, 6, 7)) as seen:
        model = net()
        optimizer = sgd(model)
        for _ in range(8):
            work(model, optimizer)
    for kind in ("hyperparameter", "parameter"):
        assert readings(seen, 1, kind) - {("run", "steps")} == readings(seen, 6, kind) != set()
        repeated = {attribute for _, attribute in readings(seen, 7, kind)}
        assert not repeated & {"lr", "momentum", "dtype", "requires_grad"}
    assert {name for name, attribute in readings(seen, 6, "module") if attribute == "training"}


def test_settings_of_a_scheduler_are_reported_again_after_a_gap() -> None:
    with observing(watches=only(1, 2, 6, 7)) as seen:
        model = net()
        optimizer = sgd(model)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=8)
        for _ in range(8):
            work(model, optimizer)
            scheduler.step()
    assert {attribute for _, attribute in readings(seen, 6, "scheduler")} >= {"total", "span", "lr", "last_epoch"}
    assert {attribute for _, attribute in readings(seen, 7, "scheduler")} == {"lr", "last_epoch"}


def test_no_change_is_recorded_across_a_gap() -> None:
    """The program clears the gradients by hand in a step that is not watched."""
    with observing(watches=only(1, 4)) as seen:
        model = net()
        optimizer = sgd(model)
        for step in range(1, 6):
            model(torch.ones(2, 4)).square().mean().backward()
            optimizer.step()
            if step == 2:
                for parameter in model.parameters():
                    parameter.grad = None
    (window,) = (window for window in seen.windows if (window.step, window.stage) == (4, TRAIN))
    assert [change for change in window.changes if change.call == NO_CALL] == []


def test_epochs_of_a_loader_are_counted_through_gaps() -> None:
    with observing(watches=only(1, 8)) as seen:
        model = net()
        optimizer = sgd(model)
        for _ in range(2):
            for (x,) in loader(4):
                work(model, optimizer, x)
    batches = [reading.value for reading in seen.readings if (reading.kind, reading.attribute) == ("loader", "batches")]
    assert batches == [4]  # of the second epoch, which ends in step 8; the end of the first is not watched
    assert seen.faults == []


def test_regions_that_were_entered_in_a_gap_are_known() -> None:
    with observing(watches=only(1, 4)) as seen:
        model = net()
        optimizer = sgd(model)
        work(model, optimizer)
        work(model, optimizer)
        with torch.autograd.detect_anomaly(check_nan=False):
            for _ in range(3):
                work(model, optimizer)
        work(model, optimizer)
    within = {
        window.step: {dict(call.context).get("within", "") for call in window.calls if call.kind == "function"}
        for window in seen.windows
        if window.stage == TRAIN
    }
    assert within[1] == {""} and "detect_anomaly" in within[4]


def test_calls_that_are_open_across_a_gap_are_no_parents() -> None:
    """Regions are entered in watched steps and left in gaps, and the reverse."""
    with observing(watches=only(1, 3, 5)) as seen:
        model = net()
        optimizer = sgd(model)
        regions = [torch.autocast("cpu", enabled=False) for _ in range(5)]
        for number, region in enumerate(regions):
            if number:
                regions[number - 1].__exit__(None, None, None)
            region.__enter__()
            work(model, optimizer)
        regions[-1].__exit__(None, None, None)
    assert seen.faults == []
    for window in seen.windows:
        for call in window.calls:
            around = window.by_seq.get(call.parent)
            assert around is None or around.end < 0 or around.seq < call.seq < around.end


def test_another_thread_may_train_through_gaps() -> None:
    """The mode belongs to the thread that attached it: another thread cannot resume it."""

    def train() -> None:
        model = net()
        optimizer = sgd(model)
        for _ in range(6):
            work(model, optimizer)

    with observing(watches=only(3, 4, 8, 9)) as seen:
        train()
        thread = threading.Thread(target=train)
        thread.start()
        thread.join()
    assert seen.faults == []
    assert {window.step for window in seen.windows if window.stage == TRAIN} >= {3, 4}


def test_a_window_with_too_many_events_is_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    with observing() as seen:
        model = net()
        optimizer = sgd(model)
        work(model, optimizer)
        work(model, optimizer)
        with monkeypatch.context() as small:
            small.setattr(recorder, "MAX_EVENTS", 20)
            work(model, optimizer)
        work(model, optimizer)
        work(model, optimizer)
    steps = [window.step for window in seen.windows if window.stage == TRAIN]
    assert steps == [1, 4, 5]  # the window of step 2 was still open when the limit fell
    assert seen.recorder.dropped_windows == 2
    assert {"lr", "momentum"} <= {attribute for _, attribute in readings(seen, 4, "hyperparameter")}


def test_settings_are_reported_again_after_a_reset() -> None:
    with observing() as seen:
        model = net()
        optimizer = sgd(model)
        work(model, optimizer)
        work(model, optimizer)
        seen.recorder.sampling_gate.reset_sources()
        work(model, optimizer)
        work(model, optimizer)
    assert "lr" not in {attribute for _, attribute in readings(seen, 2, "hyperparameter")}
    assert "lr" in {attribute for _, attribute in readings(seen, 3, "hyperparameter")}


def test_overhead_is_counted_by_source() -> None:
    with observing(EVERYTHING, watches=only(1, 2)) as seen:
        model = net()
        optimizer = sgd(model)
        for _ in range(4):
            work(model, optimizer)
    spent = seen.recorder.meter.seconds()
    assert {"optimizers", "modules", "autograd", "functions"} <= spent.keys()
    assert all(seconds > 0 for seconds in spent.values())
    assert sum(spent.values()) == pytest.approx(seen.recorder.meter.total)
    assert seen.recorder.watched_steps == 2


def test_time_of_inner_functions_is_not_counted_twice() -> None:
    now = iter(range(1000))
    with observing() as seen:
        meter = seen.recorder.meter
        meter.clock = lambda: float(next(now))
        inner = seen.recorder.guarded("inner", lambda: None)
        outer = seen.recorder.guarded("outer", lambda: (inner(), inner()))
        outer()
    spent = meter.seconds()
    # One tick for each call of inner, three between them. From Python 3.12 on the functions of this test are observed
    # as well, which takes microseconds of the real clock.
    assert (spent["inner"], spent["outer"]) == pytest.approx((2.0, 3.0), abs=0.01)


@pytest.mark.parametrize(("sampled", "reported"), [(False, True), (True, False)])
def test_a_scheduler_may_step_while_nothing_is_watched(sampled: bool, reported: bool) -> None:
    with observing(watches=only(1) if sampled else lambda step: True) as seen:
        model, data = nn.Linear(2, 2), torch.ones(8, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        torch.optim.lr_scheduler.StepLR(optimizer, 1)
        for _ in range(3):
            for x in DataLoader(data, batch_size=2):  # type: ignore[arg-type]
                optimizer.zero_grad()
                model(x).sum().backward()
                optimizer.step()
    assert any(reading.attribute == NEVER_STEPPED for reading in seen.readings) is reported


def test_a_source_that_ends_at_a_gap_leaves_the_others_their_reset() -> None:
    gate = SamplingGate(lambda step: True)
    called: list[str] = []

    def ends() -> None:
        called.append("ends")
        gate.remove_reset(ends)

    for reset in (ends, lambda: called.append("second"), lambda: called.append("third")):
        gate.add_reset(reset, repeatable=True)
    gate.reset_sources()
    gate.repeat_reports()
    assert called == ["ends", "second", "third", "second", "third"]
