"""Weighing: what becomes a rule, how much it is worth, and why the others are dropped.

The numbers follow from Note [Confidence]: s programs and t steps give (s + 1) / (s + 2) times (t + 1) / (t + 2), r runs
of one pipeline r / (r + 1), and an error takes 3/4.
"""

from __future__ import annotations

from collections.abc import Iterable, Set

import pytest

from traincheck.inference.candidate_selection import select_rules
from traincheck.inference.contexts import SKETCH
from traincheck.inference.journal import DROPPED, KEPT, Entry, Journal
from traincheck.inference.tally import Tally
from traincheck.invariants.book import Book
from traincheck.invariants.selection import deployable
from traincheck.vocab.events import FUNCTION, NO_CALL, TRAIN, Call, Window
from traincheck.vocab.facts import Facts, facts
from traincheck.vocab.invariant import ERROR, GENERAL, NOTICE, PIPELINE, Precondition
from traincheck.vocab.occasion import Occasion, Property, Subject

STEP = "torch.optim.Optimizer.step"
UPDATE, LR = Subject(STEP), Subject("hyperparameter.lr", "setting 1")
CHANGES = Property("contains change", "parameter.data", "changes")
NOTHING: frozenset[Property] = frozenset()


def rate(value: str) -> Property:
    """Return the fact of this learning rate."""
    return Property("is", "hyperparameter.lr", value)


def run(script: str = "a.py") -> Tally:
    return Tally(script, f"digest of {script}")


def tallied(
    tally: Tally,
    windows: Iterable[int],
    prop: Property = CHANGES,
    held: bool = True,
    context: Facts = (),
    subject: Subject = UPDATE,
    relation: str = "EventContain",
) -> Tally:
    """The tally with one more occasion in each of these windows, on which the property held or failed."""
    sides: tuple[Set[Property], Set[Property]] = ({prop}, NOTHING) if held else (NOTHING, {prop})
    for index in windows:
        tally.add_occasions(relation, [Occasion(subject, context, *sides, 0)], index)
    return tally


def setting(script: str, *values: str) -> Tally:
    """A run of a program with these learning rates, one after the other."""
    tally = run(script)
    for index, value in enumerate(values):
        tally.add_occasions("Consistent", [Occasion(LR, (), {rate(value)}, None, 0)], index)
    return tally


def reasons(journal: Journal, outcome: str = DROPPED) -> list[str]:
    return [entry.reason for entry in journal.entries if entry.outcome == outcome]


def only(journal: Journal) -> Entry:
    (entry,) = journal.entries
    return entry


# -- support -----------------------------------------------------------------------------------------------------------


def steps_of(*tallies: Tally) -> int:
    book, _ = select_rules(tallies)
    (rule,) = book.invariants
    assert rule.precondition == Precondition()
    return rule.support.steps


LATER, WARMUP = facts(lr="positive"), facts(lr="zero")


def test_steps_of_two_contexts_that_share_windows_count_once() -> None:
    """Windows 0 to 9 in one context, 5 to 14 in another: fifteen windows, in which there were twenty occasions."""
    tally = tallied(tallied(run(), range(10)), range(5, 15), context=LATER)
    assert steps_of(tally) == 15
    book, _ = select_rules([tally])
    assert book.invariants[0].support.occasions == 20


def test_steps_of_two_runs_add_up_and_those_of_two_ranks_do_not() -> None:
    first, second = tallied(run(), range(10)), tallied(run(), range(10))
    assert steps_of(first, second) == 20
    first.merge(second)
    assert steps_of(first) == 10


def test_parts_of_a_run_add_up() -> None:
    """Two processes that each saw half of the run."""
    first = tallied(run(), range(10))
    first.merge(tallied(run(), range(10, 20)))
    assert steps_of(first) == 20


def test_without_sketches_the_context_with_most_windows_counts() -> None:
    """A tally of an older version: at least ten windows, but fifteen are not proven."""
    tally = tallied(tallied(run(), range(10)), range(5, 15), context=LATER)
    for cell in tally.cells["EventContain", UPDATE].values():
        for count in cell.properties.values():
            count.seen = count.missed = 0
    assert steps_of(tally) == 10


def test_the_largest_context_of_a_long_run_counts() -> None:
    tally = tallied(tallied(run(), range(3 * SKETCH)), range(2 * SKETCH, 4 * SKETCH), context=LATER)
    assert steps_of(tally) == 3 * SKETCH, "at the least; there were four times as many as a sketch has bits"


