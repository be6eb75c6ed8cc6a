"""The verdicts of each relation on a few hand-written windows."""

from __future__ import annotations

import pytest

from traincheck.relations.api_sequence.relation import ESTABLISHED, APISequence
from traincheck.relations.base import possible, short, transitions
from traincheck.relations.event_contain.relation import WITHIN, EventContain
from traincheck.relations.template import RETURNS, ReturnsDtype
from traincheck.testing.readable_traces import from_text
from traincheck.vocab.events import Window
from traincheck.vocab.facts import facts, value_of
from traincheck.vocab.occasion import Occasion, Property, Subject
from traincheck.vocab.properties import CONTAINS_CALL, CONTAINS_CHANGE, PRECEDED_BY

STEP, ZERO_GRAD = "torch.optim.Optimizer.step", "torch.optim.Optimizer.zero_grad"
BACKWARD = "torch.autograd.backward"
CYCLE = Subject(STEP, "cycle")
CLEARED, FILLED = (
    Property(PRECEDED_BY, "parameter.grad", "is cleared"),
    Property(PRECEDED_BY, "parameter.grad", "is filled"),
)


def update(name: str = "SGD", *, changed: bool = True) -> str:
    return f"""
  lifecycle torch.optim.{name}.step < {STEP} receiver={name} context={{"grads":"some"}}
    change Net.w parameter.data some -> some {"changed" if changed else ""} owner={name} context={{"held":"this"}}"""


def clear(name: str = "SGD", before: str = "some") -> str:
    return f"""
  lifecycle torch.optim.{name}.zero_grad < {ZERO_GRAD} receiver={name}
    change Net.w parameter.grad {before} -> none {"changed" if before == "some" else ""} owner={name}"""


def backward(name: str = "SGD", before: str = "none") -> str:
    return f"""
  lifecycle {BACKWARD}
    change Net.w parameter.grad {before} -> some changed owner={name}"""


CLIP = """
  lifecycle torch.nn.utils.clip_grad_norm_
    change Net.w parameter.grad some -> some changed owner=SGD"""
FETCH = "\n  lifecycle torch.utils.data.DataLoader.__next__ receiver=DataLoader#1"


def windows(*steps: str) -> list[Window]:
    return from_text("".join(f"window train step={number}{step}\n" for number, step in enumerate(steps, start=1)))


def of(relation: type, windows: list[Window], subject: Subject) -> list[Occasion]:
    instance = relation()
    return [occasion for window in windows for occasion in instance.occasions(window) if occasion.subject == subject]


# -- EventContain ----------------------------------------------------------------------------------------------------


def test_a_gradient_of_zeros_that_stays_one_is_no_occasion() -> None:
    def cleared(before: str, after: str, changed: str = "") -> list[Occasion]:
        text = f"""
  lifecycle torch.optim.SGD.zero_grad < {ZERO_GRAD} receiver=SGD
    change Net.w parameter.grad {before} -> {after} {changed} owner=SGD"""
        grains = (Subject(ZERO_GRAD, "call"), Subject(ZERO_GRAD, "parameter.grad"))
        return [occasion for grain in grains for occasion in of(EventContain, windows(text), grain)]

    changes = Property(CONTAINS_CHANGE, "parameter.grad", "changes")
    assert not any(judged.held or judged.failed for judged in cleared("zero", "zero"))
    assert [changes in judged.held for judged in cleared("zero", "none", "changed")] == [True, True]
    assert [changes in (judged.failed or ()) for judged in cleared("some", "some")] == [True, True]


