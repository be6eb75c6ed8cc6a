"""Suppression: a rule is left out only where breaking it would break another, which is reported no less severely."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace

import pytest

from traincheck import plugins
from traincheck.inference.rule_index import covers, reaches
from traincheck.inference.suppression import CYCLE, PRECEDED_BY, suppress
from traincheck.relations.api_output import call_results as results
from traincheck.relations.api_output.relation import GRAIN, APIOutput
from traincheck.relations.api_sequence.relation import APISequence
from traincheck.relations.event_contain.relation import EventContain
from traincheck.vocab.invariant import ERROR, NOTICE, PIPELINE, Clause, Invariant, Precondition
from traincheck.vocab.occasion import Property, Subject

STEP, SGD, ADAM = "torch.optim.Optimizer.step", "torch.optim.SGD.step", "torch.optim.Adam.step"
ZERO, BACKWARD, CLIP = "torch.optim.Optimizer.zero_grad", "torch.autograd.backward", "torch.nn.utils.clip_grad_norm_"
UNSCALE = "torch.amp.GradScaler.unscale_"
LEVELS = [(SGD, STEP), (ADAM, STEP)]
TRAINS, EVALUATES = (Clause("stage", "train"),), (Clause("stage", "eval"),)

Rules = Callable[..., Invariant]


@pytest.fixture
def make(new_invariant: Rules) -> Rules:
    def new(api: str, quantity: str, detail: str = "", clauses: tuple[Clause, ...] = (), **more: object) -> Invariant:
        return new_invariant(Property("contains call", quantity, detail), clauses, subject=Subject(api), **more)

    return new


def kept_of(rules: Collection[Invariant]) -> set[str]:
    """The ids of the rules that are kept, whatever their order."""
    relations = plugins.load("traincheck.relations")
    orders = itertools.islice(itertools.permutations(rules), 120)
    outcomes = {frozenset(candidate.id for candidate in suppress(order, LEVELS, relations)[0]) for order in orders}
    assert len(outcomes) == 1
    return set(outcomes.pop())


def left(rules: Collection[Invariant]) -> set[tuple[str, str, str]]:
    """Subject, object and detail of the rules that are kept."""
    kept = kept_of(rules)
    return {
        (candidate.subject.api, candidate.property.object, candidate.property.detail)
        for candidate in rules
        if candidate.id in kept
    }


def dropped(rules: Collection[Invariant]) -> list[Invariant]:
    kept = kept_of(rules)
    return [candidate for candidate in rules if candidate.id not in kept]


# -- covering ----------------------------------------------------------------------------------------------------------


def test_a_rule_does_not_cover_itself(make: Rules) -> None:
    assert not reaches(make("f", "x"), make("f", "x"))


def test_a_rule_covers_rules_with_the_same_or_fewer_programs(make: Rules) -> None:
    """If a program supports only one of the rules, it is unknown whether the other is judged there."""
    of_two, of_one = make("f", "x", origin=("a.py", "b.py")), make("g", "x", origin=("a.py",))
    assert covers(of_two, of_one) and not covers(of_one, of_two)


def test_a_setting_of_one_program_covers_nothing_of_another(make: Rules) -> None:
    mine, general = make("f", "x", program="a.py"), make("g", "x")
    assert covers(general, mine) and not covers(mine, general)
    assert not covers(mine, make("g", "x", program="b.py"))
    assert covers(mine, make("g", "x", program="a.py"))


def test_a_notice_covers_no_error(make: Rules) -> None:
    notice, error = make("f", "x", severity=NOTICE), make("g", "x", severity=ERROR)
    assert covers(error, notice) and not covers(notice, error)
    assert reaches(notice, error)


def test_a_rule_covers_rules_with_no_wider_experience(make: Rules) -> None:
    narrow, wide = make("f", "x", experience=Precondition(TRAINS)), make("g", "x")
    assert covers(wide, narrow) and not covers(narrow, wide)
    assert covers(narrow, make("g", "x", clauses=TRAINS)), "where the stage is train, it has been"


# -- classes -----------------------------------------------------------------------------------------------------------


def test_the_special_class_follows_from_the_general(make: Rules) -> None:
    assert left([make(STEP, "x"), make(SGD, "x"), make(ADAM, "y")]) == {(STEP, "x", ""), (ADAM, "y", "")}
    assert left([make(STEP, "x", clauses=TRAINS), make(SGD, "x")]) == {(STEP, "x", ""), (SGD, "x", "")}
    assert left([make(STEP, "x"), make(SGD, "x", clauses=TRAINS)]) == {(STEP, "x", "")}


def test_a_rule_implied_by_one_alternative_is_removed(make: Rules) -> None:
    either = replace(make(STEP, "x"), precondition=Precondition(TRAINS, (EVALUATES,)), id="")
    assert left([either, make(SGD, "x", clauses=EVALUATES)]) == {(STEP, "x", "")}
    assert len(left([either, make(SGD, "x", clauses=(Clause("stage", "setup"),))])) == 2


def test_a_suppressed_rule_names_the_implying_rule(make: Rules) -> None:
    rules = [make(STEP, "x"), make(SGD, "x")]
    kept, implied = suppress(rules, LEVELS, plugins.load("traincheck.relations"))
    assert kept == [rules[0]]
    assert [(implication.rule, implication.by) for implication in implied] == [(rules[1], rules[0])] and implied[
        0
    ].reason


def test_rules_without_implications_stay(make: Rules) -> None:
    rules = [make("f", "g"), make("g", "h"), make("k", "h")]
    assert len(left(rules)) == 3


def test_rules_of_a_relation_that_is_not_installed_are_kept(make: Rules) -> None:
    rules = [make("f", "g", relation="Elsewhere"), make("f", "g", "training=True", relation="Elsewhere")]
    assert dropped(rules) == []


# -- what says more of the same ----------------------------------------------------------------------------------------


def test_a_fixed_argument_is_more_specific(make: Rules) -> None:
    assert left([make("f", "g"), make("f", "g", "training=True")]) == {("f", "g", "training=True")}
    weaker = make("f", "g", "training=True", severity=NOTICE)
    assert len(left([make("f", "g"), weaker])) == 2
    other = make("f", "h", "training=True")
    assert len(left([make("f", "g"), other])) == 2


def test_an_argument_of_fewer_programs_is_less_specific(make: Rules) -> None:
    plain, with_argument = make("f", "g", origin=("a.py", "b.py")), make("f", "g", "x=True", origin=("a.py",))
    assert dropped([plain, with_argument]) == []


def test_relations_order_their_properties_by_strength() -> None:
    """An equal shape implies an equal batch, and an equal length implies the bound, but not vice versa."""
    shape, batch = (
        Property(results.RETURNS_SIZE, "shape of x", "result[0]"),
        Property(results.RETURNS_SIZE, "batch of x"),
    )
    assert list(APIOutput.implied(shape)) == [batch._replace(detail="result[0]")]
    assert list(APIOutput.implied(Property(results.RETURNS_LENGTH, "equal to n"))) == [
        Property(results.RETURNS_LENGTH, "at most n")
    ]
    for prop in (batch, Property(results.RETURNS_WIDTH, "at most n"), Property(results.RETURNS_DTYPE, "of an input")):
        assert not list(APIOutput.implied(prop))
    for relation in (EventContain, APISequence):
        assert list(relation.implied(Property("v", "f", "training=True"))) == [Property("v", "f")]
        assert not list(relation.implied(Property("v", "f"))) and not list(
            relation.implied(Property("v", "f", "then g"))
        )


@pytest.mark.parametrize(
    ("more", "less"),
    [
        (Property(results.RETURNS_SIZE, "shape of x"), Property(results.RETURNS_SIZE, "batch of x")),
        (Property(results.RETURNS_LENGTH, "equal to n"), Property(results.RETURNS_LENGTH, "at most n")),
        (
            Property(results.RETURNS_WIDTH, "equal to n", "result[1]"),
            Property(results.RETURNS_WIDTH, "at most n", "result[1]"),
        ),
    ],
)
def test_the_weaker_size_rule_is_removed(more: Property, less: Property, new_invariant: Rules) -> None:
    def rule(prop: Property, clauses: tuple[Clause, ...] = ()) -> Invariant:
        return new_invariant(prop, clauses, relation="APIOutput", subject=Subject("train.f", GRAIN))

    assert dropped([rule(more), rule(less)]) == [rule(less)]
    assert dropped([rule(more, TRAINS), rule(less)]) == [], "in evaluation only the weaker one is known to hold"
    assert dropped([rule(more), rule(less, TRAINS)]) == [rule(less, TRAINS)]
    assert dropped([rule(more), rule(less._replace(object=f"{less.object}2"))]) == [], "of another argument"


# -- the order of calls ------------------------------------------------------------------------------------------------


@pytest.fixture
def cycle(new_invariant: Rules) -> Rules:
    """Rules about what happens between two updates of the parameters; a call that is made is a habit."""

    def new(first: str, then: str = "", clauses: tuple[Clause, ...] = (), api: str = STEP, **more: object) -> Invariant:
        prop = Property(PRECEDED_BY, first, f"then {then}" if then else "")
        fields = {"severity": ERROR if then else NOTICE, **more}
        return new_invariant(prop, clauses, relation="APISequence", subject=Subject(api, CYCLE), **fields)

    return new


def test_an_order_follows_from_two_others(cycle: Rules) -> None:
    """Gradients are cleared, filled, clipped: cleared before they are clipped. The two steps of it say it all."""
    steps = [cycle(ZERO, BACKWARD), cycle(BACKWARD, CLIP), cycle(BACKWARD)]
    around = cycle(ZERO, CLIP)
    assert dropped([*steps, around]) == [around]
    (implied,) = suppress([*steps, around], LEVELS, plugins.load("traincheck.relations"))[1]
    assert implied.by == steps[0] and BACKWARD in implied.reason and steps[1].id in implied.reason


def test_a_long_chain_keeps_its_links(cycle: Rules) -> None:
    chain = (ZERO, BACKWARD, UNSCALE, CLIP)
    rules = [cycle(*pair) for pair in itertools.combinations(chain, 2)]
    called = [cycle(api) for api in chain]
    links = {cycle(*pair).id for pair in itertools.pairwise(chain)}
    assert kept_of([*rules, *called]) == links | {called_rule.id for called_rule in called}


def test_both_orders_are_needed(cycle: Rules) -> None:
    assert dropped([cycle(ZERO, BACKWARD), cycle(BACKWARD), cycle(ZERO, CLIP)]) == []
    assert dropped([cycle(ZERO, BACKWARD), cycle(CLIP, BACKWARD), cycle(BACKWARD), cycle(ZERO, CLIP)]) == []


def test_an_order_stays_if_the_middle_call_is_optional(cycle: Rules) -> None:
    """Programs without a gradient scaler never unscale, so "clipping after the backward" stays a separate rule."""
    orders = [cycle(BACKWARD, UNSCALE), cycle(UNSCALE, CLIP), cycle(BACKWARD, CLIP)]
    assert dropped(orders) == []
    some = {"origin": ("a.py",)}
    scaled = [cycle(BACKWARD, UNSCALE, **some), cycle(UNSCALE, CLIP, **some), cycle(UNSCALE, **some)]
    assert dropped([*scaled, cycle(BACKWARD, CLIP, origin=("a.py", "b.py"))]) == []
    assert len(dropped([*scaled, cycle(BACKWARD, CLIP, **some)])) == 1


def test_orders_imply_under_their_conditions_only(cycle: Rules) -> None:
    called = cycle(BACKWARD)
    first, second = cycle(ZERO, BACKWARD), cycle(BACKWARD, CLIP, TRAINS)
    assert dropped([first, second, called, cycle(ZERO, CLIP)]) == []
    assert dropped([first, second, called, cycle(ZERO, CLIP, TRAINS)]) == [cycle(ZERO, CLIP, TRAINS)]
    assert dropped([first, cycle(BACKWARD, CLIP), cycle(BACKWARD, "", TRAINS), cycle(ZERO, CLIP)]) == []
    assert dropped([cycle(ZERO, BACKWARD, TRAINS), cycle(BACKWARD, CLIP), called, cycle(ZERO, CLIP)]) == []


def test_a_call_that_is_made_with_a_fixed_argument_is_made(cycle: Rules) -> None:
    habit = cycle(BACKWARD)
    called = replace(habit, property=Property(PRECEDED_BY, BACKWARD, "retain_graph=False"), id="")
    around = cycle(ZERO, CLIP)
    assert dropped([cycle(ZERO, BACKWARD), cycle(BACKWARD, CLIP), called, around]) == [around]


def test_orders_in_the_cycle_of_another_call_imply_nothing(cycle: Rules) -> None:
    rules = [cycle(ZERO, BACKWARD, api=BACKWARD), cycle(BACKWARD, CLIP), cycle(BACKWARD), cycle(ZERO, CLIP)]
    assert dropped(rules) == []


def test_a_less_severe_order_implies_no_error(cycle: Rules) -> None:
    rules = [cycle(ZERO, BACKWARD), cycle(BACKWARD, CLIP, severity=NOTICE), cycle(BACKWARD), cycle(ZERO, CLIP)]
    assert dropped(rules) == []


# -- alternation -------------------------------------------------------------------------------------------------------

CHANGES = Property("contains change", "parameter.data", "changes")


def alternating(cycle: Rules, new_invariant: Rules) -> list[Invariant]:
    """The update changes parameters, and between two of it there is one of `ZERO`, and the other way round."""
    return [new_invariant(CHANGES), cycle(STEP, api=ZERO), cycle(ZERO)]


def test_calls_that_alternate_with_the_update_have_its_cycle(cycle: Rules, new_invariant: Rules) -> None:
    """Between two updates there is a backward, and one `zero_grad`: so between two of that there is a backward."""
    rules = [*alternating(cycle, new_invariant), cycle(BACKWARD), cycle(BACKWARD, api=ZERO)]
    assert dropped(rules) == [rules[-1]]


@pytest.mark.parametrize("missing", range(3))
def test_they_have_to_alternate(missing: int, cycle: Rules, new_invariant: Rules) -> None:
    rules = [*alternating(cycle, new_invariant), cycle(BACKWARD), cycle(BACKWARD, api=ZERO)]
    del rules[missing]
    assert dropped(rules) == []


def test_alternating_updates_keep_their_rules(cycle: Rules, new_invariant: Rules) -> None:
    """Two rules of a GAN's networks imply each other; only one is suppressed."""
    other = "train.Update.step"
    updates = [new_invariant(CHANGES), new_invariant(CHANGES, subject=Subject(other))]
    rules = [*updates, cycle(other), cycle(STEP, api=other), cycle(BACKWARD), cycle(BACKWARD, api=other)]
    assert dropped(rules) == []


