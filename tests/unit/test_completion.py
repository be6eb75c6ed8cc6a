"""What a shell is told of the words that may come next."""

from __future__ import annotations

import subprocess
import sys

import pytest

from traincheck.cli.commands.completion import SCRIPTS, lines
from traincheck.cli.main import COMMANDS, main


def told(*words: str) -> list[str]:
    """What may take the place of the last of the words."""
    return [line.partition("\t")[0] for line in lines(words, len(words) - 1)]


def test_commands() -> None:
    assert told("") == list(COMMANDS)
    assert told("c") == ["collect", "check", "ctl", "completion"]
    assert told("--debug", "do") == ["doctor"]
    assert told("--v") == ["--version"]
    assert told("no-such", "") == []


def test_commands_of_a_group() -> None:
    assert told("packs", "") == ["list", "show", "build"]
    assert told("packs", "build", "--th") == ["--themes"]
    assert told("packs", "nothing", "") == []


def test_options_and_their_values() -> None:
    assert told("check", "--b") == ["--book"]
    assert "--help" in told("run", "--") and "--on-violation" in told("run", "--")
    assert told("run", "--on-violation", "s") == ["stop"]
    assert told("show", "book.jsonl", "--severity", "") == ["error", "notice"]
    assert told("run", "--book", "") == []  # a file


def test_hidden_options_are_not_offered() -> None:
    assert "--sample-every" not in told("collect", "--")


def test_the_words_of_the_program_are_its_own() -> None:
    assert told("run", "train.py", "--") == []
    assert told("run", "--budget", "1%", "--", "torchrun", "--") == []
    assert told("run", "--budget", "1%", "--warm") == ["--warm-up"]


def test_a_word_in_the_middle() -> None:
    assert [line.partition("\t")[0] for line in lines(["ru", "train.py"], 0)] == ["run"]


def test_meanings_are_short() -> None:
    for line in lines(["run", "--"], 1):
        flag, _, meaning = line.partition("\t")
        assert flag.startswith("--") and 0 < len(meaning) < 130 and not meaning.endswith(".")


def test_shells(capsys: pytest.CaptureFixture[str]) -> None:
    assert told("completion", "") == list(SCRIPTS)
    assert main(["completion", "bash"]) == 0
    assert "complete -o bashdefault" in capsys.readouterr().out
    assert main(["completion", "tcsh"]) == 2
    assert "one of bash, zsh, fish" in capsys.readouterr().err


def test_only_the_command_that_is_named_is_imported() -> None:
    code = (
        "import sys; from traincheck.cli.main import main\n"
        "main(['completion', 'words', '--', '2', 'show', '--'])\n"
        "ours = {name for name in sys.modules if name.startswith('traincheck.cli.')}\n"
        "heavy = {'torch', 'pyarrow', 'rich', 'jinja2', 'numpy', 'msgspec'} & set(sys.modules)\n"
        "assert 'traincheck.cli.commands.show' in ours and 'traincheck.cli.commands.run' not in ours, ours\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "--severity" in done.stdout
