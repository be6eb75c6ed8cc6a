"""Ranks record every step while their files are compared, and otherwise the same steps on each rank."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rank_jobs import PROGRAM, run, traincheck
from traincheck.trace.folder import RunFolder
from traincheck.trace.reader import read_windows
from traincheck.vocab.events import TRAIN

LONG = PROGRAM.replace("in range(2)", "in range(20)")
STEPS = 240


def steps_of(folder: Path) -> list[list[int]]:
    """The steps in the recording of each process that trained."""
    files = RunFolder.open(folder).event_files()
    recordings = [[window.step for window in read_windows(file) if window.stage == TRAIN] for file in files]
    return [steps for steps in recordings if steps]


def again(home: Path, folder: str) -> dict[str, Any]:
    """The report of a check of the recording, which makes no alarm."""
    traincheck(home, "check", folder, "--book", "book.jsonl", "--report", "json=again.json", "--fail-on", "notice")
    content: dict[str, Any] = json.loads((home / "again.json").read_text())
    return content


@pytest.mark.slow
def test_ranks_that_are_compared_by_their_files_record_each_step(home: Path) -> None:
    assert run(home, "by-files", LONG, "--budget", "1/1")["verdict"] == "clean"
    assert steps_of(home / "by-files") == [list(range(1, STEPS + 1))] * 2


@pytest.mark.slow
@pytest.mark.parametrize("how", ["exchange", pytest.param("off", marks=pytest.mark.long)])
def test_other_ranks_record_the_same_steps_and_can_be_checked(how: str, home: Path) -> None:
    report = run(home, f"by-{how}", LONG, "--budget", "1/1", "--compare-ranks", how)
    assert report["verdict"] == "clean" and report["counts"]["steps"] == STEPS
    first, other = steps_of(home / f"by-{how}")
    late = [[step for step in steps if step > STEPS / 2] for steps in (first, other)]
    assert late[0] == late[1] and len(first) < STEPS and first[:20] == list(range(1, 21))
    checked = again(home, f"by-{how}")
    assert checked["verdict"] == "clean" and checked["run"]["recorded"][1] == STEPS
    assert [(rank["end"], rank["steps"]) for rank in checked["ranks"]] == [("ended", STEPS)] * 2
    assert all(rank["compared"] == STEPS for rank in checked["ranks"])
