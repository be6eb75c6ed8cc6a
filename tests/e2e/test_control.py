"""A run is controlled from outside while it trains, with the real commands; the program needs no line for it."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import warm_commands
from shared_artifacts import made_once
from traincheck.cli.main import main
from traincheck.invariants.book import Book, write_book
from traincheck.trace.control_file import Answer, change_control, write_answer
from traincheck.trace.folder import RunFolder
from traincheck.trace.run_notes import Manifest

PROGRAM = """
import sys, time
from pathlib import Path
import torch
from torch import nn

def save(model):
    torch.save(model.state_dict(), "saved.pt")
    Path("saved").touch()

def told(finding):
    with open("told.txt", "a") as file:
        print(finding.title, file=file)

def main(steps, pause):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    REGISTER
    data = torch.utils.data.TensorDataset(x := torch.randn(64, 4), x.sum(1, keepdim=True))
    step = 0
    while not (Path("end").exists() if steps < 0 else step >= steps):
        for batch, target in torch.utils.data.DataLoader(data, batch_size=8, shuffle=True):
            step += 1
            if not Path("bad").exists():
                optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(batch), target)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            time.sleep(pause)
    sums = tuple(float(p.detach().double().sum()) for p in model.parameters())
    print("ended", step, hash(sums), torch.rand(1).item())

if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
"""

PLAIN = PROGRAM.replace("REGISTER", "pass")
WITH_CALLBACKS = PROGRAM.replace(
    "REGISTER",
    "import traincheck; traincheck.on_violation(told); traincheck.before_stop(lambda: save(model))",
)


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "traincheck", *words]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a book of good runs of the program."""
    return made_once(tmp_path_factory, "control", learn)


def learn(home: Path) -> None:
    (home / "train.py").write_text(PLAIN)
    for number in (1, 2, 3):
        words = ("collect", "-o", f"good{number}", "train.py", "24", "0")
        warm_commands.run(command(*words), cwd=home, check=True)
    warm_commands.run(command("infer", "good1", "good2", "good3", "-o", "book.jsonl"), cwd=home, check=True)


