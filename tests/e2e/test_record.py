"""`traincheck run` records little of a long clean run, and every step around an error."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import warm_commands
from shared_artifacts import made_once
from traincheck.checking.offline import check_folder
from traincheck.invariants.book import read_book
from traincheck.runtime.recording.retention import AFTER, BEFORE, FIRST_STEPS
from traincheck.trace.folder import RunFolder, bytes_of
from traincheck.trace.reader import read_windows
from traincheck.vocab.events import EVAL, SETUP, TRAIN

PROGRAM = """
import os, sys, time
import torch

steps, bad, how = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Dropout(0.1), torch.nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(1, steps + 1):
    model.train()
    x = torch.randn(16, 8)
    if step != bad:
        optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
    loss.backward()
    optimizer.step()
    if step % 100 == 0:
        model.eval()
        with torch.no_grad():
            model(x)
print("loss", float(loss), flush=True)
if how == "raises":
    raise RuntimeError("mine")
if how == "exits":
    sys.exit(7)
if how == "killed":
    time.sleep(4)  # longer than a heartbeat takes: what a process says of itself is that much older at most
    os.kill(os.getpid(), 9)
if how == "hangs":
    time.sleep(120)
"""

MAX_A_STEP = 500
"""Bytes a step of a run of 1,200 steps, of which the first twenty and the last ones are half."""


def traincheck(home: Path, *words: object, expect: int = 0) -> str:
    command = [sys.executable, "-m", "traincheck", *map(str, words)]
    environ = {**os.environ, "COLUMNS": "120"}
    done = warm_commands.run(command, cwd=home, env=environ, timeout=300)
    assert done.returncode == expect, done.stdout + done.stderr
    return " ".join((done.stdout + done.stderr).split())


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the program and a book of good runs of it."""

    def make(home: Path) -> None:
        (home / "train.py").write_text(PROGRAM)
        for number in range(3):
            traincheck(home, "collect", "-o", f"good{number}", "train.py", 220, 0, "ends")
        traincheck(home, "infer", "good0", "good1", "good2", "-o", "book.jsonl")

    return made_once(tmp_path_factory, "record", make)


def run(home: Path, name: str, *words: object, expect: int = 0) -> str:
    return traincheck(home, "run", "--budget", "1/1", "--book", "book.jsonl", "-o", name, *words, expect=expect)


def steps(folder: Path) -> list[int]:
    return [step for stage, step in recorded_steps(folder) if stage == TRAIN]


def recorded_steps(folder: Path) -> list[tuple[str, int]]:
    (file,) = RunFolder.open(folder).event_files()
    return [(window.stage, window.step) for window in read_windows(file)]