def test_a_call_contains_the_calls_it_makes_itself() -> None:
    windows = from_text("""
window train step=1
  module torch.nn.Sequential.forward < torch.nn.Module.forward receiver=Net
    region torch.no_grad
      module torch.nn.Linear.forward < torch.nn.Module.forward receiver=Net.0 args={"training":true}
        function torch.nn.functional.linear
""")
    (outer,) = of(EventContain, windows, Subject("torch.nn.Sequential.forward", WITHIN))
    assert outer.failed is None
    assert {prop for prop in outer.held if prop.object == "torch.nn.Module.forward"} == {
        Property(CONTAINS_CALL, "torch.nn.Module.forward"),
        Property(CONTAINS_CALL, "torch.nn.Module.forward", "training=True"),
    }
    assert "torch.nn.functional.linear" not in {prop.object for prop in outer.held}
    (inner,) = of(EventContain, windows, Subject("torch.nn.Linear.forward", WITHIN))
    assert inner.held == frozenset(), "what torch's modules call is settled by its version"
    assert of(EventContain, windows, Subject("torch.nn.functional.linear", WITHIN)) == []


def test_a_module_of_the_project_contains_functions_of_torch() -> None:
    windows = from_text("""
window train step=1
  module net.Net.forward < torch.nn.Module.forward receiver=Net
    function torch.nn.functional.relu
""")
    (occasion,) = of(EventContain, windows, Subject("net.Net.forward", WITHIN))
    assert occasion.held == {Property(CONTAINS_CALL, "torch.nn.functional.relu")}


def test_some_variable_changes_in_a_call_at_every_level() -> None:
    updates = windows(update(), update(changed=False))
    for api in ("torch.optim.SGD.step", STEP):
        good, bad = of(EventContain, updates, Subject(api))
        changes = Property(CONTAINS_CHANGE, "parameter.data", "changes")
        assert changes in good.held and changes not in (good.failed or ())
        assert changes in (bad.failed or ()) and changes not in bad.held
        assert value_of(good.context, "grads") == "some" and value_of(good.context, "stage") == "train"


def test_each_variable_around_a_call_with_its_facts() -> None:
    windows = from_text(f"""
window train step=1
  lifecycle {STEP} receiver=SGD context={{"closure":false,"grad_mode":"on"}}
    change Net.a parameter.data some -> some changed owner=SGD context={{"held":"this"}}
    change Net.b parameter.data some -> some changed owner=SGD context={{"held":"this"}}
    change Net.c parameter.data some -> some context={{"held":"none"}}
""")
    together, alone = of(EventContain, windows, Subject(STEP, "parameter.data"))
    assert (together.variables, alone.variables) == (("Net.a", "Net.b"), ("Net.c",))
    assert together.context == facts(before="some", closure=False, grad_mode="on", held="this", stage="train")
    assert Property(CONTAINS_CHANGE, "parameter.data", "changes") in together.held
    assert Property(CONTAINS_CHANGE, "parameter.data", "does not change") in alone.held
    assert Property(CONTAINS_CHANGE, "parameter.data", "changes") in (alone.failed or ())


def test_impossible_variables_are_not_judged() -> None:
    steps = windows(clear(before="none"))
    cleared = Property(CONTAINS_CHANGE, "parameter.grad", "is cleared")
    for subject in (Subject(ZERO_GRAD), Subject(ZERO_GRAD, "parameter.grad")):
        (occasion,) = of(EventContain, steps, subject)
        assert cleared not in occasion.held and cleared not in (occasion.failed or ())


def test_gradients_of_zeros_that_stay_zeros_need_no_clearing() -> None:
    windows = from_text(f"""
window train step=1
  lifecycle {ZERO_GRAD} receiver=SGD context={{"grads":"mixed"}}
    change Net.frozen parameter.grad none -> none owner=SGD
    change Net.w parameter.grad zero -> zero owner=SGD
  lifecycle {ZERO_GRAD} receiver=SGD context={{"grads":"mixed"}}
    change Net.w parameter.grad zero -> zero owner=SGD
    change Net.v parameter.grad some -> some owner=SGD
""")
    changes = Property(CONTAINS_CHANGE, "parameter.grad", "changes")
    nothing_to_clear, not_cleared = of(EventContain, windows, Subject(ZERO_GRAD))
    assert changes not in (nothing_to_clear.failed or ())
    assert changes in (not_cleared.failed or ())
    alone = of(EventContain, windows, Subject(ZERO_GRAD, "parameter.grad"))
    assert [occasion.variables for occasion in alone] == [("Net.frozen",), ("Net.v",)]