class Run:
    """A run that continues until `end` is written."""

    def __init__(self, home: Path, name: str, *words: str, text: str = PLAIN) -> None:
        self.home = home
        self.path = home / name
        for file in ("end", "bad", "told.txt", "saved"):
            (home / file).unlink(missing_ok=True)
        (home / "train.py").write_text(text)
        argv = command("run", "--book", "book.jsonl", "-o", name, *words, "train.py", "-1", "0.02")
        self.process = warm_commands.start(argv, cwd=home)
        self.until(lambda: any(answer["training"] for answer in self.answers()))

    def answers(self) -> list[dict[str, Any]]:
        return [json.loads(file.read_text()) for file in self.path.glob("controlled-*.json")]

    def until(self, condition: Callable[[], object], seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, "it did not come about in time"
            assert self.process.poll() is None, self.process.communicate()
            time.sleep(0.05)

    def ctl(self, *words: str, expect: int = 0) -> str:
        words = words if "--wait" in words else (*words, "--wait", "100")
        done = warm_commands.run(command("ctl", self.path.name, *words), cwd=self.home, timeout=200)
        assert done.returncode == expect, done.stderr
        return done.stdout + done.stderr

    def end(self, expect: int = 0) -> tuple[dict[str, Any], str]:
        """The report, and what was said on stderr."""
        (self.home / "end").touch()
        _, stderr = self.process.communicate(timeout=120)
        assert self.process.returncode == expect, stderr
        return json.loads((self.path / "report.json").read_text()), stderr


@pytest.fixture
def start(home: Path) -> Iterator[Callable[..., Run]]:
    runs: list[Run] = []

    def begin(*words: str, text: str = PLAIN) -> Run:
        runs.append(Run(home, f"run{len(list(home.glob('run*')))}", *words, text=text))
        return runs[-1]

    yield begin
    (home / "end").touch()  # the training is not ended with the command
    for run in runs:
        run.process.kill()


def rule_about(home: Path, words: str) -> str:
    lines = [json.loads(line) for line in (home / "book.jsonl").read_text().splitlines()]
    return next(str(line["id"]) for line in lines if words in line.get("sentence", ""))


@pytest.mark.slow
def test_a_clean_run_is_controlled_and_stays_clean(start: Callable[..., Run], home: Path) -> None:
    run = start()
    assert "serial 0" in run.ctl("status")
    assert "done by 1 process from step" in run.ctl("source", "clipping", "off")
    assert "source off" in run.ctl("status")
    assert "done by 1 process" in run.ctl("record", "3")
    run.until(lambda: run.answers()[0]["full"])
    run.ctl("snapshot")
    run.until(lambda: run.answers()[0]["snapshots"])
    run.ctl("source", "clipping", "on")
    rule = rule_about(home, "changes")
    run.ctl("mute", rule[:6], "--reason", "the last layer rests")
    status = json.loads(run.ctl("status", "--json"))
    assert status["asked"]["muted"] == {rule: "the last layer rests"} and status["asked"]["off"] == []
    report, _ = run.end()
    assert report["verdict"] == "clean"
    status = " | ".join(report["not_observed"])
    assert "source clipping was switched off at step" in status and "observed again from step" in status
    assert f"rule {rule} was muted during the run: the last layer rests" in status
    (answer,) = run.answers()
    assert answer["ended"] and answer["full"][0][1] - answer["full"][0][0] == 2
    snapshot = run.path / answer["snapshots"][0]
    code = f"import torch; s = torch.load({str(snapshot)!r}, weights_only=True); print(sorted(s), len(s['parameters']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    keys = "['buffers', 'format', 'gradients', 'optimizers', 'parameters', 'rank', 'step']"
    assert done.stdout.strip() == f"{keys} 6"
    offline = command("check", run.path.name, "--book", "book.jsonl", "--json")
    checked = warm_commands.run(offline, cwd=home)
    assert checked.returncode == 0 and json.loads(checked.stdout)["verdict"] == "clean", checked.stderr


@pytest.mark.slow
def test_a_smaller_budget_still_finds_the_error(
    start: Callable[..., Run],
) -> None:
    run = start("--budget", "0%,first=2", "--record-after-finding", "0")

    def counts() -> tuple[int, int]:
        (note,) = RunFolder.open(run.path).notes()
        return note.steps, note.watched

    run.ctl("budget", "1/4")
    assert "1 of 4 steps" in run.ctl("status")
    run.until(lambda: counts()[0] - counts()[1] > 8)
    run.ctl("budget", "50%")
    run.ctl("budget", "1/1")
    (run.home / "bad").touch()
    steps = counts()[0]
    run.until(lambda: counts()[0] > steps + 60)
    report, _ = run.end(expect=3)
    assert report["cost"]["watched"] < report["cost"]["steps"] - 8
    assert [finding["diagnosis"] for finding in report["findings"]] == ["gradients-not-cleared"]


def test_a_stop_from_outside_saves_first(start: Callable[..., Run], home: Path) -> None:
    run = start(text=WITH_CALLBACKS)
    run.ctl("stop", "--reason", "the power goes off")
    _, stderr = run.process.communicate(timeout=60)
    assert run.process.returncode == 3, stderr
    assert "TrainCheck stopped the training on request: the power goes off" in stderr
    assert (home / "saved").exists()
    assert json.loads((run.path / "run.json").read_text())["stopped_by_us"] is True
    assert "this one ended at" in run.ctl("budget", "1/5", expect=2)


@pytest.mark.slow
def test_muted_rules_do_not_stop_the_run(start: Callable[..., Run], home: Path) -> None:
    run = start("--on-violation", "stop")
    rules = [json.loads(line).get("id") for line in (home / "book.jsonl").read_text().splitlines()]
    all_but_one = {str(rule): "they add up on purpose" for rule in rules[:-1] if rule}
    change_control(run.path, lambda control: msgspec.structs.replace(control, muted=all_but_one))
    run.ctl("mute", rules[-1], "--reason", "this one, too")
    (home / "bad").touch()
    run.ctl("record", "3")
    run.until(lambda: run.answers()[0]["full"])
    report, _ = run.end()
    assert report["verdict"] == "clean" and report["counts"]["not_observed"] == len(all_but_one) + 1


def test_callbacks_are_called_with_findings(start: Callable[..., Run], home: Path) -> None:
    run = start("--on-violation", "callback", "--snapshot", "--record-after-finding", "2", text=WITH_CALLBACKS)
    (home / "bad").touch()
    run.until((home / "told.txt").exists)
    run.until(lambda: run.answers()[0]["full"] and run.answers()[0]["snapshots"])
    report, _ = run.end(expect=3)
    assert (home / "told.txt").read_text().splitlines()[0] == report["findings"][0]["title"]
    (answer,) = run.answers()
    assert answer["full"][0][1] - answer["full"][0][0] == 1
    assert report["run"]["full"] == answer["full"]


@pytest.mark.slow
def test_a_function_named_by_the_option_is_called_without_importing_the_script_again(
    start: Callable[..., Run], home: Path
) -> None:
    run = start("--on-violation", "train:told")
    (home / "bad").touch()
    run.until((home / "told.txt").exists)
    report, stderr = run.end(expect=3)
    assert report["counts"]["processes"] == 1 and "cannot be used" not in stderr


@pytest.mark.slow
def test_a_garbled_file_is_reported_once_and_training_continues(start: Callable[..., Run]) -> None:
    run = start()
    (run.path / "control.json").write_text('{"serial": "many"')
    assert "control.json" in run.ctl("record", expect=2)
    assert run.process.stderr is not None
    assert any("the requests to this run cannot be read" in line for line in run.process.stderr)  # waits for it
    (run.path / "control.json").unlink()
    assert "done by 1 process" in run.ctl("source", "clipping", "off")
    report, stderr = run.end()
    assert report["verdict"] == "clean"
    assert "the requests to this run cannot be read" not in stderr  # once is enough


@pytest.mark.slow
def test_simultaneous_requests_are_all_applied(start: Callable[..., Run]) -> None:
    run = start()
    words = [("source", name, "off") for name in ("clipping", "checkpoints", "run", "buffers")]
    asking = [warm_commands.start(command("ctl", run.path.name, *order, "--wait", "100"), run.home) for order in words]
    assert [process.wait(200) for process in asking] == [0, 0, 0, 0]
    control = json.loads((run.path / "control.json").read_text())
    assert control["off"] == ["buffers", "checkpoints", "clipping", "run"] and control["serial"] == 4
    run.end()


def test_a_finished_run_gives_no_answer(tmp_path: Path, capsys: Any) -> None:
    run = RunFolder.create(tmp_path / "run", Manifest(mode="run"))
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    write_answer(run.path, Answer(rank=0, process=gone.pid, host=platform.node(), training=True))
    assert main(["ctl", str(run.path), "snapshot", "--wait", "1"]) == 1
    assert "no process answers" in capsys.readouterr().err
    assert main(["ctl", str(run.path)]) == 0
    assert "gone" in capsys.readouterr().out
    write_answer(run.path, Answer(rank=1, process=os.getpid(), host=platform.node(), training=True, waiting="for it"))
    assert main(["ctl", str(run.path), "snapshot", "--wait", "1"]) == 1
    assert "not done so far on rank 1 (rank 1 waits for it)" in capsys.readouterr().err
    assert main(["ctl", str(run.path), "snapshot", "--wait", "0"]) == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("dance",), "one of status, budget"),
        (("budget", "many"), "a share such as 1%"),
        (("budget", "1/5,first=3"), "P% or 1/K alone"),
        (("budget", "100"), "a share such as 1%"),
        (("budget", "much"), "such as 1%"),
        (("mute", "zzzz", "--reason", "x"), "no id begins with 'zzzz'"),
        (("mute", "0"), "--reason"),
        (("unmute", "0"), "there are none"),
        (("source", "modules", "off"), "all others rest on"),
        (("source", "spoons", "off"), "one of graph, module_state, buffers"),
        (("source", "clipping", "away"), "off or on"),
        (("record", "0"), "a whole number, 1 or more"),
        (("snapshot", "now"), "snapshot with 0 words"),
        (("status", "--reason", "x"), "mute or stop"),
        (("record", "--wait", "long"), "--wait"),
    ],
)
def test_bad_orders_are_refused_with_a_message(
    words: tuple[str, ...], message: str, tmp_path: Path, capsys: Any
) -> None:
    run = RunFolder.create(tmp_path / "run", Manifest(mode="run"))
    write_book(Book(()), run.path / "book.jsonl")
    assert main(["ctl", str(run.path), *words]) == 2
    stderr = capsys.readouterr().err
    assert message in stderr and "Traceback" not in stderr
    assert not (run.path / "control.json").exists()


