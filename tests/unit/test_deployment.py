"""Deployment: which rules of a book are checked on which program, and how severe it is to break them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traincheck import plugins
from traincheck.inference.confidence import ERROR_CONFIDENCE, of_named, of_programs
from traincheck.inference.named_books import elsewhere_of
from traincheck.invariants.book import Book, LearnedRun
from traincheck.invariants.selection import deployable
from traincheck.runtime.launching.deployment import deploy
from traincheck.runtime.launching.program_identity import CheckedProgram
from traincheck.runtime.launching.rule_selection import lines_of
from traincheck.vocab.invariant import (
    ERROR,
    GENERAL,
    NOTICE,
    PIPELINE,
    Clause,
    Elsewhere,
    Invariant,
    Precondition,
    Support,
)
from traincheck.vocab.occasion import Property, Subject
from traincheck.vocab.program import UNKNOWN, ProgramIdentity

Rules = Callable[..., Invariant]

CNN = ProgramIdentity.of_features("cnn", {f"cnn {number}" for number in range(40)}, ())
EDITED = ProgramIdentity.of_features("renamed", {f"cnn {number}" for number in range(5, 45)}, ())
GPT = ProgramIdentity.of_features("gpt", {f"gpt {number}" for number in range(40)}, ())
STEP = Subject("torch.optim.Optimizer.step")
CLEARED = Property("contains change", "parameter.data", "changes")
LONG, SHORT = Support(100, 14, 1, 1), Support(100, 13, 1, 1)


def rule(make: Rules, prop: Property = CLEARED, subject: Subject = STEP, **fields: object) -> Invariant:
    """A rule of one program, cnn.py."""
    defaults = {"scope": PIPELINE, "severity": NOTICE, "support": LONG, "confidence": 0.5, "origin": ("cnn.py",)}
    invariant = make(prop, (), subject=subject, **{**defaults, **fields})
    if invariant.program:
        return invariant
    relation = plugins.load("traincheck.relations")[invariant.relation]
    there = elsewhere_of(relation, subject, prop, invariant.support, {"cnn"}, Precondition())
    return replace(invariant, elsewhere=there)


def book(*rules: Invariant, program: ProgramIdentity = CNN) -> Book:
    return Book(rules, (LearnedRun("cnn.py", "d", 40, str(program) if program != UNKNOWN else ""),))


def deployed(book: Book, program: CheckedProgram, *, named: bool = True) -> tuple[Invariant, ...]:
    return deployable(deploy(book, program, named=named).book.invariants, program.script)


OTHER = CheckedProgram("gpt.py", "gpt.py", GPT)


def test_torch_rules_of_a_named_book_are_errors_on_every_program(new_invariant: Rules) -> None:
    (deployed_rule,) = deployed(book(rule(new_invariant)), OTHER)
    assert (deployed_rule.severity, deployed_rule.scope, deployed_rule.confidence) == (ERROR, GENERAL, 0.75)
    assert deployed_rule.id == rule(new_invariant).id
    assert deployed(book(rule(new_invariant)), OTHER, named=False) == ()


def test_a_rule_that_was_seen_in_few_steps_stays_a_notice(new_invariant: Rules) -> None:
    (deployed_rule,) = deployed(book(rule(new_invariant, support=SHORT)), OTHER)
    assert deployed_rule.severity == NOTICE and deployed_rule.confidence < ERROR_CONFIDENCE


@given(st.integers(1, 10), st.integers(0, 1000))
def test_the_confidence_of_a_named_rule_is_that_of_three_programs_at_least(scripts: int, steps: int) -> None:
    confidence = of_named(Support(1, steps, 1, scripts))
    assert confidence == round(of_programs(max(3, scripts), steps), 4)
    assert (confidence >= ERROR_CONFIDENCE) == (steps >= 14 or (scripts > 3 and confidence >= ERROR_CONFIDENCE))


def test_a_habit_and_a_literal_argument_stay_notices(new_invariant: Rules) -> None:
    habit = rule(
        new_invariant,
        Property("keeps its rhythm", "parameter.data"),
        Subject("parameter.data", "rhythm"),
        relation="Periodic",
    )
    literal = rule(new_invariant, Property("contains call", "torch.nn.functional.mse_loss", "reduction=sum"))
    fact = rule(new_invariant, Property("contains call", "torch.nn.Module.forward", "training=True"))
    for learned_rule, severity in ((habit, NOTICE), (literal, NOTICE), (fact, ERROR)):
        (deployed_rule,) = deployed(book(learned_rule), OTHER)
        assert deployed_rule.severity == severity, learned_rule


def test_names_of_the_other_script_are_left_out_and_counted(new_invariant: Rules) -> None:
    own = rule(new_invariant, Property("contains call", "cnn.augment"), Subject("cnn.Net.forward", "calls"))
    setting = rule(new_invariant, Property("is", "hyperparameter.lr", "0.1"), program="cnn.py")
    deployment = deploy(book(rule(new_invariant), own, setting), OTHER, named=True)
    assert (deployment.unused, deployment.others, deployment.known_as) == (2, ("cnn.py",), "")
    assert list(lines_of("good.jsonl", 3, deployment)) == [
        "2 of 3 rules of good.jsonl belong to cnn.py and are not checked here: this program is another one; use --as "
        "cnn.py to check them"
    ]


def test_functions_of_a_shared_package_give_notices(new_invariant: Rules) -> None:
    shared = rule(new_invariant, Property("contains call", "lab.augment"), Subject("lab.nets.Net.forward", "calls"))
    (deployed_rule,) = deployed(book(shared), OTHER)
    assert deployed_rule.severity == NOTICE and deployed_rule.scope == GENERAL


@pytest.mark.parametrize("program", [EDITED, CNN])
def test_own_rules_are_known_under_another_name(program: ProgramIdentity, new_invariant: Rules) -> None:
    own = rule(
        new_invariant,
        Property("contains call", "cnn.augment"),
        Subject("cnn.Net.forward", "calls"),
        sentence="a call of cnn.Net.forward calls cnn.augment, not mycnn.augment",
    )
    setting = rule(new_invariant, Property("is", "hyperparameter.lr", "0.1"), program="cnn.py")
    checked = CheckedProgram("lab/renamed.py", "lab/renamed.py", program)
    deployment = deploy(book(own, setting), checked, named=False)
    assert (deployment.unused, deployment.known_as) == (0, "cnn.py")
    rules = {
        invariant.property.verb: invariant for invariant in deployable(deployment.book.invariants, "lab/renamed.py")
    }
    main = program.main
    assert rules["contains call"].subject.api == f"{main}.Net.forward"
    assert rules["contains call"].sentence == f"a call of {main}.Net.forward calls {main}.augment, not mycnn.augment"
    assert rules["is"].program == "lab/renamed.py" and rules["is"].severity == NOTICE
    assert (rules["contains call"].id == own.id) == (main == "cnn")


def test_a_program_of_the_same_name_is_another_one_if_its_text_is(new_invariant: Rules) -> None:
    own = rule(new_invariant, Property("contains call", "cnn.augment"), Subject("cnn.Net.forward", "calls"))
    assert deployed(book(own), CheckedProgram("cnn.py", "cnn.py", GPT)) == ()
    for identity in (UNKNOWN, ProgramIdentity("cnn")):  # a notebook; a book or a recording of an older version
        assert deployed(book(own), CheckedProgram("cnn.py", "cnn.py", identity))
    assert deployed(book(own, program=UNKNOWN), CheckedProgram("cnn.py", "cnn.py", GPT))
    assert deployed(book(own, program=UNKNOWN), CheckedProgram("other.py", "other.py", CNN)) == ()


def test_a_name_that_the_user_gave_decides(new_invariant: Rules) -> None:
    own = rule(new_invariant, Property("contains call", "cnn.augment"), Subject("cnn.Net.forward", "calls"))
    program = CheckedProgram("gpt.py", "cnn.py", ProgramIdentity("gpt"))
    (deployed_rule,) = deployed(book(own), program)
    assert deployed_rule.subject.api == "gpt.Net.forward" and deployed_rule.origin == ("cnn.py", "gpt.py")


def test_rules_that_a_program_satisfies_apply_to_others(new_invariant: Rules) -> None:
    copies, autocast = Precondition((Clause("copies", True),)), Precondition((Clause("autocast", "off"),))
    learned_rule = replace(rule(new_invariant), experience=autocast, elsewhere=Elsewhere(ERROR, 0.75, copies))
    (deployed_rule,) = deployed(book(learned_rule), OTHER)
    assert set(deployed_rule.experience.clauses) == {*autocast.clauses, *copies.clauses}
    (own,) = deployed(book(learned_rule), CheckedProgram("cnn.py", "cnn.py", CNN))
    assert own.experience == autocast


def test_muted_rules_stay_muted(new_invariant: Rules) -> None:
    deployment = deploy(book(rule(new_invariant, mute="so it is meant")), OTHER, named=True)
    assert deployable(deployment.book.invariants, "gpt.py") == () and deployment.unused == 0


def test_rules_of_several_programs_in_an_unnamed_book_stay(new_invariant: Rules) -> None:
    general = rule(new_invariant, scope=GENERAL, origin=("a.py", "b.py"), confidence=0.7)
    assert deployed(book(general), OTHER, named=False) == (general,)
    assert deployed(book(general), OTHER)[0].severity == ERROR


def test_rules_of_older_books_are_checked_on_their_program_alone(new_invariant: Rules) -> None:
    older = replace(rule(new_invariant), elsewhere=None)
    deployment = deploy(book(older, program=UNKNOWN), OTHER, named=True)
    assert (deployment.book.invariants, deployment.unused) == ((), 1)
    assert deployed(book(older, program=UNKNOWN), CheckedProgram("cnn.py", "cnn.py", CNN)) == (older,)
