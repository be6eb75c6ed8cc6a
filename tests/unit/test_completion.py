"""Shell completion: typer's scripts ask `traincheck` for the words that may come next."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from traincheck.cli.main import COMMANDS, needed


def completions(line: str) -> list[str]:
    """The words that bash would offer for the last word of the command line."""
    words = line.split(" ")
    environ = {**os.environ, "_TRAINCHECK_COMPLETE": "complete_bash"}
    environ |= {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    done = subprocess.run(
        [sys.executable, "-c", "import sys; from traincheck.cli.main import main; sys.exit(main([]))"],
        env=environ,
        capture_output=True,
        text=True,
        check=True,
    )
    assert not done.stderr
    return done.stdout.split()


def test_commands() -> None:
    assert completions("traincheck ") == list(COMMANDS)
    assert completions("traincheck c") == ["collect", "check", "compare", "ctl"]
    assert completions("traincheck --debug do") == ["doctor"]


def test_commands_of_a_group() -> None:
    assert completions("traincheck packs ") == ["list", "show", "build"]
    assert completions("traincheck packs build --th") == ["--themes"]


def test_options_and_their_values() -> None:
    assert completions("traincheck check --b") == ["--book"]
    assert completions("traincheck run --on-violation s") == ["stop"]
    assert completions("traincheck run --book ") == []  # the shell completes files


def test_hidden_options_are_not_offered() -> None:
    assert "--budget" not in completions("traincheck collect --")


def test_program_arguments_are_not_completed() -> None:
    assert completions("traincheck run train.py --") == []
    assert completions("traincheck run --budget 1% -- torchrun --") == []
    assert completions("traincheck run --budget 1% --veri") == ["--verify-every"]


@pytest.mark.parametrize(
    ("words", "environ", "expected"),
    [
        (["run", "--help"], {}, ("run",)),
        (["--debug", "show"], {}, ("show",)),
        (["--help"], {}, ()),
        ([], {"_TRAINCHECK_COMPLETE": "complete_bash", "COMP_WORDS": "traincheck show --"}, ("show",)),
        ([], {"_TRAINCHECK_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": "traincheck diff --"}, ("diff",)),
    ],
)
def test_only_the_named_command_is_imported(
    words: list[str], environ: dict[str, str], expected: tuple[str, ...]
) -> None:
    assert needed(words, environ) == expected
