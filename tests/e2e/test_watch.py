"""`traincheck watch` follows a run and sends alerts without affecting the training."""

from __future__ import annotations

import json
import shutil
import signal
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import warm_commands
from alert_receivers import receiving
from processes import Running, until
from traincheck.invariants.book import Book, write_book
from traincheck.trace.folder import RunFolder
from traincheck.vocab.invariant import Invariant

PROGRAM = """
import sys, time
from pathlib import Path
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(1, 31):
    x = torch.randn(16, 4)
    optimizer.zero_grad()
    loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
    loss.backward()
    if step in (10, 11) and "bad" in sys.argv:
        optimizer.zero_grad()
    optimizer.step()
    while step == 20 and "wait" in sys.argv and not Path("go").exists():
        time.sleep(0.02)
print("done", loss.item(), sum(value.double().sum().item() for value in model.parameters()), flush=True)
"""
"""In steps 10 and 11 nothing is updated, if it is to be bad; after step 20 it waits for a file, if it is to wait."""


Start = Callable[..., Running]


@pytest.fixture
def home(tmp_path: Path, new_invariant: Callable[..., Invariant]) -> Path:
    """A folder with the program and a book of one rule."""
    (tmp_path / "train.py").write_text(PROGRAM)
    write_book(Book((new_invariant(),)), tmp_path / "good.jsonl")
    return tmp_path


@pytest.fixture
def start(home: Path) -> Iterator[Start]:
    """Starts a command in the folder, and ends it with the test."""
    started: list[Running] = []

    def begin(*words: str) -> Running:
        started.append(Running(home, *words))
        return started[-1]

    yield begin
    for running in started:
        running.kill()


def plain(home: Path, *words: str) -> str:
    """Return the output of the program without TrainCheck."""
    done = warm_commands.run([sys.executable, "train.py", *words], cwd=home, check=True)
    return done.stdout


def test_a_finding_is_seen_from_elsewhere_while_the_run_trains(home: Path, start: Start) -> None:
    watch = start("watch", "run")
    watch.says("run is not there yet")
    run = start("run", "-b", "good.jsonl", "-o", "run", "train.py", "bad", "wait")
    watch.says("TrainCheck ERROR at step 10: The optimizer step changes no parameter")
    assert run.process.poll() is None and run.out == ""
    (home / "go").touch()
    assert (run.ends(), watch.ends()) == (3, 3)
    assert run.out == plain(home, "bad")
    assert "the run ended with exit code 0" in watch.out and watch.out.count("TrainCheck ERROR at step 10") == 1
    assert "1 error in 30 steps, first at step 10" in watch.out


@pytest.mark.slow
def test_ctrl_c_prints_a_summary(home: Path, start: Start) -> None:
    run = start("run", "-b", "good.jsonl", "-o", "run", "train.py", "bad", "wait")
    watch, json_lines = start("watch", "run"), start("watch", "run", "--json")
    for follower in (watch, json_lines):
        follower.says("The optimizer step changes no parameter")
        follower.process.send_signal(signal.SIGINT)
        assert follower.ends() == 3
        assert "Traceback" not in follower.err
    assert "1 error in" in watch.out
    lines = [json.loads(line) for line in json_lines.out.splitlines()]
    assert {line["kind"] for line in lines} == {"finding", "status"}
    assert run.process.poll() is None
    nothing = start("watch", "nothing-there")
    nothing.says("nothing-there is not there yet")
    nothing.process.send_signal(signal.SIGINT)
    assert nothing.ends() == 130 and "Traceback" not in nothing.err


@pytest.mark.slow
def test_a_killed_run_is_reported_as_silent_and_then_as_killed(home: Path, start: Start) -> None:
    run = start("collect", "-o", "run", "train.py", "wait")
    watch = start("watch", "run", "--heartbeat-timeout", "2")
    watch.says("step 20")
    run.kill()
    watch.says("rank 0 has sent no heartbeat for")
    until(lambda: "the run counts as killed" in watch.out)
    assert watch.ends() == 0


@pytest.mark.slow
def test_a_run_folder_that_is_deleted_ends_the_watch_and_not_the_run(home: Path, start: Start) -> None:
    run = start("run", "-b", "good.jsonl", "-o", "run", "train.py", "bad", "wait")
    watch = start("watch", "run")
    watch.says("TrainCheck ERROR at step 10")
    shutil.rmtree(home / "run")
    watch.says("the run folder was deleted")
    assert watch.ends() == 3 and "Traceback" not in watch.err
    assert not (home / "run").exists()  # the heartbeat does not make it anew
    (home / "go").touch()
    run.ends()
    assert run.out == plain(home, "bad") and "Traceback" not in run.err


@pytest.mark.slow
def test_a_webhook_that_fails_and_hangs_concerns_no_training(home: Path, start: Start) -> None:
    with receiving() as receiver:
        receiver.answer = 500
        words = ("-b", "good.jsonl", "-o", "run", "--alert", receiver.url)
        run = start("run", *words, "train.py", "bad", "wait")
        until(lambda: receiver.attempts)
        receiver.hangs.set()
        until(lambda: len(receiver.attempts) > 1)
        (home / "go").touch()
        run.says("done")  # while the receiver hangs
        receiver.answer = 200
        receiver.hangs.clear()
        receiver.released.set()
        assert run.ends() == 3
        assert sorted(alert["kind"] for alert in receiver.taken) == ["ended", "finding"]
        finding = next(alert for alert in receiver.taken if alert["kind"] == "finding")
        assert finding["finding"]["step"] == 10 and finding["run"]["script"] == "train.py"
        assert any("exit code 0" in text for text in receiver.texts())
    assert run.out == plain(home, "bad")
    assert "could not be delivered to the webhook at http://127.0.0.1" in run.err and "secret" not in run.err
    for file in (home / "run").rglob("*"):
        assert b"secret" not in file.read_bytes()


def test_a_command_and_metrics_during_a_run(home: Path, start: Start) -> None:
    (home / "hook.py").write_text("import sys\nopen('alerts.jsonl', 'a').write(sys.stdin.read() + '\\n')\n")
    words = ("-b", "good.jsonl", "-o", "run", "--alert", f"'{sys.executable}' hook.py", "--metrics", "0")
    run = start("run", *words, "train.py", "bad", "wait")
    until((home / "alerts.jsonl").exists)
    address = run.err.split("traincheck: metrics at ")[1].split()[0]

    def page() -> str:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(address, timeout=30) as answer:
            return str(answer.read().decode())

    until(lambda: 'traincheck_steps_total{rank="0"} 20.0' in page())
    assert 'traincheck_findings{severity="error"} 1.0' in page()
    (home / "go").touch()
    assert run.ends() == 3
    alerts = [json.loads(line) for line in (home / "alerts.jsonl").read_text().splitlines()]
    assert [alert["kind"] for alert in alerts] == ["finding", "ended"]
    assert run.out == plain(home, "bad")


@pytest.mark.slow
def test_the_note_of_a_process_is_kept_current(home: Path, start: Start) -> None:
    start("collect", "-o", "run", "train.py", "wait")
    until((home / "run" / "run.json").exists)

    def steps() -> int:
        return max((note.steps for note in RunFolder.open(home / "run").notes()), default=0)

    until(lambda: steps() == 20)
    (note,) = RunFolder.open(home / "run").notes()
    assert not note.ended and note.windows >= 19 and note.seconds > 0 and note.background["trace"] > 0
