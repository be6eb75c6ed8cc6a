"""Ranks that fail: the job goes on or ends as it would without us, and what was not compared is said."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from jobs import PROGRAM, SLOWLY, TORCHRUN, process_of_rank, run
from traincheck.trace.folder import RunFolder

HERE = "dist.get_rank() == 1"


def at_step(number: int, what: str) -> str:
    """The program, in which rank 1 does something before its update of that number."""
    counted = PROGRAM.replace("import time", "import os\nimport time\nsteps = 0", 1)
    before = f"""global steps
            steps += 1
            if {HERE} and steps == {number}:
                {what}
            optimizer.zero_grad()"""
    return counted.replace("optimizer.zero_grad()", before)


@pytest.mark.slow
def test_a_rank_that_is_killed_ends_the_job_as_it_would_without_us(home: Path) -> None:
    (home / "train.py").write_text(PROGRAM.replace(*SLOWLY))
    command = [sys.executable, "-m", "traincheck", "run", "--book", "book.jsonl", "-o", "killed", "--", *TORCHRUN]
    running = subprocess.Popen([*command, "train.py", "7"], cwd=home, stderr=subprocess.PIPE, text=True)
    try:
        victim = process_of_rank(home / "killed", 1)
        os.kill(victim, signal.SIGKILL)
        _, said = running.communicate(timeout=120)
    finally:
        running.kill()
    assert running.returncode == 1, said
    report = json.loads((home / "killed" / "report.json").read_text())
    assert report["verdict"] == "clean" and 1 <= report["counts"]["steps"] < 24
    assert report["ranks"][1]["end"] == "killed" and 1 <= report["ranks"][1]["steps"] < 24
    assert "Traceback" not in said.replace("ChildFailedError", "").split("TrainCheck")[-1]


@pytest.mark.slow
def test_a_rank_that_raises_ends_the_job_as_it_would_without_us(home: Path) -> None:
    report = run(home, "raised", at_step(9, "raise KeyError(steps)"), expect=1)
    assert report["verdict"] == "clean" and report["counts"]["steps"] in (8, 9)
    assert report["run"]["exit_code"] == 1


@pytest.mark.slow
def test_a_rank_that_stalls_is_waited_for(home: Path) -> None:
    report = run(home, "stalled", at_step(9, "time.sleep(5)"))
    assert report["verdict"] == "clean" and report["counts"]["steps"] == 24 and not report["not_observed"]


@pytest.mark.slow
def test_the_attempts_of_an_elastic_job_are_compared_each_by_itself(home: Path) -> None:
    (home / "train.py").write_text(at_step(9, 'os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and os._exit(3)'))
    command = [sys.executable, "-m", "traincheck", "run", "--book", "book.jsonl", "-o", "again", "--"]
    done = subprocess.run(
        [*command, *TORCHRUN, "--max-restarts", "5", "train.py", "7"],  # gloo may not find its peers in a restart
        cwd=home,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    jobs = RunFolder.open(home / "again").jobs()
    assert len(jobs) > 1 and all((job.size, sorted(job.files)) == (2, [0, 1]) for job in (jobs[0], jobs[-1]))
    report = json.loads((home / "again" / "report.json").read_text())
    assert report["verdict"] == "clean" and report["counts"]["steps"] == 24
    first, *_, last = ([rank for rank in report["ranks"] if rank["job"] == job.name] for job in jobs)
    assert all(rank["end"] == "killed" or rank["steps"] < 24 for rank in first)
    assert [(rank["rank"], rank["end"], rank["steps"]) for rank in last] == [(0, "ended", 24), (1, "ended", 24)]


@pytest.mark.slow
def test_of_ranks_with_different_numbers_of_steps_it_is_told_how_far_they_were_compared(home: Path) -> None:
    fewer = at_step(9, "break").replace("(model(batch)", "(inner(batch)").replace("dist.all_reduce(total)", "pass")
    report = run(home, "fewer", fewer.replace("for epoch in range(2)", "for epoch in range(1)"), expect=3)
    assert any("ranks" in reason and "compared up to step" in reason for reason in report["not_observed"])


@pytest.mark.slow
def test_a_run_folder_that_is_deleted_does_not_end_the_training(home: Path) -> None:
    (home / "train.py").write_text(PROGRAM.replace(*SLOWLY).replace("time.sleep(0.5)", 'print("all done", flush=True)'))
    command = [sys.executable, "-m", "traincheck", "run", "--book", "book.jsonl", "-o", "deleted", "--", *TORCHRUN]
    running = subprocess.Popen(
        [*command, "train.py", "7"], cwd=home, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        process_of_rank(home / "deleted", 1)
        shutil.rmtree(home / "deleted")
        out, said = running.communicate(timeout=120)
    finally:
        running.kill()
    assert out.count("all done") == 2, said
    assert running.returncode == 0, said
    reasons = json.loads((home / "deleted" / "report.json").read_text())["not_observed"]  # the report is made anew
    assert any("ranks were not compared" in reason for reason in reasons)
    assert any("Cannot write" in reason for reason in reasons)
