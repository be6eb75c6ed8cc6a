"""Salience of calls is decided by observations of all runs together."""

from __future__ import annotations

import pytest

from traincheck.inference.salience import any_varied, reason_to_skip
from traincheck.inference.tally import Reach, Tally
from traincheck.vocab.events import FUNCTION, LIFECYCLE, MODULE, NO_CALL, PROJECT, TRAIN, Call, Change, Window
from traincheck.vocab.facts import Facts, facts
from traincheck.vocab.occasion import Property

CALLS_F = Property("contains call", "f")


def call(seq: int, name: str = "f", kind: str = FUNCTION, args: Facts = (), result: Facts = ()) -> Call:
    return Call(seq, seq, NO_CALL, kind, (name,), args=args, result=result)


def tally(*calls: Call, changes: tuple[Change, ...] = ()) -> Tally:
    counted = Tally("a.py", "")
    counted.add_window(Window(0, 1, TRAIN, calls, changes))
    return counted


def change(seq: int, changed: bool = True) -> Change:
    return Change(seq, seq, "w", "parameter", "data", "some", "some", changed)


# -- dull calls --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [FUNCTION, PROJECT])
def test_a_function_that_does_nothing_is_dull(kind: str) -> None:
    reason = reason_to_skip(CALLS_F, None, [tally(call(0, kind=kind, result=facts(value=True)))])
    assert reason is not None and "f is skipped" in reason


def test_one_tensor_in_one_run_is_enough() -> None:
    """A call need not have its effect each time: `maybe_clip` returns a norm in one run and nothing in another."""
    quiet, useful = tally(call(0)), tally(call(0), call(1, result=facts(dtype="float32")))
    assert reason_to_skip(CALLS_F, None, [quiet]) is not None
    assert reason_to_skip(CALLS_F, None, [quiet, useful]) is reason_to_skip(CALLS_F, None, [useful]) is None


def test_a_change_of_state_is_enough_and_an_idle_one_is_not() -> None:
    assert reason_to_skip(CALLS_F, None, [tally(call(0), changes=(change(0),))]) is None
    assert reason_to_skip(CALLS_F, None, [tally(call(0), changes=(change(0, changed=False),))]) is not None


@pytest.mark.parametrize("kind", [LIFECYCLE, MODULE])
def test_training_functions_are_always_salient(kind: str) -> None:
    assert reason_to_skip(CALLS_F, None, [tally(call(0, kind=kind))]) is None


def test_uncalled_functions_have_no_salience() -> None:
    """A change of a variable is the object of a property, too, and no call."""
    assert reason_to_skip(Property("contains change", "parameter.data", "changes"), None, [tally(call(0))]) is None
    assert reason_to_skip(CALLS_F, None, []) is None


def test_dullness_is_of_all_processes_of_a_run() -> None:
    first, second = Tally("a.py", ""), Tally("a.py", "")
    first.reach["f"] = Reach(calls=5, kind=FUNCTION)
    second.reach["f"] = Reach(calls=5, tensors=1, kind=FUNCTION)
    first.merge(second)
    assert reason_to_skip(CALLS_F, None, [first]) is None


# -- taste -------------------------------------------------------------------------------------------------------------


def test_an_argument_that_never_varied_is_a_matter_of_taste() -> None:
    useful = facts(dtype="float32")
    same = [tally(call(0, args=facts(affine=True), result=useful), call(1, args=facts(affine=True), result=useful))] * 2
    reason = reason_to_skip(CALLS_F, ("f", "affine"), same)
    assert reason is not None and "affine never had another value" in reason
    assert reason_to_skip(CALLS_F, None, same) is None, "a property that rests on no argument"


def test_it_may_vary_from_run_to_run_or_in_one() -> None:
    on, off = tally(call(0, args=facts(x=True))), tally(call(0, args=facts(x=False)))
    assert not any_varied("f", "x", [on, on]) and not any_varied("f", "x", [off])
    assert any_varied("f", "x", [on, off])
    assert any_varied("f", "x", [tally(call(0, args=facts(x=1)), call(1, args=facts(x=2)))])


def test_values_of_another_argument_or_function_do_not_count() -> None:
    tallies = [tally(call(0, args=facts(x=1, y=1)), call(1, args=facts(x=1, y=2)), call(2, "g", args=facts(x=2)))]
    assert not any_varied("f", "x", tallies) and any_varied("f", "y", tallies)
    assert not any_varied("f", "z", tallies), "never given"


def test_true_and_one_are_two_values() -> None:
    assert any_varied("f", "x", [tally(call(0, args=facts(x=True)), call(1, args=facts(x=1)))])
