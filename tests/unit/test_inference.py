"""From occasions to rules: preconditions, confidence, tallies, suppression, and the independence of order."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from traincheck.inference.confidence import ERROR_CONFIDENCE, confidence, of_support, severity
from traincheck.inference.journal import DROPPED, KEPT
from traincheck.inference.learn import tally_windows, weigh
from traincheck.inference.preconditions import Evidence, Inseparable, experience, learn
from traincheck.inference.suppression import suppress
from traincheck.inference.tally import Tally
from traincheck.invariants.book import write_book
from traincheck.testing.readable import from_text
from traincheck.vocab.events import Window
from traincheck.vocab.facts import facts
from traincheck.vocab.invariant import ERROR, NOTICE, Clause, Invariant, Precondition, Support
from traincheck.vocab.occasion import Occasion, Property, Subject

STEP, SGD, ADAM = "torch.optim.Optimizer.step", "torch.optim.SGD.step", "torch.optim.Adam.step"
CHANGES = Property("contains change", "parameter.data", "changes")


def good(run: int = 0, **told: object) -> Evidence:
    return Evidence(facts(**told), run, held=10, failed=0, windows=5)  # type: ignore[arg-type]


def bad(run: int = 0, **told: object) -> Evidence:
    return Evidence(facts(**told), run, held=3, failed=1, windows=5)  # type: ignore[arg-type]


def learned(*evidence: Evidence) -> str:
    """The precondition in words, whatever the order of the evidence."""
    found = {str(learn(order)) for order in itertools.islice(itertools.permutations(evidence), 24)}
    assert len(found) == 1
    return found.pop()


# -- preconditions ---------------------------------------------------------------------------------------------------


def test_no_failure_needs_no_condition() -> None:
    assert learned(good(mode="a"), good(mode="b")) == "always"


def test_one_planted_clause() -> None:
    assert learned(good(stage="train", x=1), good(stage="train", x=2), bad(stage="eval", x=1)) == "stage is train"


def test_a_planted_negation() -> None:
    evidence = [good(grads=state, x=x) for state in ("some", "mixed", "zero") for x in (1, 2)]
    assert learned(*evidence, bad(grads="none", x=1), bad(grads="none", x=2)) == "grads is not none"


def test_a_planted_conjunction() -> None:
    told = learned(
        good(a=True, b=True, c=1),
        good(a=True, b=True, c=2),
        bad(a=True, b=False, c=1),
        bad(a=False, b=True, c=1),
        bad(a=True, b=False, c=2),
        bad(a=False, b=True, c=2),
    )
    assert set(told.split(" and ")) in (
        {"a is True", "b is True"},
        {"a is not False", "b is not False"},
        {"a is True", "b is not False"},
        {"a is not False", "b is True"},
    )


def test_what_no_condition_separates() -> None:
    found = learn([good(a=1, b=1), bad(a=1, b=1)])
    assert isinstance(found, Inseparable)
    assert "both held and failed" in str(found)
    three = [good(a=1, b=1, c=1), bad(a=1, b=1, c=0), bad(a=1, b=0, c=1), bad(a=0, b=1, c=1)]
    assert isinstance(learn(three), Inseparable)
    assert isinstance(learn([bad(a=1), bad(a=2)]), Inseparable)


def test_frequency_is_no_criterion() -> None:
    rare = Evidence(facts(replicated=True), 0, held=1, failed=0, windows=1)
    often = Evidence(facts(replicated=False), 0, held=0, failed=38, windows=38)
    assert learned(rare, often) == "replicated is True"


def test_facts_that_separate_equally_well_enter_together() -> None:
    told = learned(good(a=1, b="x"), bad(a=2, b="y"))
    assert {clause.split()[0] for clause in told.split(" and ")} == {"a", "b"}


def test_the_condition_that_covers_most_runs_wins() -> None:
    evidence = [good(run, lr="positive", script=run) for run in range(3)]
    assert learned(*evidence, bad(0, lr="zero", script=3), bad(1, lr="zero", script=1)) == "lr is positive"


def test_experience_is_what_never_varied() -> None:
    rows = [good(autocast="off", stage="train", x=1), good(autocast="off", stage="train", x=2)]
    known = experience(rows, Precondition((Clause("stage", "train"),)))
    assert [str(clause) for clause in known.clauses] == ["autocast is off"]
    assert known.true_in(facts(autocast="off", stage="eval")) and not known.true_in(facts(autocast="bfloat16"))


def test_symptoms_are_no_experience() -> None:
    rows = [good(held="this", grads="some", x=1)]
    known = experience(rows, Precondition())
    for state in ("some", "none", "mixed"):
        assert known.true_in(facts(held="none", grads=state, x=1))
    assert not known.true_in(facts(held="this", grads="some", x=2))


# -- confidence ------------------------------------------------------------------------------------------------------


def test_three_programs_at_fourteen_steps_are_exactly_an_error() -> None:
    assert confidence(3, 14) == ERROR_CONFIDENCE == 0.75
    assert severity(confidence(3, 14)) == ERROR
    assert severity(confidence(3, 13)) == severity(confidence(2, 10**9)) == NOTICE


def test_more_is_more_certain_and_never_sure() -> None:
    for programs, steps in itertools.product((1, 2, 5), (1, 10, 1000)):
        assert 0 < confidence(programs, steps) < confidence(programs + 1, steps) < 1
        assert confidence(programs, steps) < confidence(programs, steps + 1)


def test_a_pipeline_counts_runs_where_a_general_rule_counts_programs() -> None:
    support = Support(occasions=1000, steps=14, runs=3, scripts=1)
    assert of_support(support, pipeline=True) == 0.75
    assert of_support(support, pipeline=False) == confidence(1, 14)


# -- tallies and the whole -------------------------------------------------------------------------------------------

GOOD = """
window train step=1
  lifecycle torch.optim.SGD.zero_grad < torch.optim.Optimizer.zero_grad receiver=SGD
    change Net.w parameter.grad some -> none changed owner=SGD
  lifecycle torch.autograd.backward
    change Net.w parameter.grad none -> some changed owner=SGD
  lifecycle torch.optim.SGD.step < torch.optim.Optimizer.step receiver=SGD context={"grads":"some"}
    change Net.w parameter.data some -> some changed owner=SGD context={"held":"this"}
    change Net.frozen parameter.data some -> some owner=SGD context={"held":"none"}