def test_changes_count_for_every_call_around_but_not_for_modules() -> None:
    windows = from_text(f"""
window train step=1
  project train.train_step
    module Net.forward < torch.nn.Module.forward receiver=Net
      lifecycle {STEP} receiver=SGD
        change Net.w parameter.data some -> some changed
""")
    (outer,) = of(EventContain, windows, Subject("train.train_step"))
    assert Property(CONTAINS_CHANGE, "parameter.data", "changes") in outer.held
    assert of(EventContain, windows, Subject("torch.nn.Module.forward")) == []


def test_a_call_that_raised_is_no_occasion() -> None:
    windows = from_text(
        f"window train step=1\n  lifecycle {STEP} receiver=SGD raised\n    change Net.w parameter.data some -> some\n"
    )
    assert list(EventContain().occasions(windows[0])) == []
    assert list(APISequence().occasions(windows[0])) == []


def test_interest_limits_the_subjects() -> None:
    steps = windows(clear() + backward() + update())
    requested = Subject(STEP)
    assert {occasion.subject for occasion in EventContain({requested}).occasions(steps[0])} == {requested}


# -- APISequence -----------------------------------------------------------------------------------------------------

GOOD = FETCH + clear() + backward() + update()


def test_the_first_call_begins_the_first_cycle() -> None:
    occasions = of(APISequence, windows(GOOD, GOOD), CYCLE)
    assert len(occasions) == 1
    assert {CLEARED, FILLED} <= set(occasions[0].held)
    assert occasions[0].variables == ("Net.w",)


def test_after_gradients_of_zeros_nothing_is_left_to_clear() -> None:
    """Two batches to a step; all samples of the second step are masked, so its gradients are zeros."""
    step = clear() + backward() + backward(before="some") + update()
    after_zeros = clear(before="zero") + backward() + backward(before="some") + update()
    uncleared = backward(before="some") + backward(before="some") + update()
    _, occasion, missed = of(APISequence, windows(step, step, after_zeros, uncleared), CYCLE)
    assert CLEARED not in (occasion.failed or ())
    assert CLEARED in (missed.failed or ())


def test_gradients_that_add_up_should_have_been_cleared() -> None:
    (occasion,) = of(APISequence, windows(GOOD, backward(before="some") + update()), CYCLE)
    assert CLEARED in (occasion.failed or ()) and CLEARED not in occasion.held


def test_gradients_that_were_cleared_should_be_filled() -> None:
    (occasion,) = of(APISequence, windows(GOOD, clear() + update()), CYCLE)
    assert FILLED in (occasion.failed or ()) and CLEARED in occasion.held


def test_gradients_written_by_hand_need_not_be_cleared() -> None:
    (occasion,) = of(APISequence, windows(GOOD, update()), CYCLE)
    assert not {CLEARED, FILLED} & ((occasion.failed or set()) | set(occasion.held))


def test_zeros_that_stay_zeros_are_no_missing_gradient() -> None:
    zeros = clear().replace("-> none", "-> zero")
    (occasion,) = of(APISequence, windows(GOOD, zeros + update()), CYCLE)
    assert CLEARED in occasion.held and FILLED not in (occasion.failed or ())
    floor = f"""
  lifecycle {BACKWARD}
    change Net.w parameter.grad zero -> zero owner=SGD"""
    (of_call,) = of(EventContain, windows(floor), Subject(BACKWARD))
    assert not of_call.held and not of_call.failed


