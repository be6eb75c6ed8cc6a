"""A job with a failing rank continues or ends as without TrainCheck, and the report names uncompared steps."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rank_jobs import PROGRAM, SLOWLY, TORCHRUN, free_port, process_of_rank, run, traincheck
from traincheck.checking.rank_comparison import Follower
from traincheck.invariants.book import read_book
from traincheck.trace.folder import RunFolder

HERE = "dist.get_rank() == 1"


def at_step(number: int, statement: str) -> str:
    """The program, in which rank 1 does something before its update of that number."""
    counted = PROGRAM.replace("import time", "import os\nimport time\nsteps = 0", 1)
    before = f"""global steps
            steps += 1
            if {HERE} and steps == {number}:
                {statement}
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
        _, stderr = running.communicate(timeout=120)
    finally:
        running.kill()
    assert running.returncode == 1, stderr
    report = json.loads((home / "killed" / "report.json").read_text())
    assert report["verdict"] == "clean" and 1 <= report["counts"]["steps"] < 24
    assert report["ranks"][1]["end"] == "killed" and 1 <= report["ranks"][1]["steps"] < 24
    assert "Traceback" not in stderr.replace("ChildFailedError", "").split("TrainCheck")[-1]


@pytest.mark.slow
def test_a_rank_that_raises_ends_the_job_as_it_would_without_us(home: Path) -> None:
    report = run(home, "raised", at_step(9, "raise KeyError(steps)"), expect=1, launcher=TORCHRUN)
    assert report["verdict"] == "clean" and report["counts"]["steps"] in (8, 9)
    assert report["run"]["exit_code"] == 1


SKEWED = """
if os.environ["RANK"] == "1":
    honest, late = time.time, time.time_ns
    time.time = lambda: honest() - 7200
    time.time_ns = lambda: late() - 7200 * 10**9

main(int(sys.argv[1]))
"""
"""On rank 1 the clock is two hours behind."""


@pytest.mark.long
@pytest.mark.slow
def test_a_stalled_rank_is_awaited_and_clocks_are_ignored(home: Path) -> None:
    skewed = at_step(9, "time.sleep(30)").replace("\nmain(int(sys.argv[1]))\n", SKEWED)
    report = run(home, "stalled", skewed, launcher=TORCHRUN)
    assert report["verdict"] == "clean" and report["counts"]["steps"] == 24 and not report["not_observed"]
    assert compared(home / "stalled"), "what ranks show together was judged"


def compared(folder: Path) -> list[str]:
    """The ids of the rules about several ranks that were judged in a run."""
    followed = Follower(RunFolder.open(folder), read_book(folder.parent / "book.jsonl").active, lambda finding: None)
    with followed:
        pass
    return [
        rule
        for comparison in followed.comparisons
        for rule, tried in comparison.outcome.tried.items()
        if tried.triggered
    ]


def in_shell(home: Path, folder: str, script: str, expect: int = 0) -> dict[str, Any]:
    """The report of a shell script that was checked while it ran. It has the name of what it starts: rules go by it."""
    shell = home / "shell" / Path(sys.executable).name
    shell.parent.mkdir(exist_ok=True)
    shell.write_text(f"#!/bin/bash\n{script}\n")
    shell.chmod(0o755)
    traincheck(home, "run", "--book", "book.jsonl", "-o", folder, "--", str(shell), "train.py", expect=expect)
    report: dict[str, Any] = json.loads((home / folder / "report.json").read_text())
    return report


def one_rank(rank: int, port: int, seed: int, *flags: str) -> str:
    """Return a shell command that starts a rank without a launcher."""
    environment = f"RANK={rank} WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT={port}"
    return " ".join([environment, sys.executable, *flags, "train.py", str(seed)])


@pytest.mark.long
@pytest.mark.slow
def test_jobs_in_one_run_folder_are_compared_each_by_itself(home: Path) -> None:
    """Two consecutive jobs with the same port, and another job in parallel; the second job fails."""
    drifting = "(inner if sys.argv[1] == '9' else model)(batch)"
    (home / "train.py").write_text(PROGRAM.replace("model(batch)", drifting))
    port, other = free_port(), free_port()
    first, second, beside = (
        f"{one_rank(0, *job)} & {one_rank(1, *job)} &" for job in ((port, 4), (port, 9), (other, 5))
    )
    report = in_shell(home, "jobs", f"{first} wait\n{second} {beside} wait", expect=3)
    jobs = RunFolder.open(home / "jobs").jobs()
    assert {job.name.partition("-")[2] for job in jobs} == {f"{port}", f"{port}#2", f"{other}"}
    assert all(sorted(job.files) == [0, 1] for job in jobs) and not report["not_observed"]
    (error,) = [finding for finding in report["findings"] if finding["severity"] == "error"]
    assert error["diagnosis"] == "gradients-differ-between-ranks" and error["step"] == 1


@pytest.mark.slow
def test_a_rank_that_left_no_recording_is_named(home: Path) -> None:
    """A rank in an isolated interpreter, and a rank that never starts."""
    port = free_port()
    (home / "train.py").write_text(PROGRAM.replace('("gloo")', '("gloo", timeout=timedelta(seconds=5))', 1))
    (home / "train.py").write_text("from datetime import timedelta\n" + (home / "train.py").read_text())
    unseen = in_shell(home, "unseen", f"{one_rank(0, port, 4)} & {one_rank(1, port, 4, '-I')} & wait")
    assert unseen["verdict"] == "clean" and unseen["counts"]["steps"] == 24
    alone = in_shell(home, "alone", one_rank(0, port, 4), expect=1)
    assert alone["run"]["exit_code"] == 1 and alone["counts"]["passed"] == 0
    for report in (unseen, alone):
        assert any("rank 1 of job" in reason and "left no recording" in reason for reason in report["not_observed"])


@pytest.mark.slow
def test_the_attempts_of_an_elastic_job_are_compared_each_by_itself(home: Path) -> None:
    program = at_step(9, 'os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and os._exit(3)')
    # In the store of torchrun, gloo may find addresses of the attempt before, where nobody is: so each has its own.
    where = """init_method=f"file://{os.getcwd()}/met-{os.environ['TORCHELASTIC_RESTART_COUNT']}", """
    whom = 'rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"])'
    (home / "train.py").write_text(program.replace('("gloo")', f'("gloo", {where}{whom})'))
    command = [sys.executable, "-m", "traincheck", "run", "--book", "book.jsonl", "-o", "again", "--"]
    done = subprocess.run(
        [*command, *TORCHRUN, "--max-restarts", "5", "train.py", "7"],
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
def test_the_report_shows_the_last_compared_step(home: Path) -> None:
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
        out, stderr = running.communicate(timeout=120)
    finally:
        running.kill()
    assert out.count("all done") == 2, stderr
    assert running.returncode == 0, stderr
    reasons = json.loads((home / "deleted" / "report.json").read_text())["not_observed"]  # the report is made anew
    assert any("ranks were not compared" in reason for reason in reasons)
    assert any("the run folder was deleted" in reason for reason in reasons)
