"""From occasions to rules: confidence, tallies, and the independence of order."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from traincheck.inference.candidate_selection import select_rules
from traincheck.inference.confidence import ERROR_CONFIDENCE, of_programs, of_runs, of_support, severity
from traincheck.inference.journal import DROPPED, KEPT
from traincheck.inference.learn import tally_windows
from traincheck.inference.tally import Tally
from traincheck.invariants.book import write_book
from traincheck.testing.readable_traces import from_text
from traincheck.vocab.events import Window
from traincheck.vocab.facts import facts
from traincheck.vocab.invariant import ERROR, NOTICE, Invariant, Support
from traincheck.vocab.occasion import Occasion, Property, Subject

STEP, SGD, ADAM = "torch.optim.Optimizer.step", "torch.optim.SGD.step", "torch.optim.Adam.step"
CHANGES = Property("contains change", "parameter.data", "changes")


# -- confidence ------------------------------------------------------------------------------------------------------


def test_three_programs_at_fourteen_steps_are_exactly_an_error() -> None:
    assert of_programs(3, 14) == ERROR_CONFIDENCE == 0.75
    assert severity(of_programs(3, 14)) == ERROR
    assert severity(of_programs(3, 13)) == severity(of_programs(2, 10**9)) == NOTICE


def test_three_runs_of_a_pipeline_are_exactly_an_error() -> None:
    assert of_runs(3) == ERROR_CONFIDENCE
    assert severity(of_runs(3)) == ERROR
    assert severity(of_runs(2)) == NOTICE


def test_a_change_of_habit_is_never_an_error() -> None:
    assert severity(of_programs(10**6, 10**6), habit=True) == severity(of_runs(10**6), habit=True) == NOTICE


def test_more_is_more_certain_and_never_sure() -> None:
    for programs, steps in itertools.product((1, 2, 5), (1, 10, 1000)):
        assert 0 < of_programs(programs, steps) < of_programs(programs + 1, steps) < 1
        assert of_programs(programs, steps) < of_programs(programs, steps + 1)
    for runs in (1, 2, 5, 1000):
        assert 0 < of_runs(runs) < of_runs(runs + 1) < 1


@pytest.mark.parametrize("steps", [1, 14, 10**6])
def test_a_pipeline_counts_runs_where_a_general_rule_counts_programs_and_steps(steps: int) -> None:
    support = Support(occasions=1000, steps=steps, runs=3, scripts=1)
    assert of_support(support, pipeline=True) == of_runs(3)
    assert of_support(support, pipeline=False) == of_programs(1, steps)


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
    traced = from_text(GOOD.replace("SGD", name) * steps)
    return [replace(window, step=number) for number, window in enumerate(traced, start=1)]


def tally(script: str, window_list: Iterable[Window]) -> Tally:
    counted = Tally(script, f"digest of {script}")
    tally_windows(window_list, counted)
    return counted


def rule(rules: Iterable[Invariant], subject: Subject, prop: Property) -> Invariant:
    return next(candidate for candidate in rules if (candidate.subject, candidate.property) == (subject, prop))


def test_support_counts_windows_runs_and_programs() -> None:
    book, journal = select_rules(
        [tally("a.py", windows()), tally("a.py", windows()), tally("b.py", windows(6, "Adam"))]
    )
    general = rule(book.invariants, Subject(STEP), CHANGES)
    assert (general.support.steps, general.support.runs, general.support.scripts) == (22, 3, 2)
    assert general.origin == ("a.py", "b.py") and general.scope == "general"
    per_variable = rule(book.invariants, Subject(STEP, "parameter.data"), CHANGES)
    assert "held" in str(per_variable.precondition)
    assert {entry.id for entry in journal.entries if entry.outcome == KEPT} == {
        invariant.id for invariant in book.invariants
    }
    assert all(entry.reason for entry in journal.entries)


def test_a_rule_of_a_single_step_is_a_coincidence() -> None:
    book, journal = select_rules([tally("a.py", windows(1))])
    assert rule_or_none(book.invariants, Subject(STEP), CHANGES) is None
    assert "single training step" in " ".join(entry.reason for entry in journal.entries if entry.outcome == DROPPED)


def rule_or_none(rules: Iterable[Invariant], subject: Subject, prop: Property) -> Invariant | None:
    return next((candidate for candidate in rules if (candidate.subject, candidate.property) == (subject, prop)), None)


def test_the_general_class_covers_the_special_one() -> None:
    book, journal = select_rules([tally("a.py", windows()), tally("b.py", windows(8, "Adam"))])
    subjects = {invariant.subject.api for invariant in book.invariants if invariant.property == CHANGES}
    assert subjects == {STEP}
    assert any("more general class" in entry.reason for entry in journal.entries)


def test_the_order_of_runs_does_not_matter(tmp_path: Path) -> None:
    make: list[Callable[[], Tally]] = [
        lambda: tally("a.py", windows(8)),
        lambda: tally("b.py", windows(5, "Adam")),
        lambda: tally("c.py", windows(6)[:4]),
        lambda: tally("d.py", windows(6)[3:]),
    ]
    written = set()
    for number, order in enumerate(itertools.permutations(make)):
        tallies = sorted(
            (create() for create in order), key=lambda tallied: (tallied.script, tallied.digest, tallied.steps)
        )
        path = tmp_path / f"{number}.jsonl"
        write_book(select_rules(tallies)[0], path)
        written.add(path.read_bytes())
    assert len(written) == 1
    unsorted = {select_rules([create() for create in order])[0].invariants for order in itertools.permutations(make)}
    assert len({tuple(sorted(map(repr, rules))) for rules in unsorted}) == 1


def test_counts_are_sums() -> None:
    prop = Property("holds", "x")
    occasions = [Occasion(Subject("f"), facts(a=index % 2), {prop}, set(), index) for index in range(6)]
    whole, parts = Tally("a.py", ""), Tally("a.py", "")
    whole.add_occasions("R", occasions, 0)
    for occasion in reversed(occasions):
        parts.add_occasions("R", [occasion], 0)

    def counts(counted: Tally) -> dict[object, tuple[int, int, int]]:
        evidence = counted.evidence(("R", Subject("f")), prop)
        return {context: (count.held, count.failed, count.windows) for context, count in evidence}

    assert counts(whole) == counts(parts) == {facts(a=0): (3, 0, 1), facts(a=1): (3, 0, 1)}


def test_closed_world_relations_count_missing_events_as_failures() -> None:
    first, second = Property("holds", "x"), Property("holds", "y")
    counted = Tally("a.py", "")
    counted.add_occasions("R", [Occasion(Subject("f"), (), {first}, None, 0)] * 3, 0)
    counted.add_occasions("R", [Occasion(Subject("f"), (), {first, second}, None, 0)], 1)
    ((_, count),) = counted.evidence(("R", Subject("f")), second)
    assert (count.held, count.failed) == (1, 3)
    open_world = Tally("a.py", "")
    open_world.add_occasions("R", [Occasion(Subject("f"), (), {first}, {second}, 0)], 0)
    assert list(open_world.evidence(("R", Subject("f")), Property("holds", "z"))) == []
