"""Findings of several ranks name the affected ranks if others are not affected."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from recorded_runs import training
from traincheck.checking import engine
from traincheck.checking.deployed_rules import RuleCounts
from traincheck.checking.engine import Outcome
from traincheck.checking.findings import MAX_OTHER_SETS, group
from traincheck.checking.notifier import Notifier
from traincheck.checking.outcome_files import read_outcome, save_outcome
from traincheck.checking.results import combine
from traincheck.diagnoses.catalogue import diagnose
from traincheck.invariants.book import Book
from traincheck.vocab.builtin_rules import (
    GRAD,
    IS_CALLED,
    LOGITS,
    NOT_ZERO_FOR_LONG,
    REPORTED,
    SCORES,
    STRETCH,
    UNUSED_LAYERS,
)
from traincheck.vocab.finding import Finding, Violation
from traincheck.vocab.invariant import Clause, Invariant
from traincheck.vocab.occasion import Property, Subject
from traincheck.vocab.properties import HAS, ElementSet, set_of

NewInvariant = Callable[..., Invariant]


def violation(new_invariant: NewInvariant, rank: int, step: int = 1) -> Violation:
    return Violation(new_invariant(), step, rank, rank, step, "train", 1, None, "", ())


@pytest.mark.parametrize(
    ("failed", "held", "ranks_text"),
    [
        ((1,), (0,), "on rank 1, not on rank 0"),
        ((0, 2), (1, 3), "on ranks 0, 2, not on ranks 1, 3"),
        ((1,), tuple(range(2, 20)), "on rank 1, not on ranks 2-19"),
        ((0, 1), (), ""),
    ],
)
def test_a_finding_lists_its_ranks(
    new_invariant: NewInvariant, failed: tuple[int, ...], held: tuple[int, ...], ranks_text: str
) -> None:
    rule = new_invariant()
    outcomes = []
    for rank in (*failed, *held):
        violations = [violation(new_invariant, rank)] if rank in failed else []
        outcomes.append(Outcome(rank, rank, {rule.id: RuleCounts(5, len(violations))}, violations, windows=5))
    report = combine(Book((rule,)), [rule], outcomes, unobserved={}).report
    (finding,) = report.findings
    assert finding.observed.endswith(ranks_text) if ranks_text else "on rank" not in finding.observed
    assert (finding.ranks, finding.compared) == (failed, 0)


def test_a_finding_is_reported_once(new_invariant: NewInvariant) -> None:
    notified: list[Finding] = []
    notifier = Notifier(notified.append)
    first, again = violation(new_invariant, 0), violation(new_invariant, 0, step=2)
    assert (
        notifier.feed([first], [first])
        and not notifier.feed([again], [first, again])
        and not notifier.feed([], [first])
    )
    assert [finding.step for finding in notified] == [1]


def test_repeated_violations_are_counted_and_bounded(
    new_invariant: NewInvariant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "MAX_IN_ALL", 250)
    of_each = Subject("torch.optim.Optimizer.step", "parameter.data")
    clauses = ((), (Clause("held", "none"),), (Clause("held", "this", negated=True),))
    # One parameter is frozen.
    rules = [new_invariant(clauses=rule_clauses, subject=of_each) for rule_clauses in clauses]
    checker, steps = engine.Engine(rules), 3 * engine.MAX_VIOLATIONS
    for window in training(steps):
        checker.feed(window)
    live_outcome = checker.outcome
    kept = [sum(violation.invariant == rule for violation in live_outcome.violations) for rule in rules]
    assert max(kept) <= engine.MAX_VIOLATIONS and min(kept) >= engine.FEW and sum(kept) <= 250 + 3 * engine.FEW
    save_outcome(tmp_path, live_outcome)
    for outcome in (live_outcome, read_outcome(tmp_path / "live-0-0.json", Book(tuple(rules)))):
        report = combine(Book(tuple(rules)), rules, [outcome], unobserved={}).report
        (finding,) = report.findings
        assert (finding.step, finding.last_step, finding.times) == (1, steps, steps)


@pytest.mark.parametrize(
    ("evidence", "is_diagnosed"), [(("here a call of f calls Module.forward",), True), ((), False)]
)
def test_uncalled_modules_have_no_mode(
    new_invariant: NewInvariant, evidence: tuple[str, ...], is_diagnosed: bool
) -> None:
    rule = new_invariant(Property("contains call", "torch.nn.Module.forward", "training=True"))
    violation = Violation(rule, 1, 0, 0, 1, "train", 1, None, "", (), evidence=evidence)
    assert (diagnose(violation).slug == "training-in-evaluation-mode") == is_diagnosed


def test_a_module_name_precedes_an_optimizer_index(new_invariant: NewInvariant) -> None:
    def about(rule: Invariant, step: int, *variables: str) -> Violation:
        return Violation(rule, step, 0, 0, step, "train", 1, None, "", variables)

    leader, positional, name = (
        new_invariant(Property("contains call", f"f{n}"), confidence=1 - n / 10) for n in range(3)
    )
    violations = [about(leader, 1), about(positional, 1, "SGD.param_groups[0][1]"), about(name, 2, "Net.head.weight")]
    (finding,) = group(violations)
    assert finding.variables == ("Net.head.weight",)
    (finding,) = group(violations[:2])
    assert finding.variables == ("SGD.param_groups[0][1]",)


def test_a_cause_that_follows_from_no_other_is_a_finding_of_its_own(new_invariant: NewInvariant) -> None:
    """Both begin in step 1: what data the ranks are given cannot come of the parameters."""
    updates = new_invariant(subject=Subject("parameter.data", "step"), prop=Property("moves", "parameter.data"))
    frozen = new_invariant(subject=Subject("parameter.grad", "step"), prop=Property("moves", "parameter.grad"))
    batches = new_invariant(subject=Subject("module.batch", "ranks"), prop=Property("differs on ranks", "batch"))
    rules = (updates, frozen, batches)
    findings = group(Violation(rule, 1, 0, 0, 1, "train", 1, None, "", ()) for rule in rules)
    assert sorted(len(finding.invariants) for finding in findings) == [1, 2]
    assert "ranks-train-on-same-batch" in {finding.diagnosis for finding in findings}


def test_a_finding_shows_what_differs_by_other_rules_about_sets(new_invariant: NewInvariant) -> None:
    def about(grain: str, step: int, rank: int, *evidence: str) -> Violation:
        known = frozenset((Property(HAS, "no_grad.operations", "mul"),))
        rule = new_invariant(set_of(ElementSet(known, known)), subject=Subject("no_grad.operations", grain))
        return Violation(rule, step, rank, rank, step, "train", 1, None, "", (), evidence=evidence)

    leading, elsewhere = (
        about("Net", 1, 0, "here add", "not here: mul"),
        about("Loss", 2, 0, "not here: mul", "here sub"),
    )
    whole_run = [about("main, in a run of 64 to 255 steps", 9, rank, "not here: copy_") for rank in (0, 1)]
    (finding,) = group([leading, elsewhere, *whole_run])
    assert finding.observed == (
        "differs from good runs; here add; not here: mul; also Loss: here sub; "
        "also main, in a run of 64 to 255 steps: not here: copy_"
    )
    many = [about(f"main{number}", 1, 0, f"here f{number}") for number in range(9)]
    (finding,) = group([leading, *many])
    assert finding.observed.count("; also ") == MAX_OTHER_SETS


def test_a_layer_that_is_never_called_does_not_hide_another_error(new_invariant: NewInvariant) -> None:
    def about(prop: Property, subject: Subject, *variables: str) -> Violation:
        return Violation(new_invariant(prop, subject=subject), 1, 0, 0, 1, "train", 1, None, "", variables)

    uncalled = about(IS_CALLED, Subject(UNUSED_LAYERS, REPORTED), "Generator.embedding")
    squashed = about(SCORES, Subject("torch.nn.functional.cross_entropy", LOGITS))
    of_the_layer = about(NOT_ZERO_FOR_LONG, Subject(GRAD, STRETCH), "Generator.embedding")
    findings = group([uncalled, squashed, of_the_layer])
    assert [(finding.diagnosis, len(finding.invariants)) for finding in findings] == [
        ("layer-never-called", 2),
        ("unexpected-loss-input", 1),
    ]
