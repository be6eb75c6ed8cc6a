"""The message and the exit code of a run without a training step."""

from __future__ import annotations

import pytest

from traincheck.cli.console import FINDINGS, UNJUDGED, exit_code
from traincheck.reporting import github, phrases
from traincheck.trace.run_notes import ProcessNote, untrained_in
from traincheck.vocab.finding import Counts, Finding, Report
from traincheck.vocab.invariant import ERROR

HELD = Counts(invariants=3, passed=3)
WRONG = Finding(ERROR, 1, 0, "title", "cause", None, (), "expected", "observed", (), ("id",), 1, 1)


def note(
    updates: int | None, *, forwards: int = 0, backwards: int = 0, forks: int = 0, ended: bool = True
) -> ProcessNote:
    return ProcessNote(updates=updates, forwards=forwards, backwards=backwards, forks=forks, ended=ended)


@pytest.mark.parametrize(
    ("notes", "message"),
    [
        ([note(0, forwards=3)], "no training step was recognised: 3 calls of a model and no backward was seen"),
        (
            [note(0, forks=3)],
            "no training step was recognised: no call of a model and no backward was seen (3 forked child processes, "
            "not observed)",
        ),
        ([note(0)], "no training step was recognised: no call of a model and no backward was seen"),
        (
            [note(0, forwards=1, backwards=1_200), note(0)],
            "no training step was recognised: 1,200 backwards and 1 call of a model were seen, but no update of a "
            "parameter (call traincheck.step() at the end of each step of the loop)",
        ),
    ],
)
def test_the_report_lists_observed_events(notes: list[ProcessNote], message: str) -> None:
    assert untrained_in(notes) == message


@pytest.mark.parametrize(
    "notes",
    [
        [],
        [note(1)],
        [note(0, forwards=3), note(5)],  # another process trains
        [note(None, forwards=3)],  # recorded by an older version
        [note(0, forwards=3, ended=False)],  # killed: its last note may be old
    ],
)
def test_runs_that_may_have_trained_give_no_message(notes: list[ProcessNote]) -> None:
    assert untrained_in(notes) == ""


def test_it_is_no_pass() -> None:
    report = Report((), HELD, run={"untrained": "no training step was recognised: ..."})
    assert report.unjudged
    assert phrases.headline(report) == "Nothing was judged: no training step was recognised: ..."
    assert [exit_code(report, fail_on) for fail_on in ("error", "notice", "never")] == [UNJUDGED, UNJUDGED, 0]
    assert any("no training step" in line for line in github.commands(report))


def test_findings_come_first() -> None:
    report = Report((WRONG,), HELD, run={"untrained": "no training step was recognised: ..."})
    assert not report.unjudged
    assert exit_code(report, "error") == FINDINGS
    assert exit_code(report, "never") == 0


def test_a_run_with_steps_passes() -> None:
    report = Report((), HELD)
    assert not report.unjudged and report.untrained == ""
    assert exit_code(report, "error") == 0