def test_a_call_is_expected_once_it_is_established() -> None:
    fetched = Property(PRECEDED_BY, "torch.utils.data.DataLoader.__next__")
    unfetched = clear() + backward() + update()
    early = of(APISequence, windows(GOOD, GOOD, unfetched, *[GOOD] * 6), CYCLE)
    assert not any(fetched in occasion.held or fetched in (occasion.failed or ()) for occasion in early)
    steps = [*[GOOD] * (ESTABLISHED + 2), *[unfetched] * (ESTABLISHED - 1), GOOD, *[unfetched] * ESTABLISHED]
    late = of(APISequence, windows(*steps), CYCLE)
    assert [fetched in occasion.held for occasion in late[ESTABLISHED:]] == [True, False, False, True, *[False] * 3]
    failed = [fetched in (occasion.failed or ()) for occasion in late]
    assert failed == [False] * (len(late) - 1) + [True], "a loop may leave out some calls"


@pytest.mark.parametrize("training", [True, False])
def test_a_backward_without_an_update_only_looks_at_gradients(training: bool) -> None:
    """In training mode, the update is missed."""

    def step(training: bool) -> str:
        mode = f'args={{"training":{str(training).lower()}}}'
        call = f'\n  module net.Net.forward < {MODEL} receiver=Net context={{"parametric":true}} {mode}'
        return call + clear() + backward()

    cycle, trains = Subject(BACKWARD, "cycle"), Property(PRECEDED_BY, MODEL, "training=True")
    good, wrong = step(True) + update(), step(False) + update()
    steps = windows(*[good] * (ESTABLISHED + 2), *[step(training)] * 9, *[good] * 4, wrong)
    occasions = of(APISequence, steps, cycle)
    failed = {(occasion.seq, prop) for occasion in occasions for prop in occasion.failed or ()}
    assert {seq for seq, prop in failed if prop == trains} == {steps[-1].calls_named[BACKWARD][0].seq}
    looked = [step.calls_named[BACKWARD][0].seq for step in steps[ESTABLISHED + 2 :][ESTABLISHED:10]]
    assert [seq for seq, prop in sorted(failed) if prop.object == STEP] == (looked if training else [])


def test_the_order_of_two_calls_that_change_the_same_state() -> None:
    right = Property(PRECEDED_BY, ZERO_GRAD, f"then {BACKWARD}")
    wrong = Property(PRECEDED_BY, BACKWARD, f"then {ZERO_GRAD}")
    (good,) = of(APISequence, windows(GOOD, GOOD), CYCLE)
    assert right in good.held and wrong in (good.failed or ())
    (bad,) = of(APISequence, windows(GOOD, backward() + clear() + update()), CYCLE)
    assert wrong in bad.held and right in (bad.failed or ())


def test_calls_that_change_different_variables_have_no_order() -> None:
    (occasion,) = of(APISequence, windows(GOOD, GOOD), CYCLE)
    assert not any(
        "DataLoader" in f"{prop.object} {prop.detail}" for prop in {*occasion.held, *(occasion.failed or ())}
    )


def test_three_in_a_row() -> None:
    step = clear() + backward() + CLIP + update()
    (occasion,) = of(APISequence, windows(step, step), CYCLE)
    orders = [(ZERO_GRAD, BACKWARD), (BACKWARD, "torch.nn.utils.clip_grad_norm_")]
    for first, second in orders:
        assert Property(PRECEDED_BY, first, f"then {second}") in occasion.held
        assert Property(PRECEDED_BY, second, f"then {first}") in (occasion.failed or ())


def by_closure(*inside: str) -> str:
    """A step whose closure makes these calls."""
    call, change = update().strip("\n").split("\n")
    return "\n".join(("", call, *("\n".join(inside).replace("\n  ", "\n    ").strip("\n").split("\n")), change))


def test_the_calls_of_a_closure_belong_to_the_step_that_makes_them() -> None:
    """Two batches to a step and five to an epoch: the last step of the epoch has one batch, and clears inside."""
    two = clear() + backward() + by_closure(backward(before="some"))
    one = by_closure(clear(), backward())
    *occasions, forgotten = of(
        APISequence, windows(two, two, one, two, one, by_closure(backward(before="some"))), CYCLE
    )
    assert len(occasions) == 4
    assert all({CLEARED, FILLED} <= set(occasion.held) for occasion in occasions)
    assert CLEARED in (forgotten.failed or ()), "the closure adds to the gradients of the step before"


