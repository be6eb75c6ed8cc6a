"""Unusual programs compute, print and exit as without TrainCheck; see programs/odd_ways.py."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from test_bit_identical import BOOK

from traincheck.invariants.book import write_book

PROGRAMS = Path(__file__).with_name("programs")
SOURCE = Path(__file__).resolve().parents[2] / "src"
TRAINCHECK = [sys.executable, "-m", "traincheck"]


NOT_REPEATED = ("in_threads", "shared", "hooks_of_python", "patched", "forked", "started", "loaders", "talkative")
"""Ways that train in several threads, whose streams are one (then no step is executed again), that count calls of what
they have put in place of torch's own, or that say nothing of steps."""


def environ(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(SOURCE), **more}


def run(folder: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words, cwd=folder, env=environ(**more), capture_output=True, text=True, timeout=900, stdin=subprocess.DEVNULL
    )


@pytest.mark.slow
def test_odd_ways_to_train_compute_the_same(tmp_path: Path) -> None:
    write_book(BOOK, tmp_path / "book.jsonl")
    program = str(PROGRAMS / "odd_ways.py")
    plain = run(tmp_path, sys.executable, program)
    assert plain.returncode == 0, plain.stderr
    ways = [line for line in plain.stdout.splitlines() if line.startswith("WAY")]
    assert len(ways) > 30 and not [line for line in ways if "Error" in line.split(" ")[2]]
    checked = ["run", "--fail-on", "never", "--book", "book.jsonl"]
    for command in (
        ["collect", "-o", "full"],
        [*checked, "--budget", "1/1", "-o", "live"],
        [*checked, "-o", "sampled"],
    ):
        observed = run(tmp_path, *TRAINCHECK, *command, program)
        assert observed.returncode == 0, observed.stderr
        assert [line for line in observed.stdout.splitlines() if line.startswith("WAY")] == ways
        assert observed.stdout == plain.stdout
        warnings = [line for line in observed.stderr.splitlines() if "the training goes on" in line]
        # The last way is Hogwild's. A sample has it or not, as the steps before it took their time.
        assert all("several threads train one module" in line for line in warnings)
        assert len(warnings) == 1 or (command[-1] == "sampled" and not warnings)


@pytest.mark.long
@pytest.mark.slow
def test_odd_ways_compute_the_same_where_steps_are_executed_again(tmp_path: Path) -> None:
    program = str(PROGRAMS / "odd_ways.py")
    listed = run(tmp_path, sys.executable, "-c", f"import runpy; print(*runpy.run_path({program!r})['WAYS'])")
    names = [word for word in re.findall(r"function (\w+)", listed.stdout) if word not in NOT_REPEATED]
    assert len(names) > 25, listed.stderr
    plain = run(tmp_path, sys.executable, program, *names)
    command = [*TRAINCHECK, "run", "--packs", "none", "--verify-every", "2", "--fail-on", "notice", "-o", "live"]
    replayed = run(tmp_path, *command, program, *names)
    assert replayed.returncode == 0, replayed.stderr
    assert replayed.stdout == plain.stdout


@pytest.mark.long
@pytest.mark.slow
def test_odd_ends_are_the_programs_own(tmp_path: Path) -> None:
    words = ["bash", str(PROGRAMS / "odd_ends.sh"), sys.executable, str(PROGRAMS / "odd_end.py")]
    outcomes = []
    for name, before in (("plain", []), ("observed", [*TRAINCHECK, "collect", "-o", "run", "--"])):
        folder = tmp_path / name
        folder.mkdir()
        done = run(folder, *before, *words)
        assert "Fatal Python error" not in done.stderr and "terminate called" not in done.stderr
        assert done.stderr.count("Traceback") == 1, done.stderr  # the program's own
        outcomes.append(
            (done.returncode, done.stdout, [line for line in done.stderr.splitlines() if "KeyError" in line])
        )
    assert outcomes[0] == outcomes[1]
    assert outcomes[0][1].count("END") == 10