@pytest.mark.slow
def test_requests_keep_training_bit_identical(home: Path) -> None:
    (home / "train.py").write_text(PLAIN)
    (home / "bad").unlink(missing_ok=True)
    plain = warm_commands.run([sys.executable, "train.py", "480", "0"], cwd=home)
    path = home / f"run{len(list(home.glob('run*')))}"
    argv = command("run", "--book", "book.jsonl", "-o", path.name, "train.py", "480", "0.03")
    running = warm_commands.start(argv, cwd=home)
    deadline = time.monotonic() + 60
    while not any('"training": true' in file.read_text() for file in path.glob("controlled-*.json")):
        assert time.monotonic() < deadline and running.poll() is None
        time.sleep(0.05)
    for words in (("record", "4"), ("snapshot",), ("source", "functions", "off"), ("source", "functions", "on")):
        warm_commands.run(command("ctl", path.name, *words, "--wait", "100"), cwd=home, check=True)
    out, stderr = running.communicate(timeout=120)
    assert out == plain.stdout, stderr
    (answer,) = (json.loads(file.read_text()) for file in path.glob("controlled-*.json"))
    assert answer["full"] and answer["snapshots"] and answer["serial"] == 4
    assert json.loads((path / "report.json").read_text())["verdict"] == "clean"
