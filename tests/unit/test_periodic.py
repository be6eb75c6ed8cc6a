"""`Periodic` on hand-written windows: good and bad cases, and legitimate exceptions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sample_windows import SCHEDULE, UPDATE, Script, occasions, verdicts
from traincheck.relations.periodic.relation import Periodic
from traincheck.relations.periodic.update_intervals import ESTABLISHED, LONGEST
from traincheck.vocab.events import MODULE
from traincheck.vocab.facts import facts, merged, value_of
from traincheck.vocab.occasion import Occasion, Property, Subject


def of(script: Script, subject: Subject) -> list[Occasion]:
    return occasions(Periodic, script.windows, subject)


# -- lessons -----------------------------------------------------------------------------------------------------------

BACKWARD, FORWARD = "torch.autograd.backward", "torch.nn.Module.forward"
TRAINING = facts(grad_mode="on", outermost=True, parametric=True, training=True)


def lessons(script: Script) -> list[bool]:
    return verdicts(of(script, Subject(UPDATE, "lesson")), Property("learns from", BACKWARD))


def called(script: Script, **other: Any) -> None:
    script.call("train.Net.forward", FORWARD, receiver="Net", kind=MODULE, context=merged(TRAINING, **other))


def test_an_update_follows_a_backward_or_has_gradients_otherwise() -> None:
    script = Script()
    for grads, backwards in (("some", 1), ("some", 3), ("none", 1), ("some", 0), ("zero", 0), ("none", 0)):
        script.window()
        called(script)
        for _ in range(backwards):
            script.call(BACKWARD)
        script.step(context=facts(grads=grads))
    assert lessons(script) == [True, True, True, True, True, False]


def test_an_update_that_no_model_was_called_for_is_not_judged() -> None:
    script = Script().window()
    script.step(context=facts(grads="none"))  # some are made to set a schedule forward
    for other in ({"training": False}, {"grad_mode": "off"}, {"outermost": False}, {"parametric": False}):
        called(script, **other)
        script.step(context=facts(grads="unused"))
    assert lessons(script) == []
    called(script)
    script.step(context=facts(grads="unused"))
    assert lessons(script) == [False]


def test_closure_calls_come_before_the_update() -> None:
    script = Script().window()
    seq = script.step(receiver="LBFGS", context=facts(closure=True, grads="none"))
    called(script)
    script.call(BACKWARD, inside=seq)
    (window,) = script.windows
    update = window.calls[0]._replace(end=99)
    script_of = [*window.calls[1:], update]
    window = replace(window, calls=tuple(sorted(script_of, key=lambda call: call.seq)))
    assert verdicts(occasions(Periodic, [window], Subject(UPDATE, "lesson")), Property("learns from", BACKWARD)) == [
        True
    ]


def test_the_first_update_after_a_gap_is_not_judged() -> None:
    script = Script()
    for _ in range(4):
        script.window()
        called(script)
        script.step(context=facts(grads="unused"))
    first, _, *rest = script.windows
    judged = occasions(Periodic, [first, *rest], Subject(UPDATE, "lesson"))
    assert [occasion.seq for occasion in judged] == [first.calls[1].seq, rest[1].calls[1].seq]


# -- counters --------------------------------------------------------------------------------------------------------

GROWS = Property("grows by one per", "Optimizer.step")


def counted(*counts: int, attribute: str = "step", grads: str = "some") -> Script:
    script = Script()
    for count in counts:
        reads = (f"optimizer_state.{attribute}", "Adam", count)
        script.window().step(reads, receiver="Adam", context=facts(grads=grads))
    return script


def test_the_count_of_an_optimizer_grows_by_one() -> None:
    subject = Subject("optimizer_state.step", "counter")
    assert verdicts(of(counted(1, 2, 3), subject), GROWS) == [True, True]
    assert verdicts(of(counted(1, 1, 3, 4), subject), GROWS) == [False, False, True]
    (occasion,) = of(counted(1, 2, grads="mixed"), subject)
    assert value_of(occasion.context, "grads") == "mixed" and occasion.variables == ("Adam",)


def test_a_parameter_that_joins_late_counts_late() -> None:
    lowest = Subject("optimizer_state.lowest_step", "counter")
    assert verdicts(of(counted(5, 1, 2, attribute="lowest_step"), lowest), GROWS) == [True]
    assert verdicts(of(counted(5, 5, attribute="lowest_step"), lowest), GROWS) == [False]
    # An expert that gets no gradient in this step stands still.
    assert verdicts(of(counted(5, 5, attribute="lowest_step", grads="mixed"), lowest), GROWS) == []


def test_a_loaded_state_counts_from_anywhere() -> None:
    script = Script()
    script.window().step(("optimizer_state.step", "Adam", 3), receiver="Adam")
    script.call("torch.optim.Optimizer.load_state_dict", receiver="Adam")
    script.window().step(("optimizer_state.step", "Adam", 100), receiver="Adam")
    script.window().step(("optimizer_state.step", "Adam", 101), receiver="Adam")
    assert verdicts(of(script, Subject("optimizer_state.step", "counter")), GROWS) == [True]


def test_two_optimizers_count_each_for_itself() -> None:
    script = Script()
    for first, second in ((1, 11), (2, 12)):
        script.window().step(("optimizer_state.step", "Adam", first), receiver="Adam")
        script.step(("optimizer_state.step", "Adam#2", second), receiver="Adam#2")
    assert verdicts(of(script, Subject("optimizer_state.step", "counter")), GROWS) == [True, True]


def test_a_scheduler_counts_steps_unless_given_the_epoch() -> None:
    subject, grows = Subject("scheduler.last_epoch", "counter"), Property("grows by one per", "LRScheduler.step")
    script = Script().window()
    for count in (1, 2, 2):
        script.schedule(("scheduler.last_epoch", "StepLR", count))
    script.schedule(("scheduler.last_epoch", "StepLR", 7), args=facts(epoch=7))
    assert verdicts(of(script, subject), grows) == [True, False]


# -- rhythms ---------------------------------------------------------------------------------------------------------


def rhythm(*changes: bool) -> list[bool]:
    """Return the verdicts on parameters that change in these steps (and in one before)."""
    script = Script()
    for changed in (False, True, *changes):
        script.window().step(changes=[{"changed": changed}])
    return verdicts(of(script, Subject("parameter.data", "rhythm")), Property("keeps its rhythm", "parameter.data"))


@pytest.mark.parametrize("every", [1, 2, 5])
def test_an_established_interval_must_continue(every: int) -> None:
    period = [*[False] * (every - 1), True]
    assert rhythm(*period * ESTABLISHED) == []
    assert rhythm(*period * (ESTABLISHED + 2)) == [True, True]


def test_a_rhythm_is_broken_once() -> None:
    period = [False, True]
    assert rhythm(*period * (ESTABLISHED + 1), *[False] * 10) == [True, False]  # it comes no more
    assert rhythm(*period * (ESTABLISHED + 1), True, *period) == [True, False]  # it comes too early


def test_irregular_events_have_no_interval() -> None:
    assert rhythm(*[True, False, False, True, True, False] * 4) == []
    assert rhythm(*([False] * LONGEST + [True]) * (ESTABLISHED + 2)) == []


def test_evaluations_do_not_count_as_steps() -> None:
    script = Script()
    for number in range(ESTABLISHED + 3):
        script.window().step(changes=[{}])
        if number % 2:
            script.window("eval")
    script.window().step(changes=[{"changed": False}])
    occasions = of(script, Subject("parameter.data", "rhythm"))
    assert verdicts(occasions, Property("keeps its rhythm", "parameter.data")) == [True, True, False]
    assert Periodic.is_optional_practice(
        Property("keeps its rhythm", "parameter.data")
    ) and not Periodic.is_optional_practice(GROWS)


def test_an_update_that_need_not_show_breaks_no_rhythm() -> None:
    script = Script()
    for lr in ["positive"] * (ESTABLISHED + 2) + ["zero"]:
        script.window().step(changes=[{"changed": lr == "positive", "context": facts(lr=lr)}])
    assert verdicts(
        of(script, Subject("parameter.data", "rhythm")), Property("keeps its rhythm", "parameter.data")
    ) == [True]


# -- progress --------------------------------------------------------------------------------------------------------

MOVES, CLEARED = Subject("parameter.data", "step"), Subject("parameter.grad", "step")
HELD, UNHELD = facts(held="this", grad="some", lr="positive"), facts(held="none", grad="some", lr="none")
BACKWARD = "torch.autograd.backward"


def moved(script: Script) -> list[bool]:
    return verdicts(of(script, MOVES), Property("moves", "parameter.data", "changes"))


def test_a_parameter_with_a_gradient_changes_in_the_step() -> None:
    script = Script().window()
    script.step(changes=[{"variable": "Net.a", "context": HELD}])
    script.step(changes=[{"variable": "Net.b", "changed": False, "context": HELD}])
    occasions = of(script, MOVES)
    assert moved(script) == [True, False] and occasions[1].variables == ("Net.b",)
    for excuse in (facts(held="this", grad="zero", lr="positive"), facts(held="this", grad="some", lr="zero")):
        script = Script().window()
        script.step(changes=[{"changed": False, "context": excuse}])
        assert moved(script) == []


@pytest.mark.parametrize("written", [True, False])
def test_a_copy_that_is_written_back_counts_as_the_step(written: bool) -> None:
    """The optimizer holds the master copy; its change to the model's parameter is recorded after the step."""
    script = Script().window()
    script.step(changes=[{"variable": "Net.a", "changed": False, "context": UNHELD}])
    late = facts(held="none", lr="positive", lost=False)
    script.between({"variable": "Net.a", "changed": written, "context": late})
    assert moved(script) == [written]


