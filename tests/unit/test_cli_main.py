"""The command line as a whole: help, versions, errors as messages and exit codes, the split of words."""

from __future__ import annotations

import subprocess
import sys

import pytest

from traincheck.cli import main as cli
from traincheck.cli.main import guarded, main, wants_debug
from traincheck.cli.program_arguments import split
from traincheck.errors import BookNotFound, OutputError, StopTraining, TrainCheckError
from traincheck.options import OPTIONS
from traincheck.version import __version__

COMMANDS = ("collect", "infer", "run", "check", "show", "explain", "report", "doctor")


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    help_text = capsys.readouterr().out
    for command in COMMANDS:
        assert f"  {command} " in help_text
    assert "Exit codes" in help_text


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_each_command_has_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    help_text = capsys.readouterr().out
    assert "Examples:\n" in help_text and f"\n    traincheck {command}" in help_text
    assert "[default: None]" not in help_text and "TODO" not in help_text


def test_help_names_the_defaults_of_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    main(["run", "--help"])
    help_text = " ".join(capsys.readouterr().out.split())
    for name in ("fail_on", "on_violation", "runs"):
        assert f"(default: {OPTIONS[name].default})" in help_text


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"traincheck {__version__}\n"


@pytest.mark.parametrize(
    "words", [["no-such-command"], ["show"], ["check", "--nothing"], ["collect", "--help-me", "x"]]
)
def test_wrong_usage_is_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert "Usage:" in capsys.readouterr().err


def test_the_command_line_imports_neither_torch_nor_arrow() -> None:
    code = (
        "import sys; from traincheck.cli.main import main; main(['--help']); main(['run', '--help'])\n"
        "heavy = {'torch', 'pyarrow', 'rich', 'jinja2', 'numpy', 'msgspec'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60)


def raising(error: BaseException) -> int:
    raise error


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (BookNotFound("good.jsonl"), 2, "traincheck: error [book-not-found]: There is no book 'good.jsonl'"),
        (OutputError("x", "disk full"), 1, "traincheck: error [output]: Cannot write 'x': disk full"),
        (StopTraining("stale", 3), 3, "traincheck: error [stopped]: "),
        (TrainCheckError("plain"), 1, "traincheck: error [error]: plain"),
        (KeyError("ours"), 1, "traincheck: error [internal]: KeyError: 'ours'"),
        (KeyboardInterrupt(), 130, ""),
        (SystemExit(5), 5, ""),
        (SystemExit(None), 0, ""),
        (SystemExit("told"), 1, "told"),
    ],
)
def test_errors_become_messages_and_exit_codes(
    error: BaseException, code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert guarded(lambda: raising(error), debug=False) == code
    stderr = capsys.readouterr().err
    assert stderr.startswith(message) and "Traceback" not in stderr
    assert bool(stderr) == bool(message)


@pytest.mark.parametrize("error", [BookNotFound("x"), KeyError("ours")])
def test_debug_shows_the_traceback(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    guarded(lambda: raising(error), debug=True)
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_debug_is_set_before_the_command_or_by_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(cli.DEBUG_VARIABLE, raising=False)
    assert wants_debug(["--debug", "run", "x.py"])
    assert not wants_debug(["run", "x.py", "--debug"])
    for value, expected in (("1", True), ("0", False), ("", False)):
        monkeypatch.setenv(cli.DEBUG_VARIABLE, value)
        assert wants_debug([]) is expected


def test_a_reader_that_goes_away_is_no_error_to_tell() -> None:
    code = "import sys; from traincheck.cli.main import guarded; sys.exit(guarded(lambda: print('x' * 10**6), False))"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None and child.stderr is not None
        child.stdout.close()
        assert child.stderr.read() == ""


WITH_VALUE = frozenset({"-o", "--out", "--package"})


@pytest.mark.parametrize(
    ("words", "ours"),
    [
        ("train.py -o x --help", 0),
        ("-o runs/a train.py --out b", 2),
        ("-oruns/a train.py", 1),
        ("--out=runs/a --package p -m pkg.train --help", 3),
        ("--flag -- torchrun train.py -- x", 1),
        ("-mpkg x", 0),
        ("-o -m", 2),
        ("-- -o x", 0),
        ("- x", 0),
        ("-o", 1),
        ("", 0),
    ],
)
def test_program_arguments_begin_at_the_program(words: str, ours: int) -> None:
    listed = words.split()
    assert split(listed, WITH_VALUE) == (listed[:ours], listed[ours:])
