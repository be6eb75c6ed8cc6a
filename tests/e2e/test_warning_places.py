"""Warnings of an observed program name its own lines, and appear as often as without TrainCheck."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from test_odd_programs import PROGRAMS, TRAINCHECK, run

COMMANDS = {
    "collect": ("collect", "-o", "full"),
    "run": ("run", "--fail-on", "never"),
    "verify": ("run", "--fail-on", "never", "--verify-every", "2"),
}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_warnings_are_those_of_the_plain_program(command: tuple[str, ...], tmp_path: Path) -> None:
    program = str(PROGRAMS / "warning_program.py")
    plain = run(tmp_path, sys.executable, program)
    assert plain.returncode == 0 and "RAISED" in plain.stdout, plain.stderr
    assert plain.stderr.count("Warning: ") >= 8, plain.stderr
    observed = run(tmp_path, *TRAINCHECK, *command, program)
    assert observed.returncode == 0 and observed.stdout == plain.stdout, observed.stderr
    assert warnings_in(observed.stderr) == warnings_in(plain.stderr)


def warnings_in(text: str) -> list[str]:
    """The first line of each warning, with its file and line."""
    return [line for line in text.splitlines() if "Warning: " in line]