@pytest.mark.parametrize(("held", "cleared"), [("this", True), ("this", False), ("none", True), ("none", False)])
def test_a_gradient_is_cleared_before_it_is_used_again(held: str, cleared: bool) -> None:
    script = Script()
    for step in range(2):
        script.window()
        before = "none" if cleared or not step else "some"
        grad = {"variable": "Net.a", "attribute": "grad", "before": before, "after": "some"}
        script.call(BACKWARD, changes=[grad])
        script.step(changes=[{"variable": "Net.a", "context": facts(held=held, grad="some", lr="positive")}])
    prop = Property("is cleared before its next use", "parameter.grad", "is cleared")
    assert verdicts(of(script, CLEARED), prop) == [cleared]


# -- passes ----------------------------------------------------------------------------------------------------------

REACHES = Property("reaches", "loader.length")
BATCHES = Subject("loader.batches", "pass")


def epochs(
    *batches: int, length: int = 3, orders: tuple[int, ...] = (), evaluates: bool = True, trains: bool = True
) -> Script:
    """Epochs with this number of fetched batches, each followed by a complete validation."""
    script = Script()
    for number, fetched in enumerate(batches):
        script.window().iterate("DataLoader#1", length)
        for _ in range(fetched):
            if trains:
                script.step()
            script.window()
        order = orders[number] if orders else None
        script.exhaust(fetched, order=order, last=fetched == length)
        if evaluates:
            script.window("eval").iterate("DataLoader#2", 1)
            script.exhaust(1, "DataLoader#2")
    return script


