"""The page of a study, its pictures, and the file that it is drawn from."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from pages import ATTACKS, Page
from sample_studies import study
from traincheck.cli.main import main
from traincheck.errors import OtherFile, StudyTooNew, StudyUnreadable
from traincheck.reporting.study.page import study_page
from traincheck.reporting.study.plots import BOTTOM, FLOOR, MAX_POINTS, TOP, plot
from traincheck.sdc.study.study_file import check_replaceable_study, differs, read_study, write_study

# -- pictures ----------------------------------------------------------------------------------------------------------


def heights(path: str) -> list[float]:
    return [float(point.split()[1]) for point in path.replace("L", "M").split("M") if point]


def test_a_logarithmic_axis_has_equal_room_for_powers_of_ten_and_a_place_for_zero() -> None:
    drawn = plot("noise", [1, 2, 3, 4], [("all", 1, [1e-4, 0.0, 1e-2, 1.0])], logarithmic=True)
    low, zero, middle, high = heights(drawn.lines[0].path)
    assert (low, zero, high) == (FLOOR, BOTTOM, TOP) and middle == pytest.approx((low + high) / 2)
    assert [tick.label for tick in drawn.ticks] == ["1e-4", "0.001", "0.01", "0.1", "1", "0"]
    assert drawn.words == "noise, steps 1 to 4: all from 0 to 1"


def test_a_linear_axis_has_round_numbers() -> None:
    drawn = plot("loss", [1, 2, 3], [("trusted", 0, [4.21, 4.05, 3.99]), ("suspect", 1, [4.21, 4.1, 4.0])])
    assert [tick.label for tick in drawn.ticks] == ["4.00", "4.05", "4.10", "4.15", "4.20"]
    assert heights(drawn.lines[0].path)[0] == TOP and heights(drawn.lines[0].path)[-1] == BOTTOM


def test_non_finite_values_break_the_line_and_are_marked() -> None:
    drawn = plot("loss", [1, 2, 3, 4, 5], [("x", 0, [1.0, 2.0, None, 3.0, 4.0])])
    (line,) = drawn.lines
    assert line.path.count("M") == 2 and line.path.count("L") == 2 and line.lost == (50.0,) and drawn.lost == 1


@pytest.mark.parametrize("logarithmic", [True, False])
@pytest.mark.parametrize(
    "values",
    [[], [1.0], [0.0, 0.0], [None, None], [1e-320, 0.0], [1e308, 1e-300], [-1e308, 1e308], [5, 5], [1.0, 1 + 1e-15]],
)
def test_odd_numbers_can_be_drawn(values: list[float | None], logarithmic: bool) -> None:
    drawn = plot("x", list(range(len(values))), [("x", 0, values)], logarithmic)
    assert all(TOP <= height <= BOTTOM for line in drawn.lines for height in heights(line.path))
    assert len({tick.at for tick in drawn.ticks}) == len(drawn.ticks) <= 8


def test_a_long_series_keeps_its_extremes() -> None:
    values: list[float | None] = [math.sin(step / 1000) for step in range(100_000)]
    values[40_000], values[50_000] = 9.0, None
    drawn = plot("x", list(range(1, 100_001)), [("x", 0, values)])
    points = json.loads(drawn.points)
    assert 9.0 in points["lines"][0]["values"] and None in points["lines"][0]["values"]
    assert len(points["steps"]) <= 3 * MAX_POINTS + 2 and points["steps"][0] == 1 and points["steps"][-1] == 100_000


# -- the page ----------------------------------------------------------------------------------------------------------


def test_the_page_shows_where_errors_came_in_and_how_far_the_two_diverged() -> None:
    results = study()
    page = Page(study_page(results, differs(results)))
    assert "The suspect worker computed otherwise" in page.text
    assert "Errors came in at attention (forward), as level 1 tells." in page.text
    assert "Evaluation at the end: trusted 3, suspect 3.001." in page.text and "By rank" not in page.text
    words = [element["aria-label"] for element in page.all("svg") if element.get("class") == "area"]
    assert (
        len(words) == 7 and "Noise to signal of the gradients, steps 1 to 8: all gradients from 0 to 1e-05" in words[1]
    )
    assert any(str(label).startswith("Distance of the parameters") for label in words)


def test_the_page_of_hosts_names_the_rank() -> None:
    results = study(ranks=3)
    page = Page(study_page(results, differs(results)))
    assert page.text.count("By rank of the suspect host") == 3 and "by rank of the suspect host: 0, 0, 4" in page.text
    rows = study_page(results, True).split("<tr")
    assert any("attention" in row and 'data-label="Ranks">2<' in row for row in rows)


def test_the_page_of_two_that_are_equal() -> None:
    results = study(hit=False)
    page = Page(study_page(results, differs(results)))
    assert "No bit differed" in page.text and "No difference in 1,800 elements" in page.text
    assert "computed otherwise" not in page.text


def test_levels_that_were_not_executed_or_have_no_step_are_left_out() -> None:
    results = study()
    interrupted = {**results, "levels": {"period": results["levels"]["period"]}, "interrupted": True}
    page = Page(study_page(interrupted, True))
    assert "Level 1" not in page.text and "It was interrupted" in page.text
    interrupted["levels"] = {"period": {**results["levels"]["period"], "series": [], "steps": 0}}
    assert "Level 3" in Page(study_page(interrupted, False)).text


def test_the_page_is_sound_and_loads_nothing() -> None:
    page = Page(study_page(study(ranks=2), True))
    ids = [element["id"] for _, element in page.elements if "id" in element]
    assert len(set(ids)) == len(ids)
    assert {str(element["href"])[1:] for element in page.all("a")} <= set(ids)
    assert not page.all("img") and [element["href"] for element in page.all("link")] == ["data:,"]
    assert not any("style" in element or "src" in element for _, element in page.elements)


@pytest.mark.parametrize("attack", ATTACKS)
def test_names_do_not_become_part_of_the_page(attack: str) -> None:
    def page_of(name: str) -> Page:
        results = study(workload=name, faults=[name], workers={"trusted": {"host": name, "device": name}} | {})
        results["workers"]["suspect"] = {"host": name, "device": name, name: name}
        results["levels"]["submodule"]["by_kind"][1]["kind"] = name
        results["levels"]["submodule"]["by_module"][1]["module"] = name
        return Page(study_page(results, True))

    fine, attacked = page_of("a"), page_of(attack)
    assert attacked.raw == fine.raw
    assert [tag for tag, _ in attacked.elements] == [tag for tag, _ in fine.elements]


# -- the file ----------------------------------------------------------------------------------------------------------


def test_a_study_is_read_as_it_was_written(tmp_path: Path) -> None:
    for number, results in enumerate((study(), study(ranks=2), study(hit=False))):
        path = tmp_path / f"{number}.json"
        write_study(results, path)
        assert read_study(path) == results
        check_replaceable_study(path)


def test_a_study_of_a_kind_of_fault_that_no_longer_exists_is_read(tmp_path: Path) -> None:
    fault, path = "scale@forward:head,factor=3.0", tmp_path / "study.json"
    results = study(faults=[fault])
    for level in results["levels"].values():
        level["injected"][0]["fault"] = fault
    write_study(results, path)
    assert fault in Page(study_page(read_study(path), True)).text


def changed(**parts: Any) -> str:
    return json.dumps({**study(), **parts})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "it is not JSON"),
        ('{"format": NaN}', "it is not JSON"),
        ("[]", "it is of another kind"),
        ('{"format": "traincheck-sdc-fingerprints"}', "it is of another kind"),
        (changed(version=True), "its version is no whole number"),
        (changed(seed="0"), "seed is not a whole number"),
        (changed(faults="x"), "faults is no list"),
        (changed(faults=["x", 1]), "faults[1] is not a text"),
        (changed(workers={}), "workers.trusted is missing"),
        (changed(levels={"other": {}}), "levels has 'other'"),
        (changed(levels={"step": {}}), "levels.step.steps is missing"),
        (
            changed(levels={"step": {**study()["levels"]["step"], "series": [{"step": 1, "loss": "x"}]}}),
            "levels.step.series[0].loss is not a number or null",
        ),
        (changed(seed=10**400), "seed is not a whole number"),
    ],
)
def test_a_file_without_a_study_is_reported(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "study.json"
    path.write_text(text)
    with pytest.raises(StudyUnreadable) as error:
        read_study(path)
    assert reason in str(error.value) and "traincheck sdc study -o FILE" in str(error.value)


def test_other_files_are_neither_read_nor_replaced(tmp_path: Path) -> None:
    newer, other = tmp_path / "newer.json", tmp_path / "other.json"
    newer.write_text(changed(version=2))
    other.write_text("precious")
    with pytest.raises(StudyTooNew, match="holds a study of format 2; this TrainCheck reads up to 1"):
        read_study(newer)
    with pytest.raises(StudyUnreadable, match="No such file"):
        read_study(tmp_path / "nowhere.json")
    for path in (newer, other):
        with pytest.raises(OtherFile, match="Name another file with -o"):
            check_replaceable_study(path)


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_study(study(ranks=2), tmp_path / "study.json")
    write_study(study(hit=False), tmp_path / "equal.json")
    return tmp_path


def test_an_earlier_study_is_shown_again(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sdc", "study", "--from", "study.json", "-o", "pages/study.html"]) == 3
    output = capsys.readouterr()
    assert "tables and plots: pages/study.html" in output.err and "hosts of 2 ranks" in output.out
    assert "struck 4 times, on rank 1 of the suspect host" in output.out
    assert "computed otherwise" in (home / "pages" / "study.html").read_text()
    assert main(["sdc", "study", "--from", "equal.json", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == study(hit=False)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--from", "study.json", "-o", "folder.html"), "[output]"),
        (("--from", "study.json", "--steps", "3"), "only -o FILE.html and --json"),
        (("--from", "study.json", "--seed", "3"), "only -o FILE.html and --json"),
        (("--from", "study.json", "-o", "other.json"), "only -o FILE.html and --json"),
        (("--from", "nowhere.json"), "[study-unreadable]"),
        (("-o", "folder.html"), "[output]"),
    ],
)
def test_options_that_do_not_fit(
    home: Path, words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "folder.html").mkdir()
    before = (home / "study.json").read_bytes()
    assert main(["sdc", "study", *words]) in (1, 2)
    assert message in capsys.readouterr().err
    assert (home / "study.json").read_bytes() == before and not (home / "other.json").exists()
