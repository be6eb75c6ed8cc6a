"""The terminal report is complete, and readable on every terminal and with every name."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from traincheck.reporting import phrases
from traincheck.reporting.base import Sink
from traincheck.reporting.book_view import book_data, book_view, selected
from traincheck.reporting.rank_rows import job_names, rank_rows
from traincheck.reporting.terminal import LIVE_BLOCKS, REASONS, ROWS, TerminalSink, finding_block
from traincheck.vocab.finding import ENDED, STOPPED, Counts, Divergence, RankState, Report, Site
from traincheck.vocab.invariant import Invariant
from traincheck.vocab.verification import VerifiedComputation

Tell = Callable[..., str]


@pytest.fixture
def tell(monkeypatch: pytest.MonkeyPatch) -> Tell:
    """The text of a whole run, on a console made with the given options."""
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)

    def run(report: Report, reports: tuple[str, ...] = (), **options: object) -> str:
        text = io.StringIO()
        console = Console(file=text, **{"width": 100, "highlight": False, **options})  # type: ignore[arg-type]
        sink: Sink = TerminalSink(console, reports)
        sink.open(report.run)
        for finding in report.findings:
            sink.show(finding)
        sink.close(report)
        return text.getvalue()

    return run


def test_it_goes_to_stderr(some_report: Report, capsys: pytest.CaptureFixture[str]) -> None:
    TerminalSink().close(some_report)
    captured = capsys.readouterr()
    assert not captured.out and "1 error and 1 notice" in captured.err


def test_a_finding_shows_all_its_fields(some_report: Report) -> None:
    text = finding_block(some_report.findings[0]).plain
    for part in ("ERROR at step 3 on rank 1", "project/train.py:42 in train_step", "head.weight", "and 2 more"):
        assert part in text
    for label in ("cause", "where", "variables", "expected", "observed", "look at", "invariants"):
        assert f"\n  {label} " in text


def test_empty_fields_take_no_line(some_report: Report) -> None:
    lines = finding_block(some_report.findings[1]).plain.splitlines()
    assert [line.split()[0] for line in lines] == ["TrainCheck", "expected", "observed"]


def test_no_escape_codes_where_there_is_no_terminal(some_report: Report, tell: Tell) -> None:
    assert "\x1b" not in tell(some_report)


def test_colours_and_links_on_a_terminal(some_report: Report, tell: Tell, folder: Path) -> None:
    (folder / "project").mkdir()
    (folder / "project" / "train.py").touch()
    text = tell(some_report, force_terminal=True, color_system="standard")
    assert "\x1b[1;31m" in text and (folder / "project" / "train.py").resolve().as_uri() in text


def test_no_color_is_honoured(some_report: Report, tell: Tell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    text = tell(some_report, force_terminal=True, color_system="standard")
    assert "[1;31m" not in text and ";31m" not in text and "[33m" not in text


@pytest.mark.parametrize("width", [80, 100, 120, 300])
def test_lines_fit_the_terminal_and_never_more_than_120(some_report: Report, tell: Tell, width: int) -> None:
    assert max(len(line.rstrip()) for line in tell(some_report, width=width).splitlines()) <= min(width, 120)


def test_a_path_is_never_broken(some_report: Report, tell: Tell) -> None:
    file = "a_long_folder/" * 12 + "train.py"
    finding = replace(some_report.findings[0], site=Site(file, 7, "step"))
    text = tell(replace(some_report, findings=(finding,)), ("/reports/" * 20 + "report.html",), width=80)
    assert f"{file}:7 in step" in text and "/reports/" * 20 + "report.html" in text


def test_markup_and_control_characters_are_escaped(some_report: Report, tell: Tell) -> None:
    finding = replace(some_report.findings[0], title="[red]x[/red]\x1b]0;evil\x07", variables=("w\x1b[2J", "a\nb"))
    ranks = job_of(2, job="[b]j\x1b[2J", end="[i]\r", what="[u]\x1b", apart=1)
    text = tell(replace(some_report, findings=(finding,), not_observed=("[/bold]\r",), ranks=ranks, divergences=()))
    assert r"[b]j\x1b[2J" in text and "[i]" in text and r"[u]\x1b since step 1" in text
    assert r"[red]x[/red]\x1b]0;evil\x07" in text and r"w\x1b[2J, a b" in text and "[/bold]" in text
    assert "\x1b" not in text and "\r" not in text


def test_a_stream_that_knows_ascii_only_is_written_to(some_report: Report) -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii", errors="strict")
    TerminalSink(Console(file=stream, width=80)).close(some_report)
    stream.flush()
    assert b"1 error and 1 notice" in raw.getvalue()


def test_counts_and_reasons_are_printed(some_report: Report, tell: Tell) -> None:
    text = " ".join(tell(some_report, ("out/report.html", "out/report.json")).split())
    assert "393 checked (390 passed, 3 violated), 12 never triggered, 7 could not be observed, 2 muted" in text
    assert "120 steps in 1,300 windows of 2 processes; 1 window dropped, and not checked" in text
    assert "calls inside compiled regions (2 times) arguments of foreign kernels" in text
    assert "out/report.html" in text and "out/report.json" in text


def test_many_findings_do_not_drown_the_program(some_report: Report, tell: Tell) -> None:
    many = tuple(replace(some_report.findings[0], step=step) for step in range(100))
    text = tell(replace(some_report, findings=many, not_observed=tuple(map(str, range(10)))))
    assert text.count("  cause ") == LIVE_BLOCKS and "TrainCheck ERROR at step 99" in text
    assert f"and {100 - ROWS} more findings" in text and f"and {10 - REASONS} more reasons" in text


def test_ranks_are_a_column_only_where_there_are_several(some_report: Report, tell: Tell) -> None:
    single = replace(some_report, findings=some_report.findings[1:])
    single = replace(single, ranks=(), divergences=())
    assert " ranks " in tell(some_report) and " rank" not in tell(single)


@pytest.mark.parametrize(
    ("ranks", "compared", "ranks_text", "cell"),
    [
        ((0,), 0, "ERROR at step 3: ", "0"),
        ((2,), 0, "ERROR at step 3 on rank 2: ", "2"),
        ((0, 2), 0, "ERROR at step 3 on ranks 0, 2: ", "0, 2"),
        ((0, 1), 2, "ERROR at step 3 between ranks 0, 1: ", "0, 1"),
        ((0, 1, 2, 3), 4, "ERROR at step 3 between ranks 0, 1, 2, 3: ", "0, 1, 2, 3"),
        ((0,), 4, "ERROR at step 3, rank 0 of 4 deviates: ", "0 of 4"),
        ((3, 5), 1024, "ERROR at step 3, ranks 3, 5 of 1,024 deviate: ", "3, 5 of 1,024"),
    ],
)
def test_a_finding_names_the_ranks_that_it_is_about(
    some_report: Report, ranks: tuple[int, ...], compared: int, ranks_text: str, cell: str
) -> None:
    finding = replace(some_report.findings[0], rank=ranks[0], ranks=ranks, compared=compared)
    assert ranks_text in finding_block(finding, 200).plain
    assert phrases.ranks_of(finding) == cell


def job_of(size: int, **others: Any) -> tuple[RankState, ...]:
    """Ranks that fared alike, but for the one before the last."""
    states = [RankState(rank, "job", ENDED, 20, 21, 20, 20) for rank in range(size)]
    states[-2] = replace(states[-2], **others)
    return tuple(states)


def test_few_ranks_have_rows_and_many_are_folded(some_report: Report, tell: Tell) -> None:
    assert [row.ranks for row in rank_rows(job_of(4))] == ["0", "1", "2", "3"]
    many = job_of(1024, apart=7, what="gradients differ")
    assert [row.ranks for row in rank_rows(many)] == ["0-1021, 1023", "1022"]
    divergence = Divergence("job", 7, "gradients differ", (1022,), 1024)
    text = tell(replace(some_report, ranks=many, divergences=(divergence,)))
    assert "0-1021, 1023     20       21  ended      agrees" in text
    assert "1022             20       21  ended      gradients differ since step 7" in text
    assert "since step 7, gradients differ: rank 1022 of 1,024 deviates" in text


def test_a_long_table_of_verification_keeps_what_is_wrong(some_report: Report, tell: Tell) -> None:
    rows = [VerifiedComputation("algorithm", f"SGD#{number}", agreed=3) for number in range(ROWS + 6)]
    rows[-1] = replace(rows[-1], subject="AdamW", disagreed=1)
    text = tell(replace(some_report, verification=tuple(rows)), width=80)
    assert "AdamW" in text and "SGD#23" in text and "SGD#24" not in text
    assert "and 6 more rows in the reports" in text, "in one line"


def test_the_end_of_a_rank_is_printed(some_report: Report, tell: Tell) -> None:
    stopped = {"end": STOPPED, "steps": 20, "recorded": 5, "compared": None}
    text = tell(replace(some_report, ranks=job_of(2, **stopped), divergences=()))
    assert "stopped recording at step 5  not compared" in text and " since step " not in text


def test_jobs_have_their_distinct_name_parts(some_report: Report, tell: Tell) -> None:
    first, again = (replace(job_of(2)[0], job=f"host-29500-{attempt}") for attempt in (0, 1))
    assert job_names([first]) == {} and job_names([first, again]) == {first.job: "0", again.job: "1"}
    divergence = Divergence(again.job, 2, "batches are the same", (0, 1), 2)
    text = tell(replace(some_report, ranks=(first, again), divergences=(divergence,)))
    assert "job 1: since step 2, batches are the same between ranks 0, 1" in text


@pytest.mark.parametrize(
    ("counts", "line"),
    [
        (Counts(invariants=9, passed=9, steps=1200), "Nothing wrong found in 1,200 steps: 9 invariants held"),
        (Counts(invariants=9, passed=1), "Nothing wrong found before the first step: 1 invariant held"),
        (Counts(invariants=9, not_triggered=9, steps=1), "Nothing was checked: no deployed invariant could be judged"),
        (Counts(steps=5), "Nothing was checked: no invariant was deployed"),
    ],
)
def test_a_run_without_findings_has_the_right_headline(counts: Counts, line: str) -> None:
    assert phrases.headline(Report((), counts)).startswith(line)


def test_notices_alone_are_no_error(some_report: Report) -> None:
    only = replace(some_report, findings=some_report.findings[1:])
    assert phrases.headline(only) == "No errors, 1 notice in 120 steps, first at step 7"


@pytest.mark.parametrize(
    ("count", "expected"), [(0, ""), (1, "a"), (3, "a, b, c"), (4, "a, b, c, d"), (5, "a, b, c and 2 more")]
)
def test_a_list_is_cut_where_that_saves_something(count: int, expected: str) -> None:
    assert phrases.listed("abcde"[:count], 3) == expected


def test_confidence_is_never_rounded_to_certainty() -> None:
    assert phrases.confidence(0.99999) == "0.999" and phrases.confidence(1.0) == "1.000"


def test_a_long_path_keeps_its_end() -> None:
    assert phrases.shortened("one/two/three/train.py:7", 20) == ".../three/train.py:7"
    assert phrases.shortened("train.py:7", 20) == "train.py:7"
    assert phrases.shortened("one/" + "x" * 30 + ".py", 20) == ".../" + "x" * 30 + ".py"


def test_invariants_are_selected_by_text_relation_and_severity(some_invariants: tuple[Invariant, ...]) -> None:
    first, second, third, fourth = some_invariants
    assert selected(some_invariants) == some_invariants
    assert selected(some_invariants, "apisequence") == (third, fourth)
    assert selected(some_invariants, "notice") == (fourth,)
    assert selected(some_invariants, text="GRADIENT changed") == (second,)
    assert selected(some_invariants, text=first.id) == (first,)
    assert selected(some_invariants, "backward EventContain") == ()


def test_book_data_uses_the_keys_of_the_file(some_invariants: tuple[Invariant, ...]) -> None:
    data = book_data(some_invariants)
    assert data[0]["id"] == some_invariants[0].id
    assert data[0]["precondition"] == [{"fact": "grads", "is_not": "none"}, {"fact": "stage", "is": "train"}]


def test_an_empty_selection_is_reported(tell: Tell) -> None:
    console = Console(file=io.StringIO(), width=80)
    console.print(book_view(()))
    assert "No invariant fits." in console.file.getvalue()  # type: ignore[attr-defined]