def test_each_optimizer_has_its_own_cycle() -> None:
    both = clear("SGD") + backward("SGD") + update("SGD") + clear("Adam") + backward("Adam") + update("Adam")
    half = clear("SGD") + backward("SGD") + update("SGD") + backward("Adam", before="some") + update("Adam")
    occasions = of(APISequence, windows(both, both, half), CYCLE)
    assert [CLEARED in occasion.held for occasion in occasions] == [True, True, True, False]
    assert CLEARED in (occasions[-1].failed or ())


def test_the_clipping_of_one_optimizer_is_not_in_the_cycle_of_another() -> None:
    both = clear("SGD") + backward("SGD") + CLIP + update("SGD") + clear("Adam") + backward("Adam") + update("Adam")
    occasions = of(APISequence, windows(*[both] * (ESTABLISHED + 2)), CYCLE)
    clipping = Property(PRECEDED_BY, "torch.nn.utils.clip_grad_norm_")
    in_order = Property(PRECEDED_BY, BACKWARD, f"then {clipping.object}")
    *_, sgd, adam = occasions
    assert clipping in sgd.held and in_order in sgd.held
    for prop in (clipping, in_order):
        assert prop not in adam.held and prop not in (adam.failed or ())


def test_another_training_has_a_rhythm_of_its_own() -> None:
    """A program may train one model from a loader, and then another one with all data."""
    first, second = FETCH + clear() + backward() + update(), clear("Adam") + backward("Adam") + update("Adam")
    cycle, fetched = Subject(BACKWARD, "cycle"), Property(PRECEDED_BY, "torch.utils.data.DataLoader.__next__")
    both = of(APISequence, windows(*[first] * 5, *[second] * 5), cycle)
    assert [fetched in occasion.held for occasion in both] == [False] * ESTABLISHED + [True] + [False] * 4
    assert not any(fetched in (occasion.failed or ()) for occasion in both)
    without = clear() + backward() + update() + second
    in_turns = of(APISequence, windows(*[first + FETCH + second] * 4, without, without), cycle)
    assert fetched in (in_turns[-1].failed or ())


def test_a_call_without_effect_keeps_no_rhythm() -> None:
    idle = clear() + backward() + update(changed=False)
    assert of(APISequence, windows(GOOD, idle, idle), CYCLE) == []


def test_a_gap_between_windows_resets_state() -> None:
    steps = windows(*[GOOD] * 3)
    assert len(of(APISequence, steps, CYCLE)) == 2
    assert of(APISequence, [steps[0], steps[2]], CYCLE) == []


def test_cycles_reach_over_windows() -> None:
    steps = windows(update(), clear(), backward(), FETCH, update())
    (occasion,) = of(APISequence, steps, CYCLE)
    assert {CLEARED, FILLED} <= set(occasion.held) and occasion.seq == steps[-1].calls[0].seq


# -- the rest --------------------------------------------------------------------------------------------------------


def test_transitions() -> None:
    assert transitions("some", "none", True) == ("changes", "is cleared")
    assert transitions("some", "zero", True) == ("changes", "is cleared")
    assert transitions("none", "some", True) == ("changes", "is filled")
    assert transitions("none", "zero", True) == ("changes", "is filled")
    assert transitions("zero", "zero", False) == ("does not change",)
    assert transitions("some", "some", False) == ("does not change",)
    assert set(possible("some")) & set(possible("none")) == {"changes", "does not change"}


def test_apis_are_shown_by_common_names() -> None:
    assert short("torch.optim.Optimizer.step") == "Optimizer.step"
    assert short("torch.autograd.backward") == "backward"
    assert short("train.Trainer.fit") == "train.Trainer.fit"


def test_sentences_and_demands_name_their_subjects() -> None:
    for relation in (EventContain, APISequence):
        instance = relation()
        for window in windows(*[GOOD] * 6):
            for occasion in instance.occasions(window):
                for prop in occasion.held:
                    sentence = relation.describe(occasion.subject, prop)
                    assert short(occasion.subject.api) in sentence and not sentence.endswith(".")
                    assert occasion.subject.api in relation.needs(occasion.subject, prop).calls


