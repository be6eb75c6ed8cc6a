"""The JSON report: exactly the fields it promises, read again as it was written, refused with the reason otherwise."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from traincheck.errors import OutputError, ReportError, ReportNotFound, ReportTooNew, ReportUnreadable
from traincheck.reporting.base import Sink
from traincheck.reporting.json_report import JsonSink, json_of, read_json, write_json
from traincheck.vocab.finding import Report

FIELDS = (
    "severity step rank title cause site variables expected observed advice invariants "
    "last_step times ranks compared diagnosis"
)


@pytest.fixture
def path(some_report: Report, tmp_path: Path) -> Path:
    write_json(some_report, tmp_path / "report.json")
    return tmp_path / "report.json"


def complaint(path: Path, error: type[ReportError] = ReportUnreadable) -> str:
    with pytest.raises(error) as caught:
        read_json(path)
    assert type(caught.value) is error
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_a_report_is_read_as_it_was_written(some_report: Report, path: Path) -> None:
    assert read_json(path) == some_report


def test_a_clean_report_is_read_as_it_was_written(clean_report: Report, tmp_path: Path) -> None:
    write_json(clean_report, tmp_path / "clean.json")
    assert read_json(tmp_path / "clean.json") == clean_report


def test_a_comparison_is_read_as_it_was_written_and_checked(clean_report: Report, path: Path) -> None:
    comparison = {"a": "runs/a", "result": "different", "steps": [], "text": ["different: other data, in step 4"]}
    differing = dataclasses.replace(clean_report, comparison=comparison)
    write_json(differing, path)
    assert read_json(path) == differing and differing.differs and not clean_report.differs
    write_json(dataclasses.replace(clean_report, comparison={"result": "different"}), path)
    assert "`a`" in complaint(path)


def test_the_document_has_exactly_the_promised_fields(path: Path) -> None:
    document = json.loads(path.read_text())
    promised = "version verdict findings counts not_observed run ranks divergences cost verification comparison"
    assert list(document) == promised.split()
    assert document["version"] == 1 and document["verdict"] == "errors"
    assert [" ".join(finding) for finding in document["findings"]] == [FIELDS, FIELDS]
    assert document["findings"][0]["site"] == {"file": "project/train.py", "line": 42, "function": "train_step"}
    assert document["findings"][1]["site"] is None


def test_a_report_without_ranks_is_read(some_report: Report, path: Path) -> None:
    document = json.loads(path.read_text())
    del (
        document["ranks"],
        document["divergences"],
        document["findings"][0]["ranks"],
        document["findings"][0]["compared"],
    )
    del document["findings"][0]["diagnosis"]
    path.write_text(json.dumps(document))
    restored = read_json(path)
    assert (restored.ranks, restored.divergences, restored.findings[0].ranks) == ((), (), ())
    assert restored.counts == some_report.counts


def test_the_sink_writes_at_the_end_only(some_report: Report, tmp_path: Path) -> None:
    sink: Sink = JsonSink(tmp_path / "report.json")
    sink.open(some_report.run)
    sink.show(some_report.findings[0])
    assert not list(tmp_path.iterdir())
    sink.close(some_report)
    assert read_json(tmp_path / "report.json") == some_report


def test_facts_about_the_run_that_json_does_not_know_become_text(clean_report: Report) -> None:
    run: dict[Any, object] = {
        "folder": Path("runs/one"),
        "loss": math.nan,
        3: "three",
        "seen": {"a"},
        "name": "tr\udce4in.py",
    }
    document = json.loads(json_of(replace(clean_report, run=run)))["run"]
    assert document == {"folder": "runs/one", "loss": None, "3": "three", "seen": ["a"], "name": r"tr\udce4in.py"}


def test_a_missing_report_is_reported(tmp_path: Path) -> None:
    complaint(tmp_path / "none.json", ReportNotFound)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty"),
        (b"\x89PNG\r\n\x1a\n", "not JSON"),
        (b"hello", "not JSON"),
        (b"[]", "Expected `object`"),
        (b"{}", "version"),
        (b'{"version": 1, "verdict": "clean"}', "findings"),
        (b'{"version": "1"}', "$.version"),
    ],
)
def test_a_file_without_a_report_is_recognised(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "file").write_bytes(content)
    assert reason in complaint(tmp_path / "file")


def test_a_folder_is_no_report(tmp_path: Path) -> None:
    assert "it is a folder" in complaint(tmp_path)


def test_a_report_that_is_cut_short_is_refused(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])
    assert "not JSON" in complaint(path)


def test_a_report_of_a_later_version_asks_for_an_upgrade(path: Path) -> None:
    path.write_text('{"version": 2, "findings": "of another kind"}')
    assert "version 2" in complaint(path, ReportTooNew)


def test_a_wrong_field_is_named(path: Path) -> None:
    path.write_text(path.read_text().replace('"line": 42', '"line": "42"'))
    assert "$.findings[0].site.line" in complaint(path)


def test_a_verdict_that_does_not_follow_from_the_findings_is_refused(path: Path) -> None:
    path.write_text(path.read_text().replace('"verdict": "errors"', '"verdict": "clean"'))
    assert "'clean'" in complaint(path) and "'errors'" in complaint(path)


def test_fields_of_a_later_minor_change_are_passed_over(some_report: Report, path: Path) -> None:
    document = json.loads(path.read_text())
    document["more"] = document["findings"][0]["more"] = document["counts"]["more"] = 1
    path.write_text(json.dumps(document))
    assert read_json(path) == some_report


def test_a_place_that_cannot_be_written_is_reported(some_report: Report, tmp_path: Path) -> None:
    with pytest.raises(OutputError):
        write_json(some_report, tmp_path)
    assert not list(tmp_path.iterdir())
