"""Preconditions: what they mean, what follows from what, and which one a given evidence allows."""

from __future__ import annotations

import itertools
from math import comb

import pytest

from traincheck.inference.chance import ALPHA, Observed, by_context, by_occasion, by_window
from traincheck.inference.contexts import SKETCH, Evidence
from traincheck.inference.preconditions import Inseparable, Unproven, experience, learn
from traincheck.vocab.facts import FactValue, facts
from traincheck.vocab.invariant import Clause, Precondition

WINDOWS = 20


def good(run: int = 0, windows: int = WINDOWS, **pairs: FactValue) -> Evidence:
    """A context in which the property held throughout."""
    return Evidence(facts(**pairs), run, held=2 * windows, failed=0, windows=windows)


def bad(run: int = 0, windows: int = WINDOWS, **pairs: FactValue) -> Evidence:
    """A context in which it failed throughout."""
    return Evidence(facts(**pairs), run, held=0, failed=2 * windows, windows=windows)


def learned(*evidence: Evidence) -> str:
    """The precondition in words, whatever the order of the evidence."""
    outcomes = {str(learn(order)) for order in itertools.islice(itertools.permutations(evidence), 24)}
    assert len(outcomes) == 1
    return outcomes.pop()


# -- what a precondition means ---------------------------------------------------------------------------------------

TRAIN, EVAL = Clause("stage", "train"), Clause("stage", "eval")
NO_SYNC = Clause("within", "no_sync", contains=True)
STRONG = Clause("grads", "some")


def test_a_clause_is_true_of_its_value() -> None:
    assert TRAIN.true_in(facts(stage="train")) and not TRAIN.true_in(facts(stage="eval"))
    assert not (~TRAIN).true_in(facts(stage="train")) and (~TRAIN).true_in(facts(lr="zero"))
    assert ~~TRAIN == TRAIN


@pytest.mark.parametrize(
    ("within", "there"),
    [("no_sync", True), ("no_sync+sdpa_kernel", True), ("", False), ("no_sync_all", False), (None, False)],
)
def test_a_clause_finds_a_name_among_joined_ones(within: FactValue, there: bool) -> None:
    assert NO_SYNC.true_in(facts(within=within)) is there
    assert (~NO_SYNC).true_in(facts(within=within)) is not there


def test_alternatives_are_any_of_them() -> None:
    either = Precondition((TRAIN, STRONG), ((EVAL,),))
    assert either.true_in(facts(stage="eval", grads="none"))
    assert either.true_in(facts(stage="train", grads="some"))
    assert not either.true_in(facts(stage="train", grads="none"))
    assert either.size == 3


@pytest.mark.parametrize(
    ("precondition", "sentence"),
    [
        (Precondition(), "always"),
        (Precondition((TRAIN, ~STRONG)), "stage is train and grads is not some"),
        (Precondition((TRAIN,), ((NO_SYNC,),)), "stage is train or within contains no_sync"),
        (Precondition((TRAIN, STRONG), ((~NO_SYNC,),)), "stage is train and grads is some, or within lacks no_sync"),
        (Precondition((TRAIN,), ((),)), "always"),
    ],
)
def test_a_precondition_reads_as_a_sentence(precondition: Precondition, sentence: str) -> None:
    assert str(precondition) == sentence


ALWAYS, SINGLE, BOTH, OTHER = (
    Precondition(),
    Precondition((TRAIN,)),
    Precondition((TRAIN, STRONG)),
    Precondition((EVAL,)),
)
EITHER = Precondition((TRAIN,), ((EVAL,),))


@pytest.mark.parametrize(
    ("narrow", "wide"),
    [
        (BOTH, SINGLE),
        (SINGLE, ALWAYS),
        (SINGLE, EITHER),
        (OTHER, EITHER),
        (SINGLE, Precondition((~EVAL,))),
        (BOTH, EITHER),
        (Precondition((Clause("within", "a+no_sync"),)), Precondition((NO_SYNC,))),
        (Precondition((Clause("within", "a"),)), Precondition((~NO_SYNC,))),
        (Precondition((NO_SYNC,)), Precondition((Clause("within", "a", negated=True),))),
    ],
)
def test_the_narrow_implies_the_wide_and_not_the_other_way_round(narrow: Precondition, wide: Precondition) -> None:
    assert narrow.implies(wide) and not wide.implies(narrow)
    assert narrow.implies(narrow) and wide.implies(wide)