def test_the_template_works() -> None:
    windows = from_text('window train step=1\n  function torch.add result={"dtype":"float32"}\n  function torch.save\n')
    (occasion,) = ReturnsDtype().occasions(windows[0])
    assert occasion.subject == Subject("torch.add", "dtype")
    assert occasion.held == {Property(RETURNS, "float32")} and occasion.failed is None


# -- compiled regions ------------------------------------------------------------------------------------------------

MODEL = "torch.nn.Module.forward"


def test_missing_calls_inside_a_partly_compiled_call_are_no_violation() -> None:
    windows = from_text("""
window train step=1
  project train.fit
    module net.Net.forward < torch.nn.Module.forward receiver=Net
      module torch.nn.Linear.forward < torch.nn.Module.forward receiver=Net.stem
        function torch.nn.functional.linear
      module net.Block.forward < torch.nn.Module.forward receiver=Net.block
        region torch.compile receiver=Block
    region torch.compile receiver=loss_of
  project train.report
    function torch.Tensor.item
""")
    (outer,) = of(EventContain, windows, Subject("net.Net.forward", WITHIN))
    assert outer.failed is None, "all that it calls itself was seen"
    assert of(EventContain, windows, Subject("net.Block.forward", WITHIN)) == [], "nothing was seen inside"
    (fit,) = of(EventContain, windows, Subject("train.fit", WITHIN))
    assert fit.failed == frozenset() and Property(CONTAINS_CALL, MODEL) in fit.held
    (report,) = of(EventContain, windows, Subject("train.report", WITHIN))
    assert report.failed is None


def test_changes_around_compiled_regions_are_judged() -> None:
    step = f"""
    lifecycle torch.optim.SGD.step < {STEP} receiver=SGD
      region torch.compile
      change Net.w parameter.data some -> some owner=SGD context={{"held":"this"}}"""
    seen = from_text(f"window train step=1\n  project train.fit receiver=Loop{step}\n")
    changes = Property(CONTAINS_CHANGE, "parameter.data", "changes")
    for api in (STEP, "train.fit"):
        (occasion,) = of(EventContain, seen, Subject(api))
        assert changes in (occasion.failed or ()), api
    hidden = from_text(f"window train step=1\n  project train.fit receiver=Loop\n    region torch.compile{step}\n")
    (fit,) = of(EventContain, hidden, Subject("train.fit"))
    assert fit.failed == frozenset(), "what trained unseen may have changed it"
    (occasion,) = of(EventContain, hidden, Subject(STEP))
    assert changes in (occasion.failed or ())


def test_calls_that_may_have_been_made_inside_are_not_missed() -> None:
    model = '\n  module net.Net.forward < torch.nn.Module.forward receiver=Net context={"parametric":true}'
    good = clear() + model + backward() + CLIP + update()
    computed = clear() + "\n  region torch.compile" + backward() + update()
    hidden = clear() + '\n  region torch.compile result={"touches":true}' + backward() + update()
    in_model = clear() + model + "\n    region torch.compile" + backward() + update()
    clip, forward = Property(PRECEDED_BY, "torch.nn.utils.clip_grad_norm_"), Property(PRECEDED_BY, MODEL)
    for last, expected in ((computed, {clip}), (hidden, set()), (in_model, {clip})):
        steps = windows(*[good] * (ESTABLISHED + 1), *[last] * ESTABLISHED)
        *_, occasion = of(APISequence, steps, CYCLE)
        assert occasion.failed is not None
        assert {prop for prop in occasion.failed if not prop.detail} == expected
        assert forward in occasion.held or last is not in_model
    uncleared = backward(before="some") + "\n  region torch.compile" + update()
    *_, occasion = of(APISequence, windows(*[good] * 2, uncleared), CYCLE)
    assert CLEARED in (occasion.failed or ()), "what changes shows wherever it was done"