def test_the_rule_about_the_update_has_to_be_as_severe(cycle: Rules, new_invariant: Rules) -> None:
    rules = [*alternating(cycle, new_invariant), cycle(BACKWARD), cycle(BACKWARD, api=ZERO, severity=ERROR)]
    assert dropped(rules) == []


def test_without_alternation_both_rules_are_reported(cycle: Rules, new_invariant: Rules) -> None:
    """With gradient accumulation there are several backwards to an update."""
    plain, all_of = {"origin": ("a.py",)}, {"origin": ("a.py", "accumulating.py")}
    rules = [
        new_invariant(CHANGES, **all_of),
        cycle(STEP, api=BACKWARD, **plain),
        cycle(BACKWARD, **all_of),
        cycle("torch.nn.Module.forward", **all_of),
        cycle("torch.nn.Module.forward", api=BACKWARD, **all_of),
    ]
    assert dropped(rules) == []


def test_all_rules_of_a_pipeline_hold(cycle: Rules, new_invariant: Rules) -> None:
    rules = [*alternating(cycle, new_invariant), cycle(BACKWARD), cycle(BACKWARD, api=ZERO)]
    mine: Iterable[Invariant] = [replace(candidate, scope=PIPELINE, origin=("a.py",)) for candidate in rules]
    assert [candidate.subject.api for candidate in dropped(list(mine))] == [ZERO]
