"""The live part of the detection benchmark reads reports, and lists shortfalls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from benchmarks.detection.__main__ import options
from benchmarks.detection.cases import read_case, read_cases
from benchmarks.detection.judging import judge, missing_groups, things_of, violated
from benchmarks.detection.live import Watched, differing_findings
from benchmarks.detection.live_table import GOALS, detected_in, shortfalls, text

from traincheck.invariants.book import Book
from traincheck.vocab.finding import Counts, Finding, Report, Site
from traincheck.vocab.invariant import Invariant

(CASE,) = read_cases("a03-pytorch-96600")
FINDING = Finding(
    severity="error",
    step=4,
    rank=0,
    title="Gradients of replicas differ between ranks",
    cause="One was changed.",
    site=Site("train.py", 81, "run"),
    variables=("Net.encoder.weight_hh_l0", "Net.head.weight"),
    expected="an update uses the same gradient",
    observed="rank 0 and rank 1 differ in the gradient that the update used",
    advice=("Look at the reduction.",),
    invariants=("aa",),
    last_step=9,
    times=6,
    diagnosis="gradients-differ-between-ranks",
)


def report(*findings: Finding) -> Report:
    return Report(findings, Counts(invariants=7))


def test_parameters_and_calls_are_searched_in_the_location_text() -> None:
    groups = (("weight_hh", "reduce"), ("broadcast",), ("train.py",))
    assert missing_groups(groups, things_of(FINDING)) == (("broadcast",),)
    assert missing_groups((("replicas",), ("reduction",)), things_of(FINDING)) == (("replicas",), ("reduction",))


def test_a_report_is_judged_against_the_clean_one(new_invariant: Callable[..., Invariant]) -> None:
    rule = new_invariant()
    book, finding = Book((rule,)), replace(FINDING, invariants=(rule.id,))
    judgement = judge(CASE, report(finding), book, already_failing=frozenset())
    assert (judgement.same_step, judgement.late, judgement.errors, judgement.rules) == (True, 0, 1, 7)
    assert len(judgement.failed) == 1 and judgement.diagnosed
    assert not judge(CASE, report(finding), book, violated(report(finding))).detected
    assert judge(CASE, report(), book, frozenset()).late is None


@pytest.mark.parametrize(("seconds", "ahead"), [(7.5, 2.5), (11.0, -1.0), (None, None)])
def test_the_time_of_the_leading_finding_counts(seconds: float | None, ahead: float | None) -> None:
    lines = [(6.0, "TrainCheck ERROR at step 41: another"), (6.5, "step 4: loss 0.1")]
    if seconds is not None:
        lines.append((seconds, "TrainCheck ERROR at step 4 on rank 1: Gradients"))
    seen = Watched(Path("run"), report(FINDING), 12.0, tuple(lines), last_event=10.0)
    assert seen.before_the_end == ahead


def test_reports_are_equal_or_their_difference_is_named() -> None:
    other = replace(FINDING, variables=("Net.head.weight",))
    assert differing_findings(report(FINDING), report(FINDING)) == []
    assert len(differing_findings(report(FINDING), report(other))) == 2
    assert len(differing_findings(report(FINDING), report())) == 1


def row(**changed: Any) -> dict[str, Any]:
    leading = {"title": "Gradients differ", "variables": ["a", "b"], "site": None, "observed": "rank 0 differs"}
    good: dict[str, Any] = {
        "id": "x-1",
        "source": "https://example.org",
        "first_bad_step": 4,
        "live": {"same_step": True, "diagnosed": True, "late": 0, "leading": leading},
        "unlike_its_recording": [],
        "not_reported_live": [],
        "ranks_named": [0],
        "ranks_lacking": [],
        "things_lacking": [],
        "clean": [],
        "before_the_end": 2.5,
    }
    return {**good, **changed}


def test_a_good_case_has_no_shortfall() -> None:
    assert shortfalls(row()) == []
    page = text({"rows": [row()]})
    assert "| step 4 | step 4 | 2.5 s | yes | 0 | a and 1 more | named | silent | Gradients differ |" in page
    assert "All cases reach all goals" in page


@pytest.mark.parametrize(
    ("changed", "short"),
    [
        ({"before_the_end": -0.2}, "before the end"),
        ({"before_the_end": None}, "before the end"),
        ({"unlike_its_recording": ["x"]}, "as offline"),
        ({"not_reported_live": ["x"]}, "as offline"),
        ({"ranks_named": []}, "ranks named"),
        ({"ranks_lacking": [1]}, "ranks named"),
        ({"things_lacking": [["a"]]}, "parameter or call named"),
        ({"clean": ["An alarm"]}, "clean run silent"),
    ],
)
def test_shortfalls_are_reported(changed: dict[str, Any], short: str) -> None:
    assert shortfalls(row(**changed)) == [short]
    assert f"* x-1: not {short}. Observed: rank 0 differs" in text({"rows": [row(**changed)]})


def test_a_miss_is_reported() -> None:
    missed = row(live={"same_step": False, "diagnosed": False, "late": None, "leading": None}, ranks_named=[])
    assert detected_in(missed) == "missed" and len(shortfalls(missed)) == 4 < len(GOALS)
    assert "| **missed** |" in text({"rows": [missed]})


def test_cases_of_several_ranks_list_expected_names(tmp_path: Path) -> None:
    assert all(case.concerns for case in read_cases() if case.ranks > 1)
    assert all(rank < case.ranks for case in read_cases() for rank in case.at_fault)
    for file in CASE.folder.glob("*.py"):
        (tmp_path / file.name).write_text(file.read_text())
    wrong = (CASE.folder / "case.toml").read_text().replace("at_fault = [1]", 'at_fault = ["1"]')
    (tmp_path / "case.toml").write_text(wrong)
    with pytest.raises(Exception, match="at_fault must be a list of whole numbers"):
        read_case(tmp_path)


def test_live_is_an_option() -> None:
    assert options().parse_args(["--live", "--cases", "A"]).live
