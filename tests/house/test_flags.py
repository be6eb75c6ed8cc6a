"""The flags of the commands are the rows of the option table, and --help is of help."""

from __future__ import annotations

import re
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from traincheck.cli.main import COMMANDS as LISTED
from traincheck.cli.main import app
from traincheck.options import GROUPS, OPTIONS

GROUP: Any = get_command(app())
COMMANDS: dict[str, Any] = {}
"""All commands by their words, also those of a group of their own."""
for _name, _command in GROUP.commands.items():
    COMMANDS[_name] = _command
    COMMANDS |= {f"{_name} {word}": inner for word, inner in getattr(_command, "commands", {}).items()}
OF_TYPER = {"--help", "--version", "--install-completion", "--show-completion"}
FIRST_TEN = [
    "--out",
    "--book",
    "--on-violation",
    "--fail-on",
    "--budget",
    "--report",
    "--track",
    "--alert",
    "--packs",
    "--package",
]
"""The options of `traincheck run` that matter most, in the order of its --help."""


def test_there_are_few_options() -> None:
    assert len(OPTIONS) < 50


def test_help_of_run_fits_on_two_screens() -> None:
    shown = CliRunner().invoke(app(), ["run", "--help"], terminal_width=80).output
    assert len(shown.splitlines()) <= 90
    listed = re.findall(r"^  (?:-\w, )?(--[\w-]+)", shown, re.MULTILINE)
    assert listed[: len(FIRST_TEN)] == FIRST_TEN
    assert [line[:-1] for line in shown.splitlines() if line[:-1] in GROUPS] == list(GROUPS)


def test_the_list_of_commands_has_their_own_first_sentences() -> None:
    for name, (_, summary) in LISTED.items():
        assert GROUP.commands[name].help.partition("\n")[0] == summary, name


def flags(command: Any) -> dict[str, Any]:
    """The options of a command by their flags."""
    options = [param for param in command.params if param.param_type_name == "option"]
    return {flag: option for option in options for flag in option.opts}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_flag_is_a_row_of_the_table(name: str) -> None:
    rows = [set(option.flags) for option in OPTIONS.values()]
    for flag, option in flags(COMMANDS[name]).items():
        if flag not in OF_TYPER:
            assert set(option.opts) in rows, f"traincheck {name} {flag} is not in options/"


def test_every_row_is_a_flag_of_some_command() -> None:
    offered = [set(option.opts) for command in (GROUP, *COMMANDS.values()) for option in flags(command).values()]
    for row in OPTIONS.values():
        assert not row.flags or set(row.flags) in offered, f"no command offers {row.name}"


@pytest.mark.parametrize("row", OPTIONS.values(), ids=OPTIONS)
def test_row_has_help_and_a_way_to_be_named(row: Any) -> None:
    assert row.help.endswith((".", ")")), f"the help of {row.name} is no sentence"
    assert row.flag.startswith("--") or (row.secret and not row.flags)
    assert row.kind == "switch" or row.metavar
    assert not row.choices or row.default in (None, *row.choices)


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_help_has_examples(name: str) -> None:
    shown = CliRunner().invoke(app(), [*name.split(), "--help"])
    assert shown.exit_code == 0, shown.output
    assert "Examples:" in shown.output
    assert f"traincheck {name}" in shown.output.partition("Examples:")[2]


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_help_uses_plain_language(name: str) -> None:
    usage, _, rest = CliRunner().invoke(app(), [*name.split(), "--help"]).output.partition("\n\n")
    assert "{" not in usage and "<" not in usage, "types of Python are no help"
    described = rest.partition("\n\n")[0].strip()
    assert described.endswith("."), f"traincheck {name} begins with no sentence"
    assert not re.search(r"<(list|str|path|int)\b", rest)


@pytest.mark.parametrize("name", ["", "packs"])
def test_lists_of_commands_hold_whole_sentences(name: str) -> None:
    shown = CliRunner().invoke(app(), [*name.split(), "--help"]).output
    listed = re.findall(r"^  [a-z]+  +(.+)$", shown.partition("Commands:\n")[2].partition("\n\n")[0], re.MULTILINE)
    assert listed and [line for line in listed if not line.endswith(".") or line.endswith("...")] == []