def test_implication_looks_at_all_alternatives_together() -> None:
    split = Precondition((TRAIN, STRONG), ((TRAIN, ~STRONG),))
    assert SINGLE.implies(split) and split.implies(SINGLE)
    assert ALWAYS.implies(Precondition((TRAIN,), ((~TRAIN,),)))
    assert not ALWAYS.implies(EITHER)  # there may be further stages
    assert not SINGLE.implies(Precondition((STRONG,))) and not Precondition((~EVAL,)).implies(SINGLE)


# -- which one is learned --------------------------------------------------------------------------------------------


def test_no_failure_needs_no_condition() -> None:
    assert learned(good(mode="a"), good(mode="b")) == "always"


def test_one_planted_clause() -> None:
    assert learned(good(stage="train", x=1), good(stage="train", x=2), bad(stage="eval", x=1)) == "stage is train"


def test_a_planted_negation() -> None:
    evidence = [good(grads=state, x=x) for state in ("some", "mixed", "zero") for x in (1, 2)]
    assert learned(*evidence, bad(grads="none", x=1), bad(grads="none", x=2)) == "grads is not none"


def test_a_planted_conjunction() -> None:
    cases = itertools.product((True, False), (True, False), (1, 2))
    evidence = [(good if a and b else bad)(a=a, b=b, c=c) for a, b, c in cases]
    assert learned(*evidence) == "a is True and b is True"


def test_a_conjunction_on_one_fact() -> None:
    evidence = [(bad if x in (1, 2) else good)(x=x, y=y) for x in range(5) for y in (1, 2)]
    assert learned(*evidence) == "x is not 1 and x is not 2"


def test_planted_alternatives() -> None:
    cases = itertools.product((1, 2, 3), (1, 2, 3), (0, 1))
    evidence = [(good if a == 1 or b == 2 else bad)(run, a=a, b=b) for a, b, run in cases]
    assert learned(*evidence) == "a is 1 or b is 2"


def test_an_alternative_keeps_what_its_evidence_does_not_vary() -> None:
    """Where c is 2, b was 1 throughout; that it was not otherwise does not show that it may be."""
    cases = itertools.product((1, 2, 3), (1, 2, 3), (1, 2), (0, 1))
    evidence = [
        (good if b == 1 and (a != 3 or c == 2) else bad)(run, a=a, b=b, c=c)
        for a, b, c, run in cases
        if b == 1 or c == 1
    ]
    assert learned(*evidence) == "a is not 3 and b is 1, or b is 1 and c is 2"


def test_a_name_among_the_context_managers() -> None:
    managers = ("", "no_sync", "no_sync+sdpa_kernel", "sdpa_kernel")
    evidence = [(bad if "no_sync" in within else good)(within=within, x=x) for within in managers for x in (1, 2)]
    assert learned(*evidence) == "within lacks no_sync"


def test_an_alternative_of_a_single_run_is_not_believed_of_others() -> None:
    cases = list(itertools.product((1, 2, 3), (1, 2, 3)))
    first = [(good if a == 1 else bad)(0, a=a, b=b) for a, b in cases if b != 2]
    second = [(good if a == 1 or b == 2 else bad)(1, a=a, b=b) for a, b in cases]
    assert learned(*first, *second) == "a is 1"


def test_frequency_is_no_criterion() -> None:
    rare = Evidence(facts(replicated=True), 0, held=2, failed=0, windows=2)
    often = Evidence(facts(replicated=False), 0, held=0, failed=76, windows=38)
    assert learned(rare, often) == "replicated is True"


def test_facts_that_separate_equally_well_enter_together() -> None:
    assert learned(good(a=1, b="x"), bad(a=2, b="y")) == "a is 1 and b is x"