def test_a_pass_that_is_cut_short_after_others_went_to_their_end() -> None:
    occasions = [occasion for occasion in of(epochs(3, 3, 3, 1), BATCHES) if occasion.variables == ("DataLoader#1",)]
    assert verdicts(occasions, REACHES) == [True, False]
    assert all(value_of(occasion.context, "updated") is True for occasion in occasions)
    assert all(value_of(occasion.context, "last_batch") is None for occasion in occasions)  # that would be the answer


def test_loaders_left_early_from_the_start_are_allowed() -> None:
    assert (
        verdicts([occasion for occasion in of(epochs(1, 3, 1, 3), BATCHES) if "#1" in occasion.variables[0]], REACHES)
        == []
    )


def test_step_counting_loops_may_stop_anywhere() -> None:
    assert of(epochs(3, 3, 3, 1, evaluates=False), BATCHES) == []


@pytest.mark.parametrize("api", ["torch.save", SCHEDULE])
def test_work_after_each_epoch_implies_epochs(api: str) -> None:
    script = Script()
    for batches in (3, 3, 1):
        script.window().iterate("DataLoader#1", 3)
        script.exhaust(batches, last=batches == 3)
        script.call(api)
    (occasion,) = of(script, BATCHES)
    assert occasion.failed == {REACHES} and value_of(occasion.context, "updated") is False


def test_an_epoch_abandoned_at_the_next_start() -> None:
    script = epochs(3, 3)
    left: Any = ("loader.batches", "DataLoader#1", 2, "live", facts(last_batch=False))
    script.window().iterate("DataLoader#1", 3)
    script.step()
    script.window().iterate("DataLoader#1", 3, left)
    script.step()
    script.window().exhaust(3)
    occasions = [occasion for occasion in of(script, BATCHES) if occasion.variables == ("DataLoader#1",)]
    assert verdicts(occasions, REACHES) == [False]  # and nothing is said once one was cut


