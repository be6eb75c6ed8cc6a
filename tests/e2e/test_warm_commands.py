"""A command in a fork of the server does what its command line does."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import warm_commands
from fake_ranks import wait_for
from traincheck.trace.folder import RunFolder
from traincheck.vocab.events import Window
from warm_commands import WarmProcess

TRAIN = """
import sys, torch

torch.manual_seed(0)
model, other = torch.nn.Linear(4, 1), torch.nn.Linear(4, 1)
optimizer = torch.optim.Adam((other if "wrong" in sys.argv else model).parameters())
for _ in range(12):
    optimizer.zero_grad()
    loss = model(torch.randn(8, 4)).square().mean()
    loss.backward()
    optimizer.step()
print(loss.item())
"""

PROCESS = """
import atexit, gc, multiprocessing, os, signal, sys, threading, time
from pathlib import Path

def child(number):
    print("child", number, __name__, Path.cwd(), flush=True)

if __name__ == "__main__":
    print(sys.argv, sys.orig_argv, sys.path, __file__, __spec__, __loader__, __builtins__)
    print(sys.stdin.read(), gc.get_threshold(), sys.flags, threading.enumerate(), os.environ.get("SOME"), flush=True)
    print([signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE)])
    for way in ("fork", "spawn"):
        process = multiprocessing.get_context(way).Process(target=child, args=(way,))
        process.start()
        process.join()
    sys.stdout.flush()
    atexit.register(print, "at the end")
    threading.Thread(target=lambda: (time.sleep(0.1), print("after a thread"))).start()
    print("to stderr", file=sys.stderr)
    exec(sys.argv[1])
"""
ENDS = {
    "falls through": "pass",
    "code": "sys.exit(3)",
    "large code": "sys.exit(-1)",
    "message": "sys.exit('a message')",
    "error": "raise ValueError('of', __file__)",
    "interrupt": "raise KeyboardInterrupt",
    "at once": "os._exit(4)",
    "signal": "os.kill(os.getpid(), signal.SIGKILL)",
    "terminated": "os.kill(os.getpid(), signal.SIGTERM)",
}


def cold(command: list[str], cwd: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=120)


def without_addresses(done: subprocess.CompletedProcess[str]) -> tuple[int, str, str]:
    return done.returncode, *(re.sub(r"0x\w+|started \d+", "", text) for text in (done.stdout, done.stderr))


@pytest.fixture
def warm_even_if_cold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WarmProcess, "cold", False)


@pytest.mark.usefixtures("warm_even_if_cold")
@pytest.mark.parametrize(
    ("start", "end"),
    [*((["process.py"], end) for end in ENDS), *((["-m", "process"], end) for end in ("code", "error"))],
)
def test_a_process_is_as_python_makes_it(start: list[str], end: str, tmp_path: Path) -> None:
    (tmp_path / "process.py").write_text(PROCESS)
    environ = {**os.environ, "SOME": "value", "PYTHONPATH": "beside"}
    words = [sys.executable, *start, ENDS[end]]
    warm = warm_commands.run(words, tmp_path, environ, 120)
    assert without_addresses(warm) == without_addresses(cold(words, tmp_path, environ))


@pytest.mark.slow
@pytest.mark.usefixtures("warm_even_if_cold")
@pytest.mark.parametrize("args", [pytest.param((), marks=pytest.mark.long), ("wrong",)], ids=["clean", "findings"])
def test_a_checked_run_is_the_same(args: tuple[str, ...], tmp_path: Path) -> None:
    options = ("--record", "all", "--record-after-finding", "0")  # how much follows a finding is a matter of time
    words = [sys.executable, "-m", "traincheck", "run", *options, "-o", "run", "train.py", *args]
    results = []
    for start in (warm_commands.run, cold):
        home = tmp_path / start.__name__ / "project"
        home.mkdir(parents=True)
        (home / "train.py").write_text(TRAIN)
        done = start(words, home)
        finding = done.stderr.partition("  cost ")[0]
        results.append((done.returncode, done.stdout, finding, report_of(home / "run"), windows_of(home / "run")))
    assert results[0] == results[1]
    assert results[0][0] == (3 if args else 0) and len(results[0][-1]) == 14


def report_of(run: Path) -> dict[str, Any]:
    """The report without times."""
    report: dict[str, Any] = json.loads((run / "report.json").read_text())
    for name in ("started", "ended"):
        del report["run"][name]
    del report["cost"]["seconds"]
    report["cost"].update({part: sorted(report["cost"][part]) for part in ("sources", "background")})
    return report


def windows_of(run: Path) -> list[Window]:
    """What was recorded."""
    return [replace(window, process=0) for _, windows in RunFolder.open(run).windows() for window in windows]


@pytest.mark.usefixtures("warm_even_if_cold")
def test_a_fork_that_would_differ_is_not_made(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("ours = True")
    (tmp_path / "process.py").write_text("import torch; print(torch.ours)")
    assert warm_commands.run([sys.executable, "process.py"], tmp_path).stdout == "True\n"
    (tmp_path / "torch.py").unlink()
    (tmp_path / "process.py").write_text("import sys; print(sys.flags.optimize, 'torch' in sys.modules)")
    assert warm_commands.run([sys.executable, "process.py"], tmp_path).stdout == "0 True\n"
    assert (
        warm_commands.run([sys.executable, "process.py"], tmp_path, {**os.environ, "PYTHONOPTIMIZE": "2"}).stdout
        == "2 False\n"
    )
    assert warm_commands.run([sys.executable, "missing.py"], tmp_path).returncode == 2


@pytest.mark.usefixtures("warm_even_if_cold")
def test_a_process_is_signalled_and_given_up(tmp_path: Path) -> None:
    (tmp_path / "process.py").write_text("import time; print('begun', flush=True); time.sleep(600)")
    with warm_commands.start([sys.executable, "process.py"], tmp_path, new_session=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "begun\n" and process.poll() is None
        assert os.getpgid(process.pid) == process.pid
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == -signal.SIGINT
    with pytest.raises(subprocess.TimeoutExpired):
        warm_commands.run([sys.executable, "process.py"], tmp_path, timeout=0.2)


def test_the_server_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    (tmp_path / "process.py").write_text("import os; print(os.getppid())")
    run = "warm_commands.run([sys.executable, 'process.py']).stdout.encode()"
    text = f"import os, sys, warm_commands; os.write(1, {run}); os.kill(os.getpid(), 9)"
    environ = {**os.environ, "PYTHONPATH": str(warm_commands.SERVER.parent)}
    done = subprocess.run([sys.executable, "-c", text], cwd=tmp_path, env=environ, stdout=subprocess.PIPE, timeout=120)
    server = int(done.stdout)
    assert done.returncode == -signal.SIGKILL and server > 1
    wait_for(lambda: not Path(f"/proc/{server}").exists(), 60)
