"""The page: what its pictures draw, several runs side by side, and the command that writes it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from pages import ATTACKS, Page
from recorded_runs import training, write_run
from sample_report import sample_details
from traincheck.cli.main import main
from traincheck.cli.report_output import names_of
from traincheck.reporting.html.charts import HEIGHT, WIDTH, axis, cost_bars, line, matrix, track
from traincheck.reporting.html.run_section import PageRun
from traincheck.reporting.html.side_by_side import shared
from traincheck.reporting.html.sink import TEMPLATES, html_of, page_of
from traincheck.reporting.json_report import write_json
from traincheck.vocab.finding import PASSED, Cost, Report, Site
from traincheck.vocab.finding_details import Agreement, Aspect, Curve, History, State, Strip
from traincheck.vocab.invariant import Invariant

# -- pictures ----------------------------------------------------------------------------------------------------------

ASPECT = Aspect("gradient", (State("none", "empty"), State("some", "full")))


def test_steps_in_one_state_are_one_block() -> None:
    drawn = track(Strip((0, 0, 1, -1)), ASPECT, (5, 6, 7, 8))
    assert [(block.left, block.width, block.tone) for block in drawn.blocks] == [(0, 50, "empty"), (50, 25, "full")]
    assert drawn.words == "gradient: none in steps 5 to 6, some in step 7, not recorded in step 8"


def test_the_marked_step_lies_where_its_blocks_begin() -> None:
    assert axis(History("x", (5, 6, 7, 8), 7, (ASPECT,), ())).at == 50
    assert axis(History("x", (5, 6, 7, 8), 0, (ASPECT,), ())).at is None


def test_a_curve_breaks_where_a_step_is_missing_and_stays_in_its_drawing() -> None:
    drawn = line(Curve("loss", 1, 9, 3, ((1, 0.5), (2, 1.0), (4, 0.0), (5, 0.75))))
    assert drawn.path.count("M") == 2 and drawn.path.count("L") == 2 and drawn.dots.count("M") == 4
    numbers = [float(part) for part in drawn.path.replace("M", " ").replace("L", " ").split()]
    assert all(0 <= x <= WIDTH for x in numbers[::2]) and all(0 <= y <= HEIGHT for y in numbers[1::2])
    assert (drawn.low, drawn.high) == ("0", "1")


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), float("-inf")])
def test_non_finite_values_are_marked_and_not_drawn(odd: float) -> None:
    drawn = line(Curve("loss", 1, 3, 3, ((1, 0.5), (2, odd), (3, 1.0))))
    assert len(drawn.lost) == 1 and "not finite in 1" in drawn.words and "nan" not in drawn.path
    assert line(Curve("loss", 1, 3, 3, ((1, odd), (2, odd), (3, odd)))).path == ""


@pytest.mark.parametrize("values", [(1.0, 1.0, 1.0), (-1e308, 1e308, 0.0), (1e-320, 0.0, 0.0)])
def test_a_curve_of_odd_numbers_can_be_drawn(values: tuple[float, ...]) -> None:
    drawn = line(Curve("loss", 1, 3, 1, tuple(enumerate(values, 1))))
    assert "nan" not in drawn.path and "inf" not in drawn.path


def test_only_complete_agreement_has_the_full_shade() -> None:
    rows = matrix(Agreement(3, "gradients", ("0", "1"), 1000, ((1000, 999), (999, 1000))))
    assert [[cell.shade for cell in cells] for _, cells in rows] == [[4, 3], [3, 4]]
    (_, (_, none)), _ = matrix(Agreement(3, "gradients", ("0", "1"), 4, ((4, 0), (1, 4))))
    assert none.shade == 0 and none.words == "rank 0 and 1: 0 of 4 the same"


def test_cost_is_shown_by_parts() -> None:
    bars = cost_bars(Cost(10, 10, 100.0, {"modules": 2.0, "loaders": 0.0}, {"trace": 4.0}))
    assert [(bar.name, bar.share, bar.width, bar.in_background) for bar in bars] == [
        ("trace", 0.04, 100, True),
        ("modules", 0.02, 50, False),
    ]
    assert cost_bars(None) == () == cost_bars(Cost(0, 0, 0.0, {}, {}))


def test_pictures_have_text_descriptions(some_report: Report) -> None:
    page = Page(html_of(some_report, (), [sample_details()]))
    drawings = [drawing for drawing in page.all("svg") if drawing.get("aria-hidden") != "true"]
    assert len(drawings) == 3 and all(drawing["role"] == "img" and drawing["aria-label"] for drawing in drawings)
    assert "rank 0 and 1: 4 of 4 the same" in {cell.get("title") for cell in page.all("td")}


# -- a finding ---------------------------------------------------------------------------------------------------------


def test_a_finding_is_shown_with_files_pictures_evidence_and_the_command_that_mutes(
    some_report: Report, some_invariants: tuple[Invariant, ...]
) -> None:
    page = Page(html_of(some_report, [(rule, PASSED) for rule in some_invariants], [sample_details()]))
    for text in (
        "def train():",
        "Around the first violation",
        "traincheck mute Net.w",
        "This behaviour is correct in this program",
    ):
        assert text in page.text
    assert "2 invariants behind this finding, and what they rest on" in page.text
    assert "1,200 occasions in 300 steps, 4 runs, 3 scripts, confidence" in page.text
    (here,) = [item for item in page.all("li") if item.get("aria-current") == "true"]
    assert here["class"] == "here"
    copied = {button["data-copies"] for button in page.all("button")}
    assert copied == {"finding-1-site", "finding-1-mute"}  # the notice has neither site nor rules


def test_a_page_shows_observed_steps_and_cost(some_report: Report, clean_report: Report) -> None:
    text = Page(html_of(some_report, ())).text
    assert "Watched 44 of 120 steps (--budget 1/1 watches all); this took 0.9% of the run (optimizers 0.4%, " in text
    assert "watching took 0.9% of the run" in text
    assert "The cost was not measured." in Page(html_of(clean_report, ())).text


# -- several runs ------------------------------------------------------------------------------------------------------


def test_findings_of_several_runs_are_lined_up(some_report: Report, clean_report: Report) -> None:
    error, notice = some_report.findings
    other = replace(
        some_report, findings=(replace(error, step=9), replace(error, title="another", step=1, diagnosis="another"))
    )
    rows = shared([some_report, clean_report, other])
    assert [(row.title, row.times) for row in rows] == [(error.title, 2), ("another", 1), (notice.title, 1)]
    assert [seen and (seen.number, seen.finding.step) for seen in rows[0].runs] == [(1, 3), None, (1, 9)]
    graver = replace(some_report, findings=(replace(notice, severity="error"),))
    assert [row.severity for row in shared([some_report, graver])] == ["error", "error"]


def test_several_runs_are_compared(some_report: Report, clean_report: Report, some_invariants: object) -> None:
    judged = [(rule, PASSED) for rule in some_invariants]  # type: ignore[attr-defined]
    page = Page(
        page_of([PageRun(some_report, judged, [sample_details()], "one"), PageRun(clean_report, judged, (), "two")])
    )
    assert "2 runs side by side" in page.text and "not seen" in page.text
    ids = [attributes["id"] for _, attributes in page.elements if attributes.get("id")]
    assert len(ids) == len(set(ids))
    for link in page.all("a"):
        assert (link["href"] or "").removeprefix("#") in ids
    for form in page.all("form"):
        assert form["data-filters"] in ids
    for button in page.all("button"):
        assert button["data-copies"] in ids
    levels = [int(tag[1]) for tag, _ in page.elements if tag in ("h1", "h2", "h3", "h4", "h5")]
    assert levels.count(1) == 1 and all(after - before <= 1 for before, after in pairwise(levels))


@pytest.mark.parametrize("attack", ATTACKS)
def test_names_of_runs_do_not_become_part_of_the_page(attack: str, some_report: Report) -> None:
    fine = Page(page_of([PageRun(some_report, name="a"), PageRun(some_report, name="b")]))
    hostile = replace(some_report, run={"script": attack, "started": attack})
    attacked = Page(page_of([PageRun(hostile, name=attack), PageRun(hostile, name="b")]))
    assert attacked.raw == fine.raw
    assert {tag for tag, _ in attacked.elements} <= {tag for tag, _ in fine.elements} | {"wbr"}


def test_the_templates_are_package_files() -> None:
    folder = Path(page_of.__code__.co_filename).parent / "templates"
    assert {path.name for path in folder.iterdir()} == {*TEMPLATES, "report.css", "report.js"}


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.fixture
def runs(folder: Path, some_report: Report, clean_report: Report) -> Callable[..., list[str]]:
    """Makes run folders with a report in each."""

    def make(*names: str) -> list[str]:
        for name, report in zip(names, (some_report, clean_report, some_report), strict=False):
            write_run(folder / name, "train.py", training(4))
            write_json(report, folder / name / "report.json")
        return list(names)

    return make


def test_report_writes_one_page_of_several_runs(
    runs: Callable[..., list[str]], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", *runs("a", "b", "c"), "-o", "page.html"]) == 3
    captured = capsys.readouterr()
    assert "report of b" in captured.err and captured.out.count("page.html") == 1
    text = (folder / "page.html").read_text()
    assert "3 runs side by side" in text and 'id="run3-finding-1"' in text
    assert main(["report", "b", "--out", "one.html"]) == 0
    assert main(["report", "b", "-o", "same.html"]) == 0
    assert (folder / "one.html").read_text() == (folder / "same.html").read_text()
    assert "side by side" not in (folder / "one.html").read_text()


def test_a_run_without_a_report_is_refused_before_anything_is_written(
    runs: Callable[..., list[str]], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(folder / "bare", "train.py", training(2))
    assert main(["report", *runs("a"), "bare", "-o", "page.html"]) == 2
    assert "[report-not-found]" in capsys.readouterr().err and not (folder / "page.html").exists()
    assert main(["report", "a", "absent", "-o", "page.html"]) == 2
    assert main(["report", *runs("b", "c"), "--report", "json=x.json"]) == 2
    assert "one RUN" in capsys.readouterr().err


def test_the_code_of_a_finding_is_on_the_page_if_it_is_as_it_was(folder: Path, some_report: Report) -> None:
    from traincheck.checking.code_excerpts import with_files

    (folder / "loop.py").write_text("def train():\n    optimizer.step()  # <script>alert(1)</script>\n")
    os.utime(folder / "loop.py", (1.0, 1.0))
    write_run(folder / "run", "train.py", training(4))
    changed_report = replace(
        some_report, findings=(replace(some_report.findings[0], site=Site("loop.py", 2, "train")),)
    )
    write_json(with_files(changed_report, folder, "2026-01-02T03:04:05+00:00"), folder / "run" / "report.json")
    assert main(["report", "run", "-o", "page.html"]) == 3
    page = (folder / "page.html").read_text()
    assert "optimizer.step()  # &lt;script&gt;alert(1)&lt;/script&gt;" in page and "alert(1)</script>" not in page
    (folder / "loop.py").write_text("other\n")
    assert main(["report", "run", "-o", "page.html"]) == 3
    page = (folder / "page.html").read_text()
    assert "loop.py has changed since the run, so its lines are not shown" in page and "alert" not in page


def test_runs_have_the_shortest_distinct_names(folder: Path) -> None:
    assert names_of([Path("runs/a"), Path("runs/b")]) == ["a", "b"]
    assert names_of([Path("x/a"), Path("y/a")]) == [os.path.join("x", "a"), os.path.join("y", "a")]  # noqa: PTH118
    assert names_of([Path("a"), Path("a")]) == ["a", "a"]