def test_reading_data_before_any_update_is_no_epoch() -> None:
    script = Script()
    script.window("setup").iterate("DataLoader#1", 3)
    script.exhaust(1, last=False)
    for batches in (3, 3, 1):
        script.window().iterate("DataLoader#1", 3)
        script.step()
        script.window().exhaust(batches, last=batches == 3)
        script.call("torch.save")
    assert verdicts(of(script, BATCHES), REACHES) == [False]


def test_the_order_of_a_look_is_not_compared_with_that_of_a_pass() -> None:
    script = Script()
    script.window("setup").iterate("DataLoader#1", 3)
    script.exhaust(1, order=1, last=False)
    script.window().iterate("DataLoader#1", 3)
    script.step()
    script.window().exhaust(3, order=1)
    assert of(script, Subject("loader.order", "pass")) == []


def test_a_training_loader_is_reshuffled() -> None:
    subject, differs = Subject("loader.order", "pass"), Property("differs between passes", "loader.order")
    assert verdicts(of(epochs(3, 3, 3, orders=(1, 2, 2)), subject), differs) == [True, False]
    assert of(epochs(3, 3, orders=(1, 1), trains=False), subject) == []  # evaluations keep their order
    assert Periodic.is_optional_practice(differs)


def test_a_look_at_the_first_batch_is_no_pass_to_compare_with() -> None:
    subject, differs = Subject("loader.order", "pass"), Property("differs between passes", "loader.order")

    def looking(*orders: int) -> Script:
        script = Script()
        for before, order in zip((orders[0], *orders), orders, strict=False):
            script.window().iterate("DataLoader#1", 3)
            script.exhaust(1, order=before, last=False)  # the sampler gets its epoch after the look
            script.iterate("DataLoader#1", 3)
            script.step()
            script.window().exhaust(3, order=order)
        return script

    assert verdicts(of(looking(1, 2, 3), subject), differs) == [True, True]
    assert verdicts(of(looking(1, 1, 2), subject), differs) == [False, True]


# -- horizons --------------------------------------------------------------------------------------------------------


def scheduled(*rates: float, total: int | None, ends: bool = True) -> Script:
    script = Script()
    for number, rate in enumerate(rates, 1):
        reads: list[Any] = [("scheduler.lr", "StepLR", rate), ("scheduler.last_epoch", "StepLR", number)]
        if number == 1 and total is not None:
            reads.append(("scheduler.total", "StepLR", total, "announced"))
        script.window().schedule(*reads)
    script.window("end")
    if ends:
        script.read("run.steps", "run", len(rates))
    return script


def test_a_learning_rate_rests_after_its_horizon() -> None:
    subject, within = Subject("scheduler.last_epoch", "horizon"), Property("stays within", "scheduler.total")
    assert verdicts(of(scheduled(0.5, 0.4, 0.3, total=3), subject), within) == [True] * 3
    # A warm-up is over after its steps, and the rate stays.
    assert verdicts(of(scheduled(0.1, 0.2, 0.2, 0.2, total=2), subject), within) == [True] * 4
    # A cosine that was made for two epochs and is stepped in each batch comes up again.
    assert verdicts(of(scheduled(0.5, 0.0, 0.5, 1.0, total=2), subject), within) == [True, True, False, False]
    assert of(scheduled(0.5, 0.4, total=None), subject) == []


def test_a_scheduler_reaches_its_planned_length() -> None:
    subject, reaches = Subject("scheduler.last_epoch", "run"), Property("reaches", "scheduler.total")
    assert verdicts(of(scheduled(*[0.1] * 5, total=5), subject), reaches) == [True]
    assert verdicts(of(scheduled(*[0.1] * 5, total=50), subject), reaches) == [False]
    assert of(scheduled(*[0.1] * 5, total=50, ends=False), subject) == []  # the run goes on
    assert Periodic.is_optional_practice(reaches) and not Periodic.is_optional_practice(REACHES)


# -- gaps ------------------------------------------------------------------------------------------------------------


def test_counts_are_reset_when_windows_are_dropped() -> None:
    windows = counted(1, 2, 3).windows
    assert occasions(Periodic, [windows[0], windows[2]], Subject("optimizer_state.step", "counter")) == []
    windows = scheduled(0.5, 0.4, 0.3, total=2).windows
    assert occasions(Periodic, windows[1:], Subject("scheduler.last_epoch", "horizon")) == []