"""


def windows(steps: int = 8, name: str = "SGD") -> list[Window]:
    told = from_text(GOOD.replace("SGD", name) * steps)
    return [replace(window, step=number) for number, window in enumerate(told, start=1)]


def tally(script: str, told: Iterable[Window]) -> Tally:
    found = Tally(script, f"digest of {script}")
    tally_windows(told, found)
    return found


def rule(found: Iterable[Invariant], subject: Subject, prop: Property) -> Invariant:
    return next(one for one in found if (one.subject, one.property) == (subject, prop))


def test_support_counts_windows_runs_and_programs() -> None:
    book, journal = weigh([tally("a.py", windows()), tally("a.py", windows()), tally("b.py", windows(6, "Adam"))])
    found = rule(book.invariants, Subject(STEP), CHANGES)
    assert (found.support.steps, found.support.runs, found.support.scripts) == (22, 3, 2)
    assert found.origin == ("a.py", "b.py") and found.scope == "general"
    each = rule(book.invariants, Subject(STEP, "parameter.data"), CHANGES)
    assert "held" in str(each.precondition)
    assert {entry.id for entry in journal.entries if entry.fate == KEPT} == {one.id for one in book.invariants}
    assert all(entry.why for entry in journal.entries)


def test_a_rule_of_a_single_step_is_a_coincidence() -> None:
    book, journal = weigh([tally("a.py", windows(1))])
    assert rule_or_none(book.invariants, Subject(STEP), CHANGES) is None
    assert "single training step" in " ".join(entry.why for entry in journal.entries if entry.fate == DROPPED)


def rule_or_none(found: Iterable[Invariant], subject: Subject, prop: Property) -> Invariant | None:
    return next((one for one in found if (one.subject, one.property) == (subject, prop)), None)


def test_the_general_class_speaks_for_the_special_one() -> None:
    book, journal = weigh([tally("a.py", windows()), tally("b.py", windows(8, "Adam"))])
    subjects = {one.subject.api for one in book.invariants if one.property == CHANGES}
    assert subjects == {STEP}
    assert any("more general class" in entry.why for entry in journal.entries)


def test_the_order_of_runs_does_not_matter(tmp_path: Path) -> None:
    make: list[Callable[[], Tally]] = [
        lambda: tally("a.py", windows(8)),
        lambda: tally("b.py", windows(5, "Adam")),
        lambda: tally("c.py", windows(6)[:4]),
        lambda: tally("d.py", windows(6)[3:]),
    ]
    written = set()
    for number, order in enumerate(itertools.permutations(make)):
        tallies = sorted((one() for one in order), key=lambda one: (one.script, one.digest, one.steps))
        path = tmp_path / f"{number}.jsonl"
        write_book(weigh(tallies)[0], path)
        written.add(path.read_bytes())
    assert len(written) == 1
    unsorted = {weigh([one() for one in order])[0].invariants for order in itertools.permutations(make)}
    assert len({tuple(sorted(map(repr, rules))) for rules in unsorted}) == 1


def test_counts_are_sums() -> None:
    prop = Property("holds", "x")
    occasions = [Occasion(Subject("f"), facts(a=place % 2), {prop}, set(), place) for place in range(6)]
    whole, parts = Tally("a.py", ""), Tally("a.py", "")
    whole.add_occasions("R", occasions, 0)
    for occasion in reversed(occasions):
        parts.add_occasions("R", [occasion], 0)

    def counts(one: Tally) -> dict[object, tuple[int, int, int]]:
        found = one.evidence(("R", Subject("f")), prop)
        return {context: (count.held, count.failed, count.windows) for context, count in found}

    assert counts(whole) == counts(parts) == {facts(a=0): (3, 0, 1), facts(a=1): (3, 0, 1)}


def test_in_a_closed_world_what_is_not_told_has_failed() -> None:
    one, other = Property("holds", "x"), Property("holds", "y")
    found = Tally("a.py", "")
    found.add_occasions("R", [Occasion(Subject("f"), (), {one}, None, 0)] * 3, 0)
    found.add_occasions("R", [Occasion(Subject("f"), (), {one, other}, None, 0)], 1)
    ((_, count),) = found.evidence(("R", Subject("f")), other)
    assert (count.held, count.failed) == (1, 3)
    open_world = Tally("a.py", "")
    open_world.add_occasions("R", [Occasion(Subject("f"), (), {one}, {other}, 0)], 0)
    assert list(open_world.evidence(("R", Subject("f")), Property("holds", "z"))) == []


# -- suppression -----------------------------------------------------------------------------------------------------

LEVELS = [(SGD, STEP), (ADAM, STEP)]


@pytest.fixture
def make(new_invariant: Callable[..., Invariant]) -> Callable[..., Invariant]:
    def new(api: str, thing: str, detail: str = "", clauses: tuple[Clause, ...] = (), **more: object) -> Invariant:
        return new_invariant(Property("contains call", thing, detail), clauses, subject=Subject(api), **more)

    return new


def left(rules: list[Invariant], levels: list[tuple[str, ...]] = LEVELS) -> set[tuple[str, str, str]]:
    orders = itertools.islice(itertools.permutations(rules), 24)
    found = {
        frozenset((one.subject.api, one.property.object, one.property.detail) for one in suppress(order, levels)[0])
        for order in orders
    }
    assert len(found) == 1
    return set(found.pop())


def test_the_special_class_follows_from_the_general(make: Callable[..., Invariant]) -> None:
    assert left([make(STEP, "x"), make(SGD, "x"), make(ADAM, "y")]) == {(STEP, "x", ""), (ADAM, "y", "")}
    narrow = (Clause("stage", "train"),)
    assert left([make(STEP, "x", clauses=narrow), make(SGD, "x")]) == {(STEP, "x", ""), (SGD, "x", "")}
    assert left([make(STEP, "x"), make(SGD, "x", clauses=narrow)]) == {(STEP, "x", "")}


def test_a_fixed_argument_says_more(make: Callable[..., Invariant]) -> None:
    assert left([make("f", "g"), make("f", "g", "training=True")]) == {("f", "g", "training=True")}
    weaker = make("f", "g", "training=True", severity=NOTICE)
    assert len(left([make("f", "g"), weaker])) == 2


def test_what_is_implied_names_what_implies_it(make: Callable[..., Invariant]) -> None:
    rules = [make(STEP, "x"), make(SGD, "x")]
    kept, implied = suppress(rules, LEVELS)
    assert kept == [rules[0]]
    assert [(one.rule, one.by) for one in implied] == [(rules[1], rules[0])] and implied[0].why


def test_nothing_is_lost_where_nothing_is_implied(make: Callable[..., Invariant]) -> None:
    rules = [make("f", "g"), make("g", "h"), make("k", "h")]
    assert len(left(rules)) == 3
