"""`with traincheck.observe(...)`: recording and checking from inside a program."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import warm_commands

PROGRAM = """
import sys
import torch
import traincheck

def train(steps, clear=True, said=False):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(steps):
        x = torch.randn(16, 4)
        loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
        if clear:
            optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if said:
            optimizer.step()
            traincheck.step()

"""


def execute(tmp_path: Path, text: str) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM + text)
    return warm_commands.run([sys.executable, script.name], cwd=tmp_path)


def test_records_then_checks_and_stops_before_the_next_step(tmp_path: Path) -> None:
    done = execute(
        tmp_path,
        """
for number in range(3):
    with traincheck.observe(f"good-{number}", name=f"program-{number}.py"):
        train(12)
import subprocess
infer = [sys.executable, "-m", "traincheck", "infer", "good-0", "good-1", "good-2", "-o", "good.jsonl"]
subprocess.run(infer, check=True)
with traincheck.observe("clean", "good.jsonl", name="other.py") as run:
    train(12)
print("clean:", run.report.verdict)
with traincheck.observe("bad", book="good.jsonl", name="other.py") as run:
    train(12, clear=False)
print("bad:", run.report.verdict, run.report.findings[0].step, run.report.findings[0].title)
try:
    with traincheck.observe("stopped", "good.jsonl", on_violation="stop", name="other.py"):
        train(100000, clear=False)
except traincheck.StopTraining as stop:
    print("stopped:", stop)
with traincheck.observe("after"):
    train(3)
""",
    )
    assert done.returncode == 0, done.stderr
    assert "clean: clean" in done.stdout
    assert "bad: errors 2 Gradients are not cleared" in done.stdout
    assert json.loads((tmp_path / "bad" / "report.json").read_text())["verdict"] == "errors"
    assert (tmp_path / "bad" / "report.html").exists()
    assert "stopped: TrainCheck stopped the training after step 2" in done.stdout
    assert json.loads((tmp_path / "stopped" / "run.json").read_text())["stopped_by_us"] is True


def test_steps_and_stages_can_be_set(tmp_path: Path) -> None:
    done = execute(
        tmp_path,
        """
from pathlib import Path
from traincheck.trace.folder import RunFolder
with traincheck.observe("said"):
    train(4, said=True)
    with traincheck.stage("eval"):
        model = torch.nn.Linear(2, 2)
        model(torch.randn(1, 2))
windows = [window for _, found in RunFolder.open("said").windows() for window in found]
print([window.step for window in windows if window.stage == "train"])
print([window.stage for window in windows][-2:])
try:
    with traincheck.stage("lunch"):
        pass
except traincheck.TrainCheckError as error:
    print(error)
""",
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    # Two updates in each of four iterations; the first iteration was counted as two steps before the program spoke.
    assert lines[0] == "[1, 2, 3, 4, 5]"
    assert "eval" in lines[1]
    assert "stage was given 'lunch'" in lines[2]


def test_without_observation_nothing_happens(tmp_path: Path) -> None:
    done = execute(tmp_path, 'train(2, said=True)\nwith traincheck.stage("eval"):\n    print("done")\n')
    assert done.returncode == 0 and done.stdout == "done\n" and done.stderr == ""


def test_folder_in_use_is_refused_before_the_block(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "keep.txt").write_text("precious")
    done = execute(
        tmp_path,
        """
try:
    with traincheck.observe("mine"):
        print("entered")
except traincheck.TrainCheckError as error:
    print(error)
""",
    )
    assert "entered" not in done.stdout and "is not empty" in done.stdout
    assert (tmp_path / "mine" / "keep.txt").read_text() == "precious"


@pytest.mark.slow
def test_steps_can_be_left_out_of_a_check_and_not_of_a_recording(tmp_path: Path) -> None:
    done = execute(
        tmp_path,
        """
with traincheck.observe("good"):
    train(60)
import subprocess
subprocess.run([sys.executable, "-m", "traincheck", "infer", "good", "-o", "book.jsonl"], check=True)
with traincheck.observe("part", "book.jsonl", budget="1/5,first=4") as seen:
    train(60)
assert seen.report.verdict == "clean", seen.report.findings
assert 4 < seen.report.cost.watched < 30 and seen.report.cost.steps == 60
with traincheck.observe("long", "book.jsonl") as seen:
    train(300)
assert 200 <= seen.report.cost.watched < 300, "the default of traincheck run"
with traincheck.observe("whole", "book.jsonl", record="all") as seen:
    train(300)
assert seen.report.cost.watched == 300
budgets = [{"budget": text} for text in ("1/0", "1/5,first=-1", "1", "100%")]
for bad in (*budgets, {"keep_recording": "1000"}):
    for book in ((), "book.jsonl"):
        try:
            with traincheck.observe("other", book, **bad):
                raise SystemExit("it was taken")
        except traincheck.TrainCheckError as error:
            print(error)
for refused in ({"budget": "1/2"}, {"budget": "1%"}):
    try:
        with traincheck.observe("other", **refused):
            raise SystemExit("it was taken")
    except traincheck.TrainCheckError as error:
        assert "recorded whole" in str(error), error
""",
    )
    assert done.returncode == 0, done.stderr
    assert "budget was given '1/0'; expected a share such as 1%" in done.stdout
    assert "budget was given '1'; expected a share such as 1%" in done.stdout
    assert "keep_recording was given '1000'; expected a size of 1 MB or more, such as 500 MB" in done.stdout
    assert not (tmp_path / "other").exists()
