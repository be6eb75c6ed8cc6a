"""What a stranger wrote into a book, a run folder or a report is shown as it is: no command of ours lets it steer the
terminal, be taken for markup, or turn the direction of writing."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from malformed_files import build
from recorded_runs import training, write_run
from traincheck.cli.console import out, out_json, say
from traincheck.cli.main import main
from traincheck.invariants.book import Book, write_book
from traincheck.runtime.stderr_log import log_warning
from traincheck.terminal_text import json_text, lines, plain
from traincheck.trace.folder import RunFolder
from traincheck.trace.format import BOOK_FILE
from traincheck.vocab.finding import Report, Site
from traincheck.vocab.invariant import Invariant
from traincheck.vocab.occasion import Subject

STEERING = "\x1b]0;title\x07\x1b[31m\x9b2J\u202e\u2066\u200b\r\x08\x7f[red]red[/red][link=x]"
"""Sets the title, a colour, clears the screen, turns the direction, hides, overwrites; and rich's markup."""

NEVER = "\x1b\x07\x9b\u202e\u2066\u200b\r\x08\x7f"


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    main(list(words))
    captured = capsys.readouterr()
    for stream in (captured.out, captured.err):
        assert {character for character in NEVER if character in stream} == set()
    return captured.out + captured.err


@pytest.fixture
def book(tmp_path: Path, new_invariant: Callable[..., Invariant]) -> Path:
    """A book with the attack in all of its texts."""
    rule = new_invariant(
        sentence=f"A rule {STEERING}",
        relation=f"Rel{STEERING}",
        subject=Subject(f"api{STEERING}", f"grain{STEERING}"),
        origin=(f"train{STEERING}.py",),
        mute=f"muted {STEERING}",
    )
    path = tmp_path / "odd.jsonl"
    write_book(Book((rule, new_invariant(sentence=f"Another {STEERING}"))), path)
    return path


@pytest.fixture
def run(tmp_path: Path, some_report: Report) -> Path:
    """A run folder with the attack in all of its texts."""
    finding = replace(
        some_report.findings[0],
        title=STEERING,
        cause=STEERING,
        site=Site(STEERING, 1, STEERING),
        variables=(STEERING,),
        advice=(STEERING,),
        expected=STEERING,
        observed=STEERING,
        severity="error",
    )
    facts = {"script": STEERING, "argv": [STEERING], STEERING: STEERING}
    path = build(tmp_path / "run", replace(some_report, findings=(finding,), run=facts, not_observed=(STEERING,)))
    folder = RunFolder(path)
    folder.update(script=STEERING, argv=(STEERING,), started=STEERING, torch=STEERING)
    for note in folder.notes():
        folder.write_note(msgspec.structs.replace(note, not_observed=(STEERING,), job=STEERING, torch=STEERING))
    return path


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_a_book_is_shown_as_it_is(book: Path, capsys: pytest.CaptureFixture[str], more: tuple[str, ...]) -> None:
    text = shown(capsys, "show", str(book), *more)
    assert "[red]red[/red]" in text and "title" in text
    rules = [json.loads(line)["id"] for line in book.read_text().splitlines()[1:]]
    for rule in rules:
        assert "[red]red[/red]" in shown(capsys, "explain", str(book), rule, *more)
    shown(capsys, "diff", str(book), str(book), *more)


def test_book_commands_escape_untrusted_text(
    book: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], new_invariant: Callable[..., Invariant]
) -> None:
    other = tmp_path / "other.jsonl"
    write_book(Book((new_invariant(),)), other)
    shown(capsys, "diff", str(book), str(other))
    shown(capsys, "diff", str(other), str(book))
    shown(capsys, "mute", str(book), "ffff", "--reason", STEERING)
    run = write_run(tmp_path / "runs" / "a", f"train{STEERING}.py", training(6))
    shown(capsys, "infer", str(run), "-o", str(book))
    shown(capsys, "merge", str(book), str(other), "-o", str(tmp_path / "both.jsonl"))


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_a_run_is_shown_as_it_is(run: Path, capsys: pytest.CaptureFixture[str], more: tuple[str, ...]) -> None:
    text = shown(capsys, "report", str(run), *more)
    assert "[red]red[/red]" in text and "title" in text
    shown(capsys, "check", str(run), "--book", str(run / BOOK_FILE), *more)


def test_watch_and_ctl_escape_untrusted_text(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    RunFolder(run).update(ended="now")
    text = shown(capsys, "watch", str(run))
    assert "title" in text
    for line in shown(capsys, "watch", str(run), "--json").splitlines():
        json.loads(line)
    shown(capsys, "ctl", str(run), "status")
    shown(capsys, "ctl", str(run), "status", "--json")


def test_errors_repeat_a_file_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "odd.jsonl"
    path.write_text(json.dumps({"kind": STEERING, "format": 1}))
    assert "book-unrecognised" in shown(capsys, "show", str(path))
    path.write_text('{"format":1,"kind":"traincheck book","traincheck":"1","runs":[],"invariants":1}\n' + STEERING)
    assert "book-unreadable" in shown(capsys, "show", str(path))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text(json.dumps({"format": 1, "mode": STEERING}))
    assert "trace-unreadable" in shown(capsys, "infer", str(tmp_path / "run"), "-o", "x.jsonl")
    (tmp_path / "run" / "report.json").write_text(json.dumps({"version": 1, "verdict": STEERING}))
    assert "report-unreadable" in shown(capsys, "report", str(tmp_path / "run"))


def test_control_characters_never_reach_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    for tell in (out, say, log_warning, lambda text: out_json({"x": text})):
        tell(STEERING)
        captured = capsys.readouterr()
        assert not any(character in captured.out + captured.err for character in NEVER)
    assert plain("a\nb\tc\x1b") == "a b c\\x1b"
    assert lines("a\nb\tc\x1b") == "a\nb\tc\\x1b"
    assert lines("träin تدريب") == "träin تدريب"


def test_escaped_json_has_the_same_meaning() -> None:
    text = STEERING + "träin \u2028 \U0001f600 \ufeff"
    escaped = json_text(json.dumps({"x": text}, ensure_ascii=False))
    assert json.loads(escaped) == {"x": text}
    assert "träin" in escaped and "\U0001f600" in escaped and not any(character in escaped for character in NEVER)
