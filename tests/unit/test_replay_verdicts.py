"""What it says of a computation that it was executed again: who is to blame, and when nobody can be."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from traincheck.sources.replay.verdicts import (
    CONFIRMING,
    HOPELESS,
    PERSISTENT,
    SAME,
    TRANSIENT,
    TRUSTED,
    UNDECIDED,
    Odd,
    Standing,
    Tried,
    Verdict,
)


def no_such_operation() -> str:
    return ""


def told(standing: Standing, *odds: Odd, first: int = 1) -> list[Verdict | None]:
    return [
        standing.judge(Tried(step, odd, "forward", "layer"), no_such_operation) for step, odd in enumerate(odds, first)
    ]


def trusted() -> Standing:
    standing = Standing()
    told(standing, *[Odd.NONE] * TRUSTED)
    return standing


def kinds(verdicts: list[Verdict | None]) -> list[str]:
    return ["" if verdict is None else verdict.kind for verdict in verdicts]


def test_what_is_the_same_is_told_as_such() -> None:
    assert kinds(told(Standing(), Odd.NONE, Odd.NONE)) == [SAME, SAME]


def test_a_difference_is_told_when_a_later_step_repeats() -> None:
    for odd, kind in ((Odd.ORIGINAL, TRANSIENT), (Odd.REPETITION, TRANSIENT), (Odd.EACH, PERSISTENT)):
        waits, tells = told(trusted(), odd, Odd.NONE, first=40)
        assert waits is None and tells is not None
        assert (tells.kind, tells.tried.step, tells.tried.first) == (kind, 40, "layer")


def test_steps_after_a_difference_are_repeated() -> None:
    standing = trusted()
    assert not standing.confirming
    told(standing, Odd.ORIGINAL)
    assert standing.confirming
    told(standing, Odd.NONE)
    assert not standing.confirming


def test_what_never_repeats_again_is_undecided_and_given_up() -> None:
    for odd in (Odd.ORIGINAL, Odd.REPETITION, Odd.EACH):
        standing = trusted()
        verdicts = kinds(told(standing, *[odd] * (1 + CONFIRMING)))
        assert verdicts == [""] * CONFIRMING + [UNDECIDED]
        assert standing.given_up and not standing.confirming


def test_several_kinds_in_a_row_are_of_the_machine() -> None:
    assert kinds(told(trusted(), Odd.ORIGINAL, Odd.EACH, Odd.ORIGINAL, Odd.EACH))[-1] == PERSISTENT


def test_nothing_is_blamed_before_it_was_trusted() -> None:
    standing = Standing()
    assert kinds(told(standing, Odd.EACH, Odd.EACH, Odd.EACH)) == ["", "", ""]
    assert "layer differed first" in standing.given_up


def test_an_operation_that_is_not_deterministic_is_software() -> None:
    standing = trusted()
    assert standing.judge(Tried(9, Odd.EACH, "backward", "weight"), lambda: "put_") is None
    assert standing.given_up == "put_ is not deterministic"


@given(st.lists(st.sampled_from(list(Odd)), max_size=30))
def test_an_error_needs_trust_before_and_a_step_that_repeats_or_differs_otherwise_after(odds: list[Odd]) -> None:
    standing = Standing()
    for place, verdict in enumerate(told(standing, *odds, first=0)):
        if verdict is not None and verdict.kind in (TRANSIENT, PERSISTENT):
            assert odds[: verdict.tried.step].count(Odd.NONE) >= TRUSTED
            assert len(set(odds[verdict.tried.step : place + 1])) > 1


def test_what_nothing_comes_of_is_not_asked_for_in_each_step() -> None:
    standing = Standing()
    assert [(standing.confirming, standing.begins()) for _ in range(6)] == [
        *[(True, True)] * HOPELESS,
        (False, False),  # that is told
        *[(False, True)] * 2,
    ]
    told(standing, Odd.NONE)
    assert standing.confirming  # it came through at last, and has to be trusted