def test_steps_are_those_that_the_precondition_selects() -> None:
    """The property fails in the first step of each run, with learning rate zero; the other nineteen are the support."""
    tallies = []
    for script in ("a.py", "b.py", "c.py"):
        tally = tallied(run(script), [0], held=False, context=WARMUP)
        tallies.append(tallied(tally, range(1, 20), context=LATER))
    book, _ = select_rules(tallies)
    (rule,) = book.invariants
    assert rule.precondition.true_in(LATER) and not rule.precondition.true_in(WARMUP)
    assert (rule.support.steps, rule.support.occasions, rule.support.scripts) == (57, 57, 3)


def test_a_rule_of_a_single_step_is_a_coincidence() -> None:
    book, journal = select_rules([tallied(tallied(run(), [3]), [3], context=LATER)])
    assert not book.invariants and only(journal).reason == "seen in a single training step"


# -- scope, confidence, severity ---------------------------------------------------------------------------------------


def test_one_program_makes_a_rule_of_its_pipeline() -> None:
    """Three runs: 3/4, an error there, and nothing anywhere else."""
    book, _ = select_rules([tallied(run(), range(4)) for _ in range(3)])
    (rule,) = book.invariants
    assert (rule.scope, rule.confidence, rule.severity, rule.origin) == (PIPELINE, 0.75, ERROR, ("a.py",))
    assert deployable(book.invariants, "a.py") == (rule,) and deployable(book.invariants, "b.py") == ()


def test_two_runs_of_a_pipeline_are_a_notice() -> None:
    (rule,) = select_rules([tallied(run(), range(100)) for _ in range(2)])[0].invariants
    assert (rule.scope, rule.confidence, rule.severity) == (PIPELINE, round(2 / 3, 4), NOTICE)


def test_several_programs_make_a_general_rule() -> None:
    """Three programs at fourteen steps between them: (4/5) (15/16) = 3/4; with a step less, a notice."""
    tallies = [tallied(run("a.py"), range(5)), tallied(run("b.py"), range(5)), tallied(run("c.py"), range(4))]
    (rule,) = select_rules(tallies)[0].invariants
    assert (rule.scope, rule.confidence, rule.severity) == (GENERAL, 0.75, ERROR)
    assert deployable([rule], "never-seen.py") == (rule,)
    tallies[2] = tallied(run("c.py"), range(3))
    (rule,) = select_rules(tallies)[0].invariants
    assert rule.confidence < 0.75 and rule.severity == NOTICE


CYCLE = Subject(STEP, "cycle")


@pytest.mark.parametrize(
    ("prop", "severity"),
    [
        (Property("preceded by", "torch.nn.utils.clip_grad_norm_"), NOTICE),
        (Property("preceded by", "parameter.grad", "is cleared"), ERROR),
        (Property("preceded by", "torch.autograd.backward", "then torch.nn.utils.clip_grad_norm_"), ERROR),
    ],
)
def test_a_habit_is_a_notice_however_certain(prop: Property, severity: str) -> None:
    """A program may stop clipping on purpose, but not clearing gradients or the order of calls."""
    tallies = [
        tallied(run(f"{number}.py"), range(50), prop, subject=CYCLE, relation="APISequence") for number in range(10)
    ]
    (rule,) = select_rules(tallies)[0].invariants
    assert rule.severity == severity and rule.confidence == round(11 / 12 * 501 / 502, 4)


# -- what is dropped ---------------------------------------------------------------------------------------------------


def test_candidates_that_never_held_are_dropped() -> None:
    book, journal = select_rules([tallied(run(), range(20), held=False)])
    entry = only(journal)
    assert not book.invariants
    assert (entry.reason, entry.held, entry.failed, entry.steps, entry.runs) == ("it never held", 0, 20, 20, 1)


def test_failures_without_a_separating_fact_drop_the_candidate() -> None:
    book, journal = select_rules([tallied(tallied(run(), range(0, 20, 2)), range(1, 20, 2), held=False)])
    assert not book.invariants
    assert "it both held and failed in the context" in only(journal).reason


def test_the_journal_counts_windows_once() -> None:
    tally = tallied(tallied(run(), range(10), held=False), range(5, 15), held=False, context=LATER)
    entry = only(select_rules([tally])[1])
    assert (entry.failed, entry.steps) == (20, 15)