def report(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return content


@pytest.mark.slow
def test_a_long_clean_run_records_little_and_reports_it(home: Path) -> None:
    output = run(home, "long", "train.py", 1200, 0, "ends")
    there, folder = recorded_steps(home / "long"), RunFolder.open(home / "long")
    of_all = report(home / "long")
    held, watched = of_all["run"]["recorded"]
    assert of_all["verdict"] == "clean" and of_all["counts"]["steps"] == watched == 1200
    trained = steps(home / "long")
    assert held == len(trained) < 120
    assert {*range(1, FIRST_STEPS + 1), *range(1201 - BEFORE, 1201)} < set(trained)
    assert any(400 < step < 1000 for step in trained), "a long clean run is shown from beginning to end"
    assert there[0][0] == SETUP and there[-1] == (EVAL, 1200) and (EVAL, 100) in there
    (file,) = folder.event_files()
    assert bytes_of(file) / 1200 < MAX_A_STEP

    words = f"the recording holds {held} of 1,200 steps (--record all keeps all)"
    assert words in output
    again = traincheck(
        home, "check", "long", "--book", "book.jsonl", "--report", "json=again.json", "--report", "html=again.html"
    )
    assert words in again and words in traincheck(home, "report", "long")
    assert words.capitalize() in re.sub(r"\s+", " ", (home / "again.html").read_text())  # a sentence of its own there
    checked = json.loads((home / "again.json").read_text())
    assert checked["verdict"] == "clean" and checked["counts"]["passed"] > of_all["counts"]["passed"] * 0.8
    learned = traincheck(home, "infer", "long", "-o", "other.jsonl")
    assert f"long: the recording holds {held} of 1,200 steps (`traincheck run --record all`" in learned


@pytest.mark.slow
def test_record_all_records_everything(home: Path) -> None:
    output = run(home, "all", "--record", "all", "train.py", 300, 0, "ends")
    assert steps(home / "all") == list(range(1, 301))
    assert "recorded" not in report(home / "all")["run"] and "the recording holds" not in output
    (home / "pyproject.toml").write_text('[tool.traincheck]\nrecord = "all"\n')
    try:
        run(home, "asked", "train.py", 90, 0, "ends")
        assert steps(home / "asked") == list(range(1, 91))
    finally:
        (home / "pyproject.toml").unlink()


@pytest.mark.slow
def test_a_late_error_is_recorded_with_its_neighbours(home: Path) -> None:
    run(home, "bad", "--record-after-finding", 0, "train.py", 600, 301, "ends", expect=3)
    (first,) = {finding["step"] for finding in report(home / "bad")["findings"] if finding["severity"] == "error"}
    trained = set(steps(home / "bad"))
    assert first in (301, 302) and set(range(first - BEFORE, first + AFTER)) <= trained and len(trained) < 150
    traincheck(home, "check", "bad", "--book", "book.jsonl", "--report", "json=bad.json", expect=3)
    live, offline = report(home / "bad")["findings"], json.loads((home / "bad.json").read_text())["findings"]
    assert [(entry["diagnosis"], entry["step"]) for entry in offline] == [
        (entry["diagnosis"], entry["step"]) for entry in live
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("how", "expect"), [("raises", 1), ("exits", 7), ("ends", 0)])
def test_the_last_steps_are_recorded_however_it_ends(how: str, expect: int, home: Path) -> None:
    run(home, f"end-{how}", "train.py", 333, 0, how, expect=expect)
    assert steps(home / f"end-{how}")[-BEFORE:] == list(range(334 - BEFORE, 334))


@pytest.mark.slow
def test_a_killed_run_can_be_checked_and_lists_its_steps(home: Path) -> None:
    run(home, "killed", "train.py", 333, 0, "killed", expect=137)
    assert steps(home / "killed")[-1] > 100  # the last pair that was not waiting
    again = traincheck(home, "check", "killed", "--book", "book.jsonl")
    assert "the recording holds" in again
    assert check_folder(home / "killed", read_book(home / "book.jsonl")).report.findings == ()


@pytest.mark.long
def test_a_run_that_hangs_and_is_killed_has_its_last_steps(home: Path) -> None:
    command = [sys.executable, "-m", "traincheck", "run", "--budget", "1/1", "--book", "book.jsonl", "-o", "hangs"]
    words = [*command, "train.py", "333", "0", "hangs"]
    with warm_commands.start(words, cwd=home, new_session=True) as running:
        try:
            assert running.stdout is not None and running.stdout.readline().startswith("loss")
            deadline = time.monotonic() + 60
            while steps(home / "hangs")[-1] < 332:  # the last one has not ended yet
                assert time.monotonic() < deadline
                time.sleep(0.5)
        finally:
            os.killpg(running.pid, signal.SIGKILL)
    assert steps(home / "hangs")[-BEFORE:] == list(range(333 - BEFORE, 333))


@pytest.mark.long
@pytest.mark.slow
def test_notebooks_record_the_same(home: Path) -> None:
    text = f"""
import sys
sys.argv = ["train.py", "300", "0", "ends"]
import traincheck
source = {PROGRAM!r}
for name, words in (("part", {{}}), ("whole", {{"record": "all"}})):
    with traincheck.observe(name, "book.jsonl", name="train.py", **words) as run:
        exec(source)
    print(name, run.report.verdict)
try:
    with traincheck.observe("never", "book.jsonl", record="some"):
        pass
except traincheck.TrainCheckError as error:
    print(error)
"""
    (home / "notebook.py").write_text(text)
    done = warm_commands.run([sys.executable, "notebook.py"], cwd=home, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "record was given 'some'; expected 'found' or 'all'" in " ".join(done.stdout.split())
    assert len(steps(home / "part")) < 100 and steps(home / "whole") == list(range(1, 301))
