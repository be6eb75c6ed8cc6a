"""Training with torch.compile in every way: the same results, the same graphs, and no false alarm."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import warm_commands
from shared_artifacts import made_once

PROGRAM = Path(__file__).parent / "programs" / "compiled_ways.py"
EAGER = ("plain", "plain_accumulation")
FAST = ("whole_model", "graph_break", "train_step", "step_in_a_lambda")
SLOW = ("inductor", "reduce_overhead")
ELSEWHERE = ("--as", "all_ways")
"""Many ways one after the other are another program than the eager runs: other batches, and another learning rate."""


def execute(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return warm_commands.run(words, folder, {**os.environ, "COLUMNS": "200"}, timeout=900)


def printed_results(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    assert done.returncode == 0, done.stderr[-4000:]
    results = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert results
    return results


def traincheck(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return execute(folder, sys.executable, "-m", "traincheck", *words)


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A book of eager runs of the very program that is compiled afterwards."""
    return made_once(tmp_path_factory, "eager", learn) / "eager.jsonl"


def learn(folder: Path) -> None:
    for number in range(3):
        printed_results(traincheck(folder, "collect", "-o", f"good-{number}", str(PROGRAM), *EAGER))
    done = traincheck(folder, "infer", "good-0", "good-1", "good-2", "-o", "eager.jsonl")
    assert done.returncode == 0, done.stderr


def live(folder: Path, book: Path, alone: list[dict[str, Any]], ways: tuple[str, ...], *words: str) -> None:
    """The program trains as ever while it is checked, and is found to be clean."""
    command = ("run", "-o", "live", "-b", str(book), "--fail-on", "notice", *words, str(PROGRAM), *ways)
    assert printed_results(traincheck(folder, *command)) == alone
    is_clean(folder / "live" / "report.json")


def recorded(folder: Path, book: Path, alone: list[dict[str, Any]], ways: tuple[str, ...], *words: str) -> None:
    """And so where all of it is recorded."""
    assert printed_results(traincheck(folder, "collect", "-o", "full", str(PROGRAM), *ways)) == alone
    command = ("check", "full", "-b", str(book), "--report", "json=full.json", "--fail-on", "notice", *words)
    checked = traincheck(folder, *command)
    assert checked.returncode == 0, checked.stdout
    is_clean(folder / "full.json")


def is_clean(report: Path) -> None:
    result = json.loads(report.read_text())
    assert result["verdict"] == "clean"
    assert any(reason.startswith("compiled: ") for reason in result["not_observed"])
    expected = ("compiled: ", "compiled code is not observed inside")
    assert all(reason.startswith(expected) for reason in result["not_observed"])


@pytest.mark.slow
def test_some_ways(tmp_path: Path, book: Path) -> None:
    alone = printed_results(execute(tmp_path, sys.executable, str(PROGRAM), *FAST))
    live(tmp_path, book, alone, FAST)


@pytest.mark.long
@pytest.mark.slow
def test_all_ways(tmp_path: Path, book: Path) -> None:
    done = execute(PROGRAM.parent, sys.executable, "-c", "import compiled_ways; print(*compiled_ways.WAYS)")
    ways = tuple(way for way in done.stdout.split() if way not in (*EAGER, *SLOW))
    alone = printed_results(execute(tmp_path, sys.executable, str(PROGRAM), *ways))
    live(tmp_path, book, alone, ways, *ELSEWHERE, "--budget", "1/3,first=2")
    recorded(tmp_path, book, alone, ways, *ELSEWHERE)


@pytest.mark.long
@pytest.mark.slow
def test_the_compiler_that_is_slow(tmp_path: Path, book: Path) -> None:
    alone = printed_results(execute(tmp_path, sys.executable, str(PROGRAM), *SLOW))
    live(tmp_path, book, alone, SLOW, *ELSEWHERE)


def test_a_program_that_compiles_nothing_does_not_pay_for_the_compiler(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text(
        "import sys, torch\n"
        "model = torch.nn.Linear(2, 2)\n"
        "model(torch.ones(1, 2)).sum().backward()\n"
        "print('torch._dynamo' in sys.modules)\n"
    )
    for command in ((), ("-m", "traincheck", "collect", "-o", "run")):  # a fork has imported the compiler
        done = subprocess.run([sys.executable, *command, "plain.py"], cwd=tmp_path, capture_output=True, text=True)
        assert done.stdout.startswith("False\n"), done.stderr
