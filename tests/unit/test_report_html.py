"""The HTML report: one file that loads nothing, runs nothing but its own script, and shows all that there is to say."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from pages import ATTACKS, Page
from sample_report import sample_details
from traincheck.errors import OutputError
from traincheck.reporting.base import Sink
from traincheck.reporting.html.sink import HtmlSink, html_of, render_html
from traincheck.reporting.html.timeline import LANES, TICKS, timeline
from traincheck.vocab.finding import NOT_OBSERVED, NOT_TRIGGERED, PASSED, VIOLATED, Report, Site
from traincheck.vocab.invariant import Clause, Invariant
from traincheck.vocab.occasion import Subject


@pytest.fixture
def judged(some_invariants: tuple[Invariant, ...]) -> list[tuple[Invariant, str]]:
    return list(zip(some_invariants, (VIOLATED, PASSED, NOT_TRIGGERED, NOT_OBSERVED), strict=True))


@pytest.fixture
def page(some_report: Report, judged: list[tuple[Invariant, str]]) -> Page:
    return Page(html_of(some_report, judged, [sample_details()]))


def hostile(attack: str, report: Report, make: Callable[..., Invariant]) -> str:
    """A report in which every text is the attack."""
    invariant = make(
        sentence=attack,
        clauses=(Clause(attack, attack),),
        subject=Subject(attack, attack),
        relation=attack,
        mute=attack,
    )
    finding = replace(
        report.findings[0],
        severity=attack,
        title=attack,
        cause=attack,
        site=Site(attack, 1, attack),
        variables=(attack,) * 20,
        expected=attack,
        observed=attack,
        advice=(attack,),
        invariants=(invariant.id, attack),
    )
    run: dict[str, object] = {"script": attack, attack: attack, "argv": [attack], "nested": {attack: [attack]}}
    states = [replace(report.ranks[0], job=f"{number}{attack}", end=attack, what=attack) for number in range(2)]
    divergences = (replace(report.divergences[0], job=states[0].job, what=attack),)
    hostile_report = replace(report, findings=(finding, finding), not_observed=(attack,), run=run)
    hostile_report = replace(hostile_report, ranks=tuple(states), divergences=divergences)
    return html_of(
        hostile_report, [(replace(invariant, id=attack), attack), (invariant, VIOLATED)], [sample_details(attack)]
    )


@pytest.mark.parametrize("attack", ATTACKS)
def test_no_text_of_a_report_becomes_part_of_the_page(
    attack: str, page: Page, some_report: Report, new_invariant: Callable[..., Invariant]
) -> None:
    attacked = Page(hostile(attack, some_report, new_invariant))
    assert attacked.raw == page.raw
    assert {tag for tag, _ in attacked.elements} <= {tag for tag, _ in page.elements} | {"details", "summary"}
    attribute_names = {name for _, attributes in page.elements for name in attributes}
    assert {name for _, attributes in attacked.elements for name in attributes} <= attribute_names
    assert " ".join(attack.split()) in attacked.text


@pytest.mark.parametrize("character", ["\u202e", "\u2066", "\u200f", "\u200b", "\x1b", "\x00", "\x9b", "\ufeff"])
def test_invisible_characters_are_written_out(
    character: str, some_report: Report, new_invariant: Callable[..., Invariant]
) -> None:
    page = hostile(f"weight{character}gnp.exe", some_report, new_invariant)
    assert character not in page and repr(character)[1:-1] in page


def test_letters_of_all_languages_stay_as_they_are(
    some_report: Report, new_invariant: Callable[..., Invariant]
) -> None:
    for name in ("träin.py", "训练", "обучение", "تدريب"):
        assert name in hostile(name, some_report, new_invariant)


def test_the_page_loads_nothing(page: Page) -> None:
    for tag, attributes in page.elements:
        assert "src" not in attributes and "srcset" not in attributes and "style" not in attributes
        assert (attributes.get("href") or "#").startswith(("#", "data:")), tag
    assert not {"img", "iframe", "object", "embed", "base"} & {tag for tag, _ in page.elements}
    assert not re.search(r"url\(|@import|https?:", "".join(page.raw["style"]))
    assert not re.search(r"fetch|XMLHttp|import|https?:|eval|innerHTML", "".join(page.raw["script"]))


def test_the_policy_admits_our_own_style_and_script_alone(page: Page) -> None:
    policy = next(a["content"] for a in page.all("meta") if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None and policy.startswith("default-src 'none'; ") and "unsafe" not in policy
    for kind in ("script", "style"):
        (text,) = page.raw[kind]
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy


def test_the_page_shows_the_whole_report(page: Page, some_report: Report, judged: list[tuple[Invariant, str]]) -> None:
    error = some_report.findings[0]
    parts = [error.title, error.cause, error.expected, error.observed, *error.advice, *error.variables]
    parts += ["project/train.py:42", "1 error and 1 notice in 120 steps, first at step 3", "train.py --lr 1e-3"]
    parts += ["calls inside compiled regions 2 times", "torch: 2.13.0"]
    parts += [text for invariant, _ in judged for text in (invariant.sentence, invariant.id)]
    parts += ["when grads is not none and stage is train", "1,200 occasions in 300 steps, 4 runs, 3 scripts"]
    for part in parts:
        assert part in page.text


def test_links_within_the_page_lead_somewhere_and_ids_are_unique(page: Page) -> None:
    ids = [attributes["id"] for _, attributes in page.elements if attributes.get("id")]
    assert len(ids) == len(set(ids))
    for link in page.all("a"):
        assert (link["href"] or "").removeprefix("#") in ids
    for _, attributes in page.elements:
        assert (attributes.get("aria-labelledby") or ids[0]) in ids


def test_headings_are_in_order(page: Page) -> None:
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))


def test_violations_come_first(page: Page) -> None:
    verdicts = [row["data-kind"] for row in page.all("tr") if "data-kind" in row]
    assert verdicts == ["violated", "passed", "never-triggered", "could-not-be-observed"]


def test_a_clean_report_has_no_empty_sections(clean_report: Report) -> None:
    page = Page(html_of(clean_report, ()))
    assert "Nothing wrong found in 1 step: 9 invariants held" in page.text
    assert {a["id"] for a in page.all("section") if "id" in a} == {"watched", "run"}


def test_the_sink_asks_for_verdicts_at_the_end(
    some_report: Report, judged: list[tuple[Invariant, str]], tmp_path: Path
) -> None:
    sofar: list[tuple[Invariant, str]] = []
    sink: Sink = HtmlSink(tmp_path / "report.html", lambda: sofar)
    sink.open(some_report.run)
    sink.show(some_report.findings[0])
    sofar.extend(judged)
    sink.close(some_report)
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == html_of(some_report, judged)


def test_a_name_without_unicode_is_shown(clean_report: Report, tmp_path: Path) -> None:
    render_html(replace(clean_report, run={"script": "tr\udce4in.py"}), (), tmp_path / "report.html")
    assert r"tr\udce4in.py" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_a_place_that_cannot_be_written_is_reported(clean_report: Report, tmp_path: Path) -> None:
    with pytest.raises(OutputError):
        render_html(clean_report, (), tmp_path)


@pytest.mark.parametrize("steps", [0, 1, 7, 8, 9, 99, 120, 1000, 4096, 10**9])
def test_the_axis_has_some_ticks_and_not_too_many(some_report: Report, steps: int) -> None:
    ticks = timeline((), steps).ticks
    assert 2 <= len(ticks) <= TICKS + 1
    assert ticks[0].step == 0 and all(0 <= tick.left <= 100 for tick in ticks)


def test_lanes_lie_within_the_axis(some_report: Report) -> None:
    error = some_report.findings[0]
    late, early = replace(error, step=400, last_step=500), replace(error, step=0, last_step=0)
    drawn = timeline((late, early, *[error] * LANES), 120)
    assert drawn.last == 500 and drawn.beyond == 2 and len(drawn.lanes) == LANES
    assert (drawn.lanes[0].left, drawn.lanes[0].width) == (80, 20)
    assert (drawn.lanes[1].left, drawn.lanes[1].width) == (0, 0)


def test_ranks_are_shown_in_a_table(some_report: Report, clean_report: Report) -> None:
    text = " ".join(" ".join(Page(html_of(some_report, ())).texts).split())
    assert "Ranks Steps Windows Recording Agreement 0 120 650 ended gradients differ since step 5" in text
    assert "1 118 640 killed" in text and "Since step 5, gradients differ between ranks 0, 1" in text
    assert "side by side" not in html_of(clean_report, ())
