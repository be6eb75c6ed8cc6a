"""`traincheck infer` reads in several processes; Ctrl-C ends all of them and leaves no files behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from recorded_runs import training, write_run

INFER = [sys.executable, "-m", "traincheck", "infer"]


@pytest.fixture
def runs(tmp_path: Path) -> list[str]:
    ranks = {(0, 1): training(60), (1, 1): training(60, rank=1)}
    return [
        str(write_run(tmp_path / "a", "a.py", ranks)),
        str(write_run(tmp_path / "b", "b.py", training(60, "Adam"))),
    ]


def test_jobs_change_nothing(runs: list[str], tmp_path: Path) -> None:
    for jobs in ("1", "3"):
        out = ["-o", f"{jobs}.jsonl", "--tally", f"{jobs}.tally", "--jobs", jobs]
        done = subprocess.run([*INFER, *runs, *out], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    for kind in ("jsonl", "tally", "jsonl.journal.jsonl"):
        assert (tmp_path / f"1.{kind}").read_bytes() == (tmp_path / f"3.{kind}").read_bytes()


def test_a_garbled_recording_is_reported_as_by_one_process(runs: list[str], tmp_path: Path) -> None:
    (tmp_path / "b" / "events-0-1.arrows").write_bytes(b"garbled" * 100)
    messages = set()
    for jobs in ("1", "2"):
        out = ["-o", "x.jsonl", "--jobs", jobs]
        done = subprocess.run([*INFER, *runs, *out], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 2
        messages.add(done.stderr.splitlines()[-1])
    assert len(messages) == 1 and "[trace-unreadable]" in messages.pop()
    assert not (tmp_path / "x.jsonl").exists()


def test_ctrl_c_ends_all_of_it(runs: list[str], tmp_path: Path) -> None:
    before = sorted(path.name for path in tmp_path.iterdir())
    long = [str(write_run(tmp_path / f"long{number}", "c.py", training(1500))) for number in range(2)]
    before += [Path(name).name for name in long]
    words = [*INFER, *long, "-o", "x.jsonl", "--tally", "x.tally", "--jobs", "2"]
    started = subprocess.Popen(words, cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True)
    assert started.stderr is not None
    started.stderr.readline()  # it says that it reads
    time.sleep(0.3)
    os.killpg(started.pid, signal.SIGINT)
    rest = started.stderr.read()  # to the end: no process holds it open any more
    assert started.wait(30) == 130
    assert "Traceback" not in rest
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(before)
