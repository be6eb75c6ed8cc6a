"""`traincheck watch` follows two ranks, including one that is killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from processes import Running, until
from rank_jobs import PROGRAM, WITHOUT_DDP, process_of_rank, rank_starter

WAITS = ("time.sleep(0.5)", "while not Path(sys.argv[2]).exists(): time.sleep(0.05)")
"""At its end each rank waits for a file."""


def program(home: Path, text: str) -> None:
    (home / "train.py").write_text("from pathlib import Path\n" + text.replace(*WAITS))


@pytest.mark.slow
def test_findings_about_several_ranks_are_seen_by_watch(home: Path) -> None:
    program(home, PROGRAM.replace(*WITHOUT_DDP))
    words = ("run", "--book", "book.jsonl", "-o", "watched", "--", *rank_starter(home), "train.py", "7", "go")
    watch, run = Running(home, "watch", "watched"), Running(home, *words)
    try:
        watch.says("TrainCheck ERROR at step 1 between ranks 0, 1: Gradients of replicas differ between ranks")
        assert run.process.poll() is None
        (home / "go").touch()
        assert (run.ends(), watch.ends()) == (3, 3)
    finally:
        run.kill()
        watch.kill()
    assert "2 ranks" in watch.out and watch.out.count(": Gradients of replicas differ between ranks") == 1
    assert "no heartbeat" not in watch.out


@pytest.mark.slow
def test_a_hanging_rank_is_reported_as_silent(home: Path) -> None:
    program(home, PROGRAM.replace("optimizer.step()", "optimizer.step(); time.sleep(0.05)"))
    words = ("collect", "-o", "hanging", "--", *rank_starter(home), "train.py", "7", "never")
    watch, run = Running(home, "watch", "hanging", "--heartbeat-timeout", "15"), Running(home, *words)
    try:
        os.kill(process_of_rank(home / "hanging", 1), signal.SIGSTOP)  # the heart of rank 0 goes on beating
        until(lambda: "rank 1 has sent no heartbeat for" in watch.out)
        assert watch.process.poll() is None
    finally:
        run.kill()
        watch.kill()
        for file in (home / "hanging").glob("process-*"):
            try:
                os.kill(int(file.stem.rsplit("-", 1)[1]), signal.SIGKILL)
            except ProcessLookupError:
                continue