def test_pairs_that_separate_equally_well_enter_together() -> None:
    cases = itertools.product((True, False), (True, False))
    evidence = [(good if a and b else bad)(a=a, b=b, like_b=b) for a, b in cases]
    assert learned(*evidence) == "a is True and b is True and like_b is True"


def test_the_condition_that_covers_most_runs_wins() -> None:
    evidence = [good(run, lr="positive", script=run) for run in range(3)]
    assert learned(*evidence, bad(0, lr="zero", script=3), bad(1, lr="zero", script=1)) == "lr is positive"


def test_missing_facts_give_no_negative_conditions() -> None:
    evidence = [good(x=1), good(x=2), good(y=1), bad(x=3)]
    assert "not" not in learned(*evidence)


def test_inseparable_failures_have_no_precondition() -> None:
    outcome = learn([good(a=1, b=1), bad(a=1, b=1)])
    assert isinstance(outcome, Inseparable) and "both held and failed" in str(outcome)
    three = [good(a=1, b=1, c=1), bad(a=1, b=1, c=0), bad(a=1, b=0, c=1), bad(a=0, b=1, c=1)]
    assert isinstance(learn(three), Inseparable)
    assert isinstance(learn([bad(a=1), bad(a=2)]), Inseparable)


def test_the_nearest_two_contexts_are_named() -> None:
    far, near = bad(a=0, b=0, c=0, d=0), bad(a=1, b=1, c=1, d=0)
    outcome = learn([good(a=1, b=1, c=1, d=1), far, near, bad(a=1, b=0, c=1, d=1), bad(a=0, b=1, c=1, d=1)])
    assert isinstance(outcome, Inseparable)
    assert dict(outcome.good)["d"] == 1 and sum(outcome.good[n] != outcome.bad[n] for n in range(4)) == 1
    assert "where it held" in str(outcome) and "where it failed" in str(outcome)


# -- what is believed ------------------------------------------------------------------------------------------------


def avoiding(everything: int, failed: int, selected: int) -> float:
    """The share of all ways to select some observations that avoid the failed ones."""
    ways = list(itertools.combinations(range(everything), selected))
    return sum(min(way) >= failed for way in ways) / len(ways)


@pytest.mark.parametrize(("everything", "failed", "selected"), [(6, 2, 3), (7, 1, 6), (8, 5, 2), (5, 4, 1), (6, 0, 4)])
def test_the_bound_counts_the_ways_to_avoid_failures(everything: int, failed: int, selected: int) -> None:
    all_of_it = Observed(everything, failed, everything, failed, everything, failed, everything, failed)
    part = Observed(selected, 0, selected, 0, selected, 0, selected, 0)
    expected = avoiding(everything, failed, selected)
    assert by_occasion(all_of_it, part) == pytest.approx(expected)
    assert by_context(all_of_it, selected) == pytest.approx(expected)
    assert by_window(all_of_it, part) == pytest.approx(expected)


def test_contexts_of_one_window_are_one_observation() -> None:
    """Ten contexts in each of ten windows, of which one window failed: n is nine, not ninety."""
    everything, selected = Observed(100, 10, 100, 10, 10, 1, 20, 10), Observed(90, 0, 90, 0, 9, 0, 10, 0)
    assert by_window(everything, selected) == pytest.approx(1 / 10)


def test_a_single_exception_needs_a_long_run() -> None:
    def seen(windows: int) -> object:
        return learn([good(windows=windows - 1, lr="positive"), bad(windows=1, lr="zero")])

    assert str(seen(40)) == "lr is positive"
    assert isinstance(seen(10), Unproven)
    twice = [row for run in (0, 1) for row in (good(run, 6, lr="positive"), bad(run, 1, lr="zero"))]
    assert learned(*twice) == "lr is positive" and 2 / comb(14, 2) <= ALPHA


def test_a_failure_in_two_hundred_proves_nothing_about_half_of_them() -> None:
    once = Evidence(facts(x=2), 0, held=99, failed=1, windows=100)
    outcome = learn([good(windows=100, x=1), once])
    assert isinstance(outcome, Unproven)
    text = str(outcome)
    assert "'x is 1' may separate by chance" in text and "200 observations 1 failed" in text and f"{ALPHA:g}" in text


