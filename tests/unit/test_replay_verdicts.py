"""Tests the verdicts on replayed computations."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from traincheck.sources.replay.verdicts import (
    CONFIRMATIONS,
    MAX_FAILURES,
    PERSISTENT,
    SAME,
    TRANSIENT,
    TRUSTED,
    UNDECIDED,
    Attempt,
    OddOneOut,
    ReplayHistory,
    Verdict,
)


def no_such_operation() -> str:
    return ""


def verdicts_of(history: ReplayHistory, *odds: OddOneOut, first: int = 1) -> list[Verdict | None]:
    return [
        history.judge(Attempt(step, odd, "forward", "layer"), no_such_operation) for step, odd in enumerate(odds, first)
    ]


def trusted() -> ReplayHistory:
    history = ReplayHistory()
    verdicts_of(history, *[OddOneOut.NONE] * TRUSTED)
    return history


def kinds(verdicts: list[Verdict | None]) -> list[str]:
    return ["" if verdict is None else verdict.kind for verdict in verdicts]


def test_equal_results_give_the_verdict_same() -> None:
    assert kinds(verdicts_of(ReplayHistory(), OddOneOut.NONE, OddOneOut.NONE)) == [SAME, SAME]


def test_a_difference_is_judged_when_a_later_step_repeats() -> None:
    for odd, kind in ((OddOneOut.ORIGINAL, TRANSIENT), (OddOneOut.REPETITION, TRANSIENT), (OddOneOut.ALL, PERSISTENT)):
        waits, tells = verdicts_of(trusted(), odd, OddOneOut.NONE, first=40)
        assert waits is None and tells is not None
        assert (tells.kind, tells.attempt.step, tells.attempt.first) == (kind, 40, "layer")


def test_steps_after_a_difference_are_repeated() -> None:
    history = trusted()
    assert not history.confirming
    verdicts_of(history, OddOneOut.ORIGINAL)
    assert history.confirming
    verdicts_of(history, OddOneOut.NONE)
    assert not history.confirming


def test_a_computation_that_stops_repeating_is_undecided_and_given_up() -> None:
    for odd in (OddOneOut.ORIGINAL, OddOneOut.REPETITION, OddOneOut.ALL):
        history = trusted()
        verdicts = kinds(verdicts_of(history, *[odd] * (1 + CONFIRMATIONS)))
        assert verdicts == [""] * CONFIRMATIONS + [UNDECIDED]
        assert history.disabled_reason and not history.confirming


def test_several_kinds_in_a_row_are_of_the_machine() -> None:
    assert (
        kinds(verdicts_of(trusted(), OddOneOut.ORIGINAL, OddOneOut.ALL, OddOneOut.ORIGINAL, OddOneOut.ALL))[-1]
        == PERSISTENT
    )


def test_differences_before_trust_give_no_verdict() -> None:
    history = ReplayHistory()
    assert kinds(verdicts_of(history, OddOneOut.ALL, OddOneOut.ALL, OddOneOut.ALL)) == ["", "", ""]
    assert "layer differed first" in history.disabled_reason


def test_an_operation_that_is_not_deterministic_is_software() -> None:
    history = trusted()
    assert history.judge(Attempt(9, OddOneOut.ALL, "backward", "weight"), lambda: "put_") is None
    assert history.disabled_reason == "put_ is not deterministic"


@given(st.lists(st.sampled_from(list(OddOneOut)), max_size=30))
def test_an_error_needs_trust_before_and_a_step_that_repeats_or_differs_otherwise_after(odds: list[OddOneOut]) -> None:
    history = ReplayHistory()
    for index, verdict in enumerate(verdicts_of(history, *odds, first=0)):
        if verdict is not None and verdict.kind in (TRANSIENT, PERSISTENT):
            assert odds[: verdict.attempt.step].count(OddOneOut.NONE) >= TRUSTED
            assert len(set(odds[verdict.attempt.step : index + 1])) > 1


def test_attempts_without_a_result_are_not_made_in_each_step() -> None:
    history = ReplayHistory()
    assert [(history.confirming, history.begin_attempt()) for _ in range(6)] == [
        *[(True, True)] * MAX_FAILURES,
        (False, False),  # that is told
        *[(False, True)] * 2,
    ]
    verdicts_of(history, OddOneOut.NONE)
    assert history.confirming  # it came through at last, and has to be trusted
