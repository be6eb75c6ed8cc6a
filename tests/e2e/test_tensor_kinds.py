"""Every kind of tensor passes every observed API with the same results and without a crash (see programs/)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from test_odd_programs import PROGRAMS, TRAINCHECK, run

from torch_version import TORCH

PROGRAM = str(PROGRAMS / "tensor_kinds.py")
IGNORE = {"PYTHONWARNINGS": "ignore", "PYTHONFAULTHANDLER": "1"}


def results(done: subprocess.CompletedProcess[str]) -> list[str]:
    """The lines that the program prints, one for each way."""
    assert done.returncode == 0, done.stderr[-5000:]
    return [line for line in done.stdout.splitlines() if line.startswith("WAY")]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    lines = results(run(tmp_path_factory.mktemp("plain"), sys.executable, PROGRAM, **IGNORE))
    assert len(lines) >= 40
    assert TORCH < (2, 6) or not [line for line in lines if "Error" in line]  # older releases lack some of the ways
    return lines


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        pytest.param(("collect", "-o", "run"), marks=pytest.mark.long),
        ("run", "--fail-on", "never", "-o", "run", "--snapshot"),
        ("run", "--fail-on", "never", "-o", "run", "--verify-every", "1"),
        pytest.param(("collect", "--record", "operations", "-o", "run"), marks=pytest.mark.long),
    ],
    ids=["collect", "run", "replay", "operations"],
)
def test_no_kind_of_tensor_ends_the_process_or_a_source(
    tmp_path: Path, plain: list[str], command: tuple[str, ...]
) -> None:
    observed = run(tmp_path, *TRAINCHECK, *command, PROGRAM, **IGNORE)
    assert results(observed) == plain
    assert "no longer observed" not in observed.stderr


@pytest.mark.slow
def test_the_interpreter_exits_with_a_rank_that_is_not_ended(tmp_path: Path) -> None:
    words = (PROGRAM, "unended", "sharded", "parallel")
    alone = results(run(tmp_path, sys.executable, *words, **IGNORE))
    observed = run(tmp_path, *TRAINCHECK, "run", "--fail-on", "never", "-o", "run", *words, **IGNORE)
    assert len(alone) == 2 and results(observed) == alone


@pytest.mark.slow
@pytest.mark.parametrize("command", ["collect", "run"])
def test_a_group_that_ends_with_its_model_does_not_hang(tmp_path: Path, command: str) -> None:
    """Alone it mostly does: see Note [Groups that end with their model] in sources/distributed/process_groups.py."""
    program = str(PROGRAMS / "group_ends_first.py")
    observed = run(tmp_path, *TRAINCHECK, command, "-o", "run", program, **IGNORE)
    assert (observed.returncode, observed.stdout.splitlines()[-1:]) == (0, ["ended"])