def test_many_parameters_in_a_step_are_one_observation() -> None:
    """A thousand parameters held in three windows and failed in three others: that may be about the windows."""
    rows = [Evidence(facts(x=1), 0, 3000, 0, 3), Evidence(facts(x=2), 0, 0, 3000, 3)]
    assert isinstance(learn(rows), Unproven)


def test_few_parameters_escape_failure_more_easily_than_many() -> None:
    """One parameter in a thousand fails, in every step; that a context of one has no failure says nothing."""
    rows = [Evidence(facts(x=1), 0, 20, 0, 20), Evidence(facts(x=2), 0, 19_980, 20, 20, missed=2**20 - 1)]
    assert isinstance(learn(rows), Unproven)


def test_contexts_that_hold_or_fail_for_good_need_more_than_many_steps() -> None:
    """With many contexts, a condition needs support from contexts, however long each was seen."""
    cases = list(itertools.product((0, 1, 2, 3), repeat=3))
    held = {(a, b, c) for a, b, c in cases if (a * 7 + b * 5 + c * 3 + a * b * c) % 5 < 2}
    outcome = learn((good if case in held else bad)(windows=200, a=case[0], b=case[1], c=case[2]) for case in cases)
    assert not isinstance(outcome, Precondition)


def test_sketches_tell_distinct_windows() -> None:
    """Contexts that come up in a window each are as good as one context that comes up in all of them."""

    def rows(seen: bool) -> list[Evidence]:
        whole = [(index, facts(a=index % 2, b=index // 2 % 2, c=index)) for index in range(16)]
        return [
            Evidence(context, 0, index % 2, 1 - index % 2, 1, seen << index, (1 - index % 2) << index)
            for index, context in whole
        ]

    assert str(learn(rows(True))) == "a is 1"
    assert isinstance(learn(rows(False)), Unproven)  # they may all have been in one window
    assert SKETCH >= 16


# -- experience ------------------------------------------------------------------------------------------------------


def test_experience_is_the_constant_facts() -> None:
    rows = [good(autocast="off", stage="train", x=1), good(autocast="off", stage="train", x=2)]
    circumstances = experience(rows, Precondition((TRAIN,)))
    assert [str(clause) for clause in circumstances.clauses] == ["autocast is off"]
    assert circumstances.true_in(facts(autocast="off", stage="eval")) and not circumstances.true_in(
        facts(autocast="bfloat16")
    )


def test_one_alternative_is_experience_of_the_others() -> None:
    rows = [good(stage="train", x=1, y=1), good(stage="train", x=2, y=2)]
    circumstances = experience(rows, Precondition((TRAIN, Clause("x", 1)), ((Clause("x", 2),),)))
    assert [str(clause) for clause in circumstances.clauses] == ["stage is train"]


def test_symptoms_are_no_experience() -> None:
    rows = [good(held="this", grads="some", x=1)]
    circumstances = experience(rows, Precondition())
    for state in ("some", "none", "mixed"):
        assert circumstances.true_in(facts(held="none", grads=state, x=1))
    assert not circumstances.true_in(facts(held="this", grads="some", x=2))


def test_no_rule_applies_where_all_gradients_are_zero() -> None:
    """Not even if it held there once: momentum changes parameters without gradients, plain SGD does not."""
    rows = [good(grads="some", x=1), good(grads="zero", x=2)]
    circumstances = experience(rows, Precondition())
    assert not circumstances.true_in(facts(grads="zero", x=1))
    assert circumstances.true_in(facts(grads="none", x=1))
    assert experience(rows, Precondition((Clause("grads", "zero"),))) == Precondition()


def test_the_rank_layout_of_one_program_is_no_experience() -> None:
    rows = [good(all_same=True, same_before=True, x=1)]
    sharing = facts(all_same=False, same_before=False, x=1)
    assert experience(rows, Precondition(), pipeline=True).true_in(sharing)
    assert not experience(rows, Precondition()).true_in(sharing)