def test_counts_of_missing_relations_are_ignored() -> None:
    book, journal = select_rules([tallied(run(), range(9), relation="Elsewhere")])
    assert book.invariants == () and journal.entries == []


def test_no_runs_give_no_rules() -> None:
    book, journal = select_rules([])
    assert (book, journal.entries) == (Book(), [])


F = "train.f"
WITH_FLAG = Property("contains call", F, "flag=True")


def flagged(script: str, *values: bool, tensors: bool = True) -> Tally:
    """A run in which each call of `g` calls `f` with the flag set, and others call it with these values."""
    tally = tallied(run(script), range(8), WITH_FLAG, subject=Subject("train.g", "calls"))
    result = facts(dtype="float32") if tensors else ()
    calls = (
        Call(seq, seq, NO_CALL, FUNCTION, (F,), "", "", (), facts(flag=flag), result) for seq, flag in enumerate(values)
    )
    tally.add_window(Window(0, 1, TRAIN, tuple(calls)))
    return tally


def test_a_rule_rests_on_an_argument_only_if_it_varied() -> None:
    """`f` was never called without the flag: that `g` sets it may be everybody's habit. In one run it is not set."""
    book, journal = select_rules([flagged("a.py", True), flagged("b.py", True)])
    assert not book.invariants and "the argument flag never had another value" in only(journal).reason
    book, _ = select_rules([flagged("a.py", True), flagged("b.py", True, False)])
    assert [rule.property for rule in book.invariants] == [WITH_FLAG]


def test_calls_that_do_nothing_are_dull() -> None:
    book, journal = select_rules([flagged("a.py", True, False, tensors=False)])
    assert not book.invariants and f"{F} is skipped" in only(journal).reason


# -- settings ----------------------------------------------------------------------------------------------------------


def test_a_setting_common_to_all_runs_of_a_program_is_learned() -> None:
    book, journal = select_rules([setting("a.py", "0.01"), setting("a.py", "0.01")])
    (rule,) = book.invariants
    assert (rule.property, rule.program, rule.scope, rule.origin) == (rate("0.01"), "a.py", PIPELINE, ("a.py",))
    assert (rule.support.runs, rule.support.scripts, rule.confidence) == (2, 1, round(2 / 3, 4))
    assert rule.precondition == rule.experience == Precondition()
    assert [entry.id for entry in journal.entries if entry.outcome == KEPT] == [rule.id]
    assert deployable([rule], "a.py") == (rule,) and deployable([rule], "b.py") == ()


def test_a_setting_is_a_notice_however_many_runs_had_it() -> None:
    """A change of this setting may be intended."""
    (rule,) = select_rules([setting("a.py", "0.01") for _ in range(50)])[0].invariants
    assert rule.severity == NOTICE and rule.confidence == round(50 / 51, 4)


def test_runs_may_differ_on_purpose() -> None:
    book, journal = select_rules([setting("a.py", "0.01"), setting("b.py", "0.01")])
    assert not book.invariants
    assert reasons(journal) == [f"seen in one run of {name} only: it may be meant to vary" for name in ("a.py", "b.py")]


def test_varying_values_are_no_settings() -> None:
    """Twice 0.01 and once 0.1: neither is what the program is run with. Nor are both, in one run."""
    book, journal = select_rules([setting("a.py", "0.01"), setting("a.py", "0.01"), setting("a.py", "0.1")])
    assert not book.invariants and reasons(journal) == ["it varied in a.py"] * 2
    book, journal = select_rules([setting("a.py", "0.01", "0.1")] * 2)
    assert not book.invariants and reasons(journal) == ["it varied in a.py"] * 2


def test_each_program_has_its_own_setting() -> None:
    """Another program's value neither counts for it nor against it, and says nothing in the journal."""
    settings = (("a.py", "0.01"), ("b.py", "0.1"), ("c.py", "0.01"))
    book, journal = select_rules([setting(*values) for values in settings * 2])
    rules = {rule.program: rule for rule in book.invariants}
    assert {name: rule.property for name, rule in rules.items()} == {
        "a.py": rate("0.01"),
        "b.py": rate("0.1"),
        "c.py": rate("0.01"),
    }
    assert reasons(journal) == [] and len({rule.id for rule in rules.values()}) == 3
    for name, rule in rules.items():
        assert deployable(book.invariants, name) == (rule,)
    assert deployable(book.invariants, "d.py") == ()
