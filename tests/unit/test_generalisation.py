"""Generalisation selects the class level of a rule, and the programs it applies to."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from recorded_runs import training
from traincheck import plugins
from traincheck.inference.candidate_selection import select_rules
from traincheck.inference.generalisation import Generalisation, more_general, scope_of
from traincheck.inference.rule_index import RuleIndex
from traincheck.inference.tally import Tally
from traincheck.inference.tally_runs import tally_windows
from traincheck.vocab.invariant import ERROR, GENERAL, NOTICE, PIPELINE, Clause, Invariant, Precondition, Support
from traincheck.vocab.occasion import Occasion, Property, Subject

STEP, SGD, ADAM, ADAMW = (f"torch.optim.{name}.step" for name in ("Optimizer", "SGD", "Adam", "AdamW"))
LEVELS = [(SGD, STEP), (ADAMW, ADAM, STEP), (ADAM, STEP)]
CHANGES = Property("contains change", "parameter.data", "changes")
TRAINS = (Clause("stage", "train"),)

Rules = Callable[..., Invariant]


@pytest.fixture
def rule(new_invariant: Rules) -> Rules:
    def new(api: str, clauses: tuple[Clause, ...] = (), prop: Property = CHANGES, **more: object) -> Invariant:
        return new_invariant(prop, clauses, subject=Subject(api), **more)

    return new


def general_of(specific: Invariant, *others: Invariant) -> Invariant | None:
    index = RuleIndex((specific, *others), plugins.load("traincheck.relations"))
    implication = Generalisation(LEVELS).by_class(specific, index) or Generalisation(LEVELS).by_content(specific, index)
    return None if implication is None else implication[0]


# -- scope -------------------------------------------------------------------------------------------------------------


def test_several_programs_make_a_rule_general_and_several_runs_of_one_do_not() -> None:
    assert scope_of(Support(10**6, 10**6, runs=100, scripts=1)) == PIPELINE
    assert scope_of(Support(2, 2, runs=2, scripts=2)) == GENERAL


# -- levels ------------------------------------------------------------------------------------------------------------


def test_names_are_ordered_from_special_to_general() -> None:
    """AdamW is an Adam here, so what holds of either or of any optimizer holds of it; nothing is above an optimizer."""
    general = more_general(LEVELS)
    assert general == {
        SGD: {STEP},
        ADAM: {STEP},
        ADAMW: {ADAM, STEP},
        STEP: frozenset(),
    }


def test_a_name_is_not_more_general_than_itself() -> None:
    """A class that overrides a method and calls the one it inherits has one name twice."""
    assert more_general([("f", "g", "f")]) == {"f": {"g"}, "g": {"f"}}


def test_the_general_class_replaces_two_classes(rule: Rules) -> None:
    assert general_of(rule(SGD), rule(STEP)) == rule(STEP)
    assert general_of(rule(ADAMW), rule(ADAM)) == rule(ADAM)
    assert general_of(rule(STEP), rule(SGD)) is None
    assert general_of(rule(SGD), rule(ADAM)) is None, "neither is the other's kind"


def test_a_general_rule_needs_a_weaker_condition(rule: Rules) -> None:
    assert general_of(rule(SGD), rule(STEP, TRAINS)) is None
    assert general_of(rule(SGD, TRAINS), rule(STEP)) == rule(STEP)
    assert general_of(rule(SGD, TRAINS), rule(STEP, TRAINS)) == rule(STEP, TRAINS)


def test_a_weaker_condition_takes_evidence_of_its_own(rule: Rules) -> None:
    """SGD was only seen in training: that it needs no such condition is not known, only that none was called for."""
    mine, general = rule(SGD), rule(STEP, TRAINS)
    index = {"relations": plugins.load("traincheck.relations")}
    train, evaluate = ((("stage", "train"),), (("stage", "eval"),))
    for contexts, expected in (({train}, general), ({train, evaluate}, None), (set(), None)):
        seen = RuleIndex((mine, general), **index, seen={mine.id: contexts})
        by = Generalisation(LEVELS).by_class(mine, seen)
        assert (by and by[0]) == expected


def test_a_general_rule_has_the_same_property_grain_and_relation(rule: Rules, new_invariant: Rules) -> None:
    assert general_of(rule(SGD), rule(STEP, prop=CHANGES._replace(detail="is cleared"))) is None
    assert general_of(rule(SGD), new_invariant(CHANGES, subject=Subject(STEP, "parameter.data"))) is None
    assert general_of(rule(SGD), rule(STEP, relation="APISequence")) is None


def test_the_special_class_covers_missing_experience(rule: Rules) -> None:
    """Other optimizers were never seen under autocast, and say nothing of it."""
    without = Precondition((Clause("autocast", "off"),))
    assert general_of(rule(SGD), rule(STEP, experience=without)) is None
    assert general_of(rule(SGD, experience=without), rule(STEP, experience=without)) is not None
    assert general_of(rule(SGD, without.clauses), rule(STEP, experience=without)) is not None


def test_a_rule_that_fails_runs_does_not_give_way_to_a_notice(rule: Rules) -> None:
    """Three runs of one pipeline are certain of it, 3/4; two programs are not, 3/4 at most."""
    mine = {"scope": PIPELINE, "origin": ("a.py",)}
    both = {"scope": GENERAL, "origin": ("a.py", "b.py")}
    assert general_of(rule(SGD, severity=ERROR, **mine), rule(STEP, severity=NOTICE, **both)) is None
    assert general_of(rule(SGD, severity=NOTICE, **mine), rule(STEP, severity=NOTICE, **both)) is not None
    assert general_of(rule(SGD, severity=NOTICE, **mine), rule(STEP, severity=ERROR, **both)) is not None


def test_an_inner_call_has_its_general_name(rule: Rules) -> None:
    special, general = (rule("train.fit", prop=Property("contains call", api)) for api in (SGD, STEP))
    assert general_of(special, general) == general
    assert general_of(general, special) is None
    by_general_name = rule("train.fit", prop=Property("contains call", STEP, "closure=True"))
    assert general_of(special, by_general_name) is None


# -- what is learned ---------------------------------------------------------------------------------------------------


def learned(*optimizers: str) -> dict[str, Invariant]:
    """The rules that a step changes parameters, by their subjects, from a program with each of these optimizers."""
    tallies = []
    for index, name in enumerate(optimizers):
        tallies.append(Tally(f"{index}.py", ""))
        tally_windows(training(8, name), tallies[-1])
    book, _ = select_rules(tallies)
    return {
        invariant.subject.api: invariant
        for invariant in book.invariants
        if invariant.property == CHANGES and invariant.subject.grain == "call"
    }


def test_rules_learned_with_adadelta_apply_to_adamw() -> None:
    rules = learned("Adadelta", "SGD")
    assert set(rules) == {STEP}
    assert (rules[STEP].scope, rules[STEP].support.scripts, rules[STEP].support.steps) == (GENERAL, 2, 16)


def test_the_general_level_stays_for_one_program() -> None:
    rules = learned("Adadelta")
    assert set(rules) == {STEP} and rules[STEP].scope == PIPELINE


def test_a_level_at_which_it_does_not_hold_is_passed_over() -> None:
    """Adam never does it, for no reason in the facts: the result is a rule about SGD."""
    tallies = []
    for script, api in (("a.py", SGD), ("b.py", SGD), ("c.py", ADAM)):
        tallies.append(Tally(script, ""))
        tallies[-1].levels.update(LEVELS)
        held, failed = ({CHANGES}, set[Property]()) if api == SGD else (set[Property](), {CHANGES})
        for window in range(20):
            occasions = [Occasion(Subject(level), (), held, failed, 0) for level in (api, STEP)]
            tallies[-1].add_occasions("EventContain", occasions, window)
    book, journal = select_rules(tallies)
    (rule,) = book.invariants
    assert rule.subject == Subject(SGD) and rule.support.scripts == 2
    assert any(
        "both held and failed" in entry.reason and "Optimizer.step" in entry.sentence for entry in journal.entries
    )


NADAM = "torch.optim.NAdam.step"


def rules_with(good: dict[str, int], bad: dict[str, int]) -> tuple[set[str], str]:
    """The subjects of the rules, from so many good and bad programs with each class, and the reasons in the journal."""
    tallies = []
    for numbers, holds in ((good, True), (bad, False)):
        for api, programs in numbers.items():
            for index in range(programs):
                tally = Tally(f"{api} {holds} {index}", "")
                tally.levels.update([*LEVELS, (NADAM, STEP)])
                held, failed = ({CHANGES}, set[Property]()) if holds else (set[Property](), {CHANGES})
                for window in range(20):
                    occasions = [Occasion(Subject(level), (), held, failed, 0) for level in (api, STEP)]
                    tally.add_occasions("EventContain", occasions, window)
                tallies.append(tally)
    book, journal = select_rules(tallies)
    reasons = " ".join(entry.reason for entry in journal.entries)
    return {invariant.subject.api for invariant in book.invariants}, reasons


def test_a_rule_of_a_class_may_be_chance() -> None:
    """A sixth of the programs break it: that six with NAdam do not says nothing about NAdam."""
    subjects, reasons = rules_with({SGD: 40, NADAM: 6}, {SGD: 10})
    assert not subjects
    assert f"6 programs may obey it by chance: of 56 programs with {STEP}, 10 do not" in reasons


def test_a_class_with_enough_programs_has_a_rule() -> None:
    assert rules_with({SGD: 40, NADAM: 40}, {SGD: 20})[0] == {NADAM}, "many programs"
    assert rules_with({SGD: 5, NADAM: 6}, {SGD: 45})[0] == {NADAM}, "few others obey it"


def test_one_program_that_breaks_it_is_enough_for_a_doubt() -> None:
    assert rules_with({SGD: 40, NADAM: 6}, {SGD: 1})[0] == set()


def test_a_class_is_doubted_only_where_one_can_be_proven() -> None:
    """One program of five breaks it, so chance explains any class without it."""
    assert rules_with({NADAM: 3, SGD: 1}, {SGD: 1})[0] == {NADAM}
