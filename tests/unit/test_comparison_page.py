"""The page and the Markdown text of a comparison."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from pages import ATTACKS, Page
from recorded_runs import write_run
from sample_operations import compared as compare
from sample_operations import network_step
from traincheck.cli.main import main
from traincheck.comparison.aligned_operations import UNMATCHED, aligned_operations
from traincheck.comparison.configuration import ARGUMENTS, SOURCE, ConfigurationDifference
from traincheck.comparison.difference import ORIGIN, SAME, VICTIM
from traincheck.comparison.run_comparison import Comparison
from traincheck.comparison.spread import Spread, spread_of
from traincheck.reporting.comparison.markdown import markdown_of
from traincheck.reporting.comparison.page import Code, page_of
from traincheck.reporting.comparison.sections import GROUPS, ROWS, EqualGroups, Fold, Group, sections_of
from traincheck.vocab.finding import Site
from traincheck.vocab.finding_details import CodeExcerpt
from traincheck.vocab.operations import FORWARD, Operation, StepOperations

CONFIGURATION = (
    ConfigurationDifference(ARGUMENTS, "--lr", "0.1", "0.2"),
    ConfigurationDifference(SOURCE, "model.py", "11111111", None),
)


class Compared(NamedTuple):
    """A comparison and its spread."""

    comparison: Comparison
    spread: Spread


def compared(a: list[StepOperations], b: list[StepOperations]) -> Compared:
    comparison, common = compare(a, b)
    return Compared(comparison, spread_of(comparison, common))


def page(result: Compared, code: tuple[Code | None, Code | None] = (None, None)) -> str:
    return page_of(result.comparison, "before", "after", result.spread, CONFIGURATION, code)


def different(**changes: int) -> Compared:
    """A comparison with an origin in block 1 of step 2."""
    a = [network_step(number, **changes) for number in (1, 2, 3)]  # type: ignore[arg-type]
    b = [
        network_step(1, **changes),  # type: ignore[arg-type]
        network_step(2, error=0.01, begins_in=1, settings="1.5", **changes),  # type: ignore[arg-type]
        network_step(3, error=0.02, begins_in=1, settings="1.5", **changes),  # type: ignore[arg-type]
    ]
    return compared(a, b)


def with_inserted(step: StepOperations, name: str) -> StepOperations:
    """The step with one more operation behind the first one of block 1, whose result is used in its place."""
    index = next(i for i, each in enumerate(step.operations) if each.phase == FORWARD and each.module.endswith(".1"))
    before = step.operations[index]
    value = len(step.values)
    other = network_step(step.step, error=0.5).values[before.outputs[0]]
    inserted = Operation(FORWARD, name, before.module, before.site, "", before.outputs, (value,))
    replaced = {before.outputs[0]: value}
    later = [
        msgspec.structs.replace(each, inputs=tuple(replaced.get(number, number) for number in each.inputs))
        for each in step.operations[index + 1 :]
    ]
    return StepOperations(
        step.step, (*step.values, other), (*step.operations[: index + 1], inserted, *later), step.incomplete
    )


def inserted() -> Compared:
    return compared([network_step()], [with_inserted(network_step(error=0.5, begins_in=2), "relu")])


# -- what is shown -----------------------------------------------------------------------------------------------------


def test_operations_of_both_runs_have_a_verdict() -> None:
    comparison = different().comparison
    assert comparison.first is not None
    rows = aligned_operations(comparison.first, comparison.origins)
    assert len(rows) == len(network_step().operations)
    (origin,) = [row for row in rows if row.verdict == ORIGIN]
    assert origin.a is not None and origin.b is not None
    assert (origin.a.settings, origin.b.settings, origin.operation.module) == ("1.0", "1.5", "Net.blocks.1")
    position = rows.index(origin)
    assert {row.verdict for row in rows[:position]} == {SAME}
    assert all(row.verdict == VICTIM for row in rows[position + 1 :] if row.operation.name == "mul")


@pytest.mark.parametrize("swapped", [False, True])
def test_an_operation_of_one_run_stands_where_it_was_executed(swapped: bool) -> None:
    runs = [network_step()], [with_inserted(network_step(error=0.5, begins_in=2), "relu")]
    comparison, _ = compare(*(reversed(runs) if swapped else runs))
    assert comparison.first is not None and comparison.origins[0].operation.name == "relu"
    rows = aligned_operations(comparison.first, comparison.origins)
    (index,) = [index for index, row in enumerate(rows) if row.a is None or row.b is None]
    assert rows[index].verdict == ORIGIN and (rows[index].a is None) is not swapped
    assert rows[index].distance == comparison.origins[0].results
    before, after = rows[index - 1].operation, rows[index + 1].operation
    assert (before.name, after.name, before.module, after.module) == ("mul", "mul", "Net.blocks.1", "Net.blocks.1")


def test_an_unused_operation_of_one_run_is_no_origin() -> None:
    step = network_step(error=0.01, settings="1.5")
    extra = Operation(FORWARD, "extra", "Net.blocks.0", "", "", (0,), (len(step.values),))
    step = StepOperations(1, (*step.values, step.values[0]), (*step.operations[:9], extra, *step.operations[9:]))
    comparison, _ = compare([network_step()], [step])
    assert comparison.first is not None
    (alone,) = [row for row in aligned_operations(comparison.first, comparison.origins) if row.a is None]
    assert alone.verdict == UNMATCHED and alone.operation.name == "extra"


def test_equal_modules_and_equal_operations_are_folded() -> None:
    comparison = different(each=50).comparison
    assert comparison.first is not None
    sections = sections_of(aligned_operations(comparison.first, comparison.origins))
    assert [section.phase for section in sections] == ["before", "forward", "backward", "gradient", "update"]
    equal, origin, *_ = sections[1].groups
    assert isinstance(equal, EqualGroups) and equal.modules == ("blocks.0",) and equal.counts == ((SAME, 50),)
    assert isinstance(origin, Group) and origin.is_open and origin.counts == ((VICTIM, 49), (ORIGIN, 1))
    (fold,) = [row for row in origin.rows if isinstance(row, Fold)]
    assert (fold.verdict, fold.count) == (VICTIM, 50 - (len(origin.rows) - 1))


def test_the_page_shows_both_runs() -> None:
    shown = Page(page(different()))
    for text in (
        "The runs compute different things, in step 2",
        "mul(1.0) at train.py:7:Block.forward",
        "mul(1.5) at train.py:7:Block.forward",
        "Loss: differs from step 2 on, 2 / 2.02 (0.99%).",
        "The operations of step 2, side by side",
        "--lr",
        "3 common steps.",
    ):
        assert text in shown.text, text
    assert {"same", "victim", "origin"} <= {row.get("class") for row in shown.all("tr")} | {"same"}
    assert [row for row in shown.all("tr") if row.get("class") == "begins"]
    ids = [attributes["id"] for _, attributes in shown.elements if attributes.get("id")]
    assert len(ids) == len(set(ids))
    links = {link["href"] for link in shown.all("a")}
    assert links <= {f"#{name}" for name in ids} and {"#origin", "#configuration", "#spread", "#operations"} <= links


def test_an_operation_of_one_run_has_a_gap_in_the_other() -> None:
    shown = Page(page(inserted()))
    (gap,) = [cell for cell in shown.all("td") if cell.get("class") == "gap"]
    assert gap is not None and "only in after" in shown.text


def test_code_of_both_runs_is_shown() -> None:
    lines = CodeExcerpt(7, 6, ("def forward(self, x):", "    return x * self.scale"))
    code = (
        Code(Site("train.py", 7, "Block.forward"), lines),
        Code(Site("train.py", 7, "f"), CodeExcerpt(7, note="gone")),
    )
    shown = Page(page(different(), code))
    assert "return x * self.scale" in shown.text and "gone" in shown.text


@pytest.mark.parametrize("error", [0.0, 1e-7])
def test_equal_runs_have_a_page_without_an_origin(error: float) -> None:
    shown = Page(page(compared([network_step()], [network_step(error=error)])))
    assert shown.text.count("Equal" if not error else "Equal up to rounding") >= 1
    assert "Where it begins" not in shown.text and "side by side" not in shown.text


def test_markdown_has_the_configuration_and_the_origin() -> None:
    text = markdown_of(different().comparison, "before", "after", CONFIGURATION)
    assert text.startswith("## TrainCheck: different: The runs compute different things, in step 2\n")
    assert "| --lr | 0.1 | 0.2 |" in text and "| model.py | 11111111 |  |" in text
    assert text.count("```") == 2 and "mul(1.5) at train.py:7" in text


# -- size and safety ---------------------------------------------------------------------------------------------------


def test_the_page_of_a_large_step_is_small() -> None:
    result = different(blocks=330, each=3)
    text = page(result)
    assert len(result.comparison.victims) > 1000 and len(text) < 1_000_000
    shown = Page(text)
    assert len(shown.all("details")) <= GROUPS + 2
    assert sum(row.get("class") in ("victim", "origin") for row in shown.all("tr")) <= ROWS
    assert "more operations" in shown.text


@pytest.mark.parametrize("attack", ATTACKS)
def test_every_text_of_the_runs_is_escaped(attack: str) -> None:
    a = [network_step(site=f"{attack}:7:{attack}", root=attack)]
    b = [network_step(site=f"{attack}:7:{attack}", root=attack, error=0.01, settings=attack, begins_in=1)]
    comparison, spread = compared(a, [with_inserted(b[0], attack)])
    differences = [ConfigurationDifference(attack, attack, attack, None)]
    code = Code(Site(attack, 7, attack), CodeExcerpt(7, 7, (attack,), attack))
    text = page_of(comparison, attack, attack, spread, differences, (code, code))
    shown = Page(text)
    assert len(shown.all("script")) == len(shown.all("style")) == 1
    assert not any(name.startswith("on") for _, attributes in shown.elements for name in attributes)
    assert not shown.all("img") and {link["href"] for link in shown.all("link")} == {"data:,"}
    assert all(str(link["href"]).startswith("#") for link in shown.all("a"))
    markdown = markdown_of(comparison, attack, attack, differences)
    outside = re.sub(r"(?s)(`{3,})text\n.*?\n\1\n", "", markdown)
    assert not re.search(r"<(script|img|/style)", outside)


def test_the_page_loads_nothing() -> None:
    text = page(different())
    (content,) = [each for each in Page(text).all("meta") if each.get("http-equiv") == "Content-Security-Policy"]
    assert str(content["content"]).startswith("default-src 'none'")
    assert not re.search(r"(src|href)=\"(?!#|data:,)", text)


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--report", "junit"), "html, json, markdown"),
        (("--report", "html=missing/page.html", "--report", "json=missing/page.html"), "a different file"),
        (("--json", "--report", "json=-"), "a different file"),
        (("--report", "html=."), "a file that can be written"),
    ],
)
def test_a_report_that_cannot_be_written_is_refused_at_once(
    words: tuple[str, ...], expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "run", "train.py", [])
    assert main(["compare", str(run), str(run), *words]) == 2
    assert expected in capsys.readouterr().err
