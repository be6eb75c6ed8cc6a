"""Two ranks follow external requests, and stop before the update of the same step."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import warm_commands
from rank_jobs import PROGRAM, SLOWLY, rank_starter, run

LONG = (
    PROGRAM.replace("range(2)", "range(100_000)")
    .replace("optimizer.step()", "optimizer.step(); time.sleep(0.02)")
    .replace(
        "    data = TensorDataset",
        "    import traincheck\n"
        "    steps = []\n"
        "    traincheck.before_stop(lambda: open(f'stopped-{dist.get_rank()}', 'w').write(str(len(steps))))\n"
        "    data = TensorDataset",
    )
    .replace("            total += loss.detach()", "            total += loss.detach(); steps.append(1)")
)


class Job:
    """A job of two ranks that is checked, until it is stopped."""

    def __init__(self, home: Path, name: str, *words: str) -> None:
        self.home, self.path = home, home / name
        (home / "train.py").write_text(LONG)
        ours = [sys.executable, "-m", "traincheck", "run", "--book", "book.jsonl", "-o", name, *words, "--"]
        self.process = warm_commands.start([*ours, *rank_starter(home), "train.py", "7"], home)

    def answers(self) -> list[dict[str, Any]]:
        answers = [json.loads(file.read_text()) for file in sorted(self.path.glob("controlled-*.json"))]
        return [answer for answer in answers if answer["training"]]

    def until(self, condition: Callable[[], object], seconds: float = 120) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, "it did not come about in time"
            assert self.process.poll() is None, self.process.communicate()
            time.sleep(0.1)

    def ctl(self, *words: str) -> str:
        command = [sys.executable, "-m", "traincheck", "ctl", self.path.name, *words, "--wait", "60"]
        done = warm_commands.run(command, self.home, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr


@pytest.mark.slow
def test_two_ranks_follow_requests_and_stop_together(home: Path) -> None:
    job = Job(home, "controlled")
    try:
        job.until(lambda: len(job.answers()) == 2)
        assert "done by 2 processes" in job.ctl("source", "collectives", "off")
        job.ctl("source", "collectives", "on")
        rule = next(json.loads(line)["id"] for line in (home / "book.jsonl").read_text().splitlines() if '"id"' in line)
        assert "done by 2 processes" in job.ctl("mute", rule, "--reason", "not here")
        job.ctl("record", "2")
        job.until(lambda: all(answer["full"] for answer in job.answers()))
        job.ctl("snapshot")
        job.until(lambda: all(answer["snapshots"] for answer in job.answers()))
        job.ctl("stop", "--reason", "enough")
        _, stderr = job.process.communicate(timeout=120)
    finally:
        job.process.kill()
    assert job.process.returncode == 3, stderr
    assert stderr.count("TrainCheck stopped the training on request: enough") >= 1
    steps = [(home / f"stopped-{rank}").read_text() for rank in (0, 1)]
    assert steps[0] == steps[1], "no rank waits for another"
    report = json.loads((job.path / "report.json").read_text())
    assert report["verdict"] == "clean", report["findings"]
    assert {rank["apart"] for rank in report["ranks"]} == {None}
    assert sorted(file.name[-4:] for file in (job.path / "snapshots").iterdir()) == ["0.pt", "1.pt"], (
        "each rank its own"
    )


@pytest.mark.slow
def test_both_ranks_react_to_common_findings(home: Path) -> None:
    text = (
        PROGRAM.replace("loss = (model(batch)", "loss = (inner(batch)")
        .replace(*SLOWLY)
        .replace(
            "    data = TensorDataset",
            "    import traincheck\n"
            "    traincheck.on_violation(lambda found: open(f'told-{dist.get_rank()}', 'a').write(found.title))\n"
            "    data = TensorDataset",
        )
    )
    words = ("--on-violation", "callback", "--record-after-finding", "2", "--compare-ranks", "files")
    report = run(home, "reacting", text, *words, expect=3)
    assert report["findings"][0]["diagnosis"] == "gradients-differ-between-ranks"
    assert all("Gradients of replicas differ" in (home / f"told-{rank}").read_text() for rank in (0, 1))
    (first, *_) = report["run"]["full"]
    assert first[1] - first[0] == 1
