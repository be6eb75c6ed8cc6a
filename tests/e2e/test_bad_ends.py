"""Programs that end badly or do strange things: they are not harmed, and what was recorded is kept."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import warm_commands

TRAIN = """
import os, sys, time
import torch

def train(steps, each=lambda step: None):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(1, steps + 1):
        x = torch.randn(16, 4)
        loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        each(step)
    return float(loss)

"""


def start(tmp_path: Path, text: str, *options: str, prefix: str = "") -> subprocess.Popen[str]:
    """Start the program under `traincheck collect`, in a shell that executes `prefix` if there is any."""
    (tmp_path / "program.py").write_text(TRAIN + text)
    words = [sys.executable, "-m", "traincheck", "collect", "-o", "run", *options, "program.py"]
    if not prefix:
        return warm_commands.start(words, tmp_path, new_session=True)
    command = f"{prefix}exec {shlex.join(words)}"
    return subprocess.Popen(
        ["bash", "-c", command],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err


def steps_kept(tmp_path: Path) -> int:
    """The last step that can be read back from the run folder."""
    from traincheck.trace.folder import RunFolder

    return max((w.step for _, windows in RunFolder.open(tmp_path / "run").windows() for w in windows), default=0)


def test_exception_keeps_its_traceback_and_code(tmp_path: Path) -> None:
    code, _, err = finish(start(tmp_path, "train(5)\nraise RuntimeError('mine')\n"))
    assert code == 1
    assert "RuntimeError: mine" in err and "program.py" in err
    assert "traincheck/" not in err.split("Traceback")[1].split("RuntimeError")[0]
    assert steps_kept(tmp_path) == 5


WHEN_RECORDED = """
from traincheck.trace.folder import RunFolder

while not any(True for _, windows in RunFolder.open("run").windows() for _ in windows):
    time.sleep(0.05)
"""

OTHER_ENDS = [pytest.param(*other, marks=pytest.mark.slow) for other in (("sys.exit(7)", 7), ("sys.exit('words')", 1))]


@pytest.mark.parametrize(
    ("end", "expected"), [pytest.param(f"{WHEN_RECORDED}os._exit(9)", 9, id="os._exit(9)"), *OTHER_ENDS]
)
def test_exit_codes(end: str, expected: int, tmp_path: Path) -> None:
    code, _, _ = finish(start(tmp_path, f"train(5)\n{end}\n"))
    assert code == expected
    assert steps_kept(tmp_path) >= 1


def test_killed_process_loses_at_most_the_last_windows_and_the_rest_can_be_checked(tmp_path: Path) -> None:
    text = "train(10)\ntime.sleep(1)\nos.kill(os.getpid(), 9)\n"
    code, _, err = finish(start(tmp_path, text))
    assert code == 128 + signal.SIGKILL
    assert "SIGKILL" in err and "kept" in err
    assert steps_kept(tmp_path) >= 9
    command = [sys.executable, "-m", "traincheck"]
    warm_commands.run([*command, "infer", "run", "-o", "book.jsonl"], tmp_path, check=True)
    done = warm_commands.run([*command, "check", "run", "--book", "book.jsonl", "--json"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["run"]["crashed"]


def test_an_interrupt_keeps_the_recording(tmp_path: Path) -> None:
    text = "train(10**9, lambda step: print(step, flush=True) if step == 21 else time.sleep(0.001))\n"
    process = start(tmp_path, text)
    assert process.stdout is not None and process.stdout.readline().strip() == "21"
    # Only the launcher gets it, and passes it on: a second interrupt would end what the first one began.
    os.kill(process.pid, signal.SIGINT)
    code, _, err = finish(process)
    assert code == 128 + signal.SIGINT
    assert "KeyboardInterrupt" in err
    assert steps_kept(tmp_path) >= 20  # the interrupted step may be missing


IN_PASSES = """
from torch.utils.data import DataLoader, TensorDataset

def main():
    x = torch.randn(64, 4)
    loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8, shuffle=True)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
    for epoch in range(10**9):
        for step, (x, y) in enumerate(loader):
            optimizer.zero_grad()
            (model(x) - y).pow(2).mean().backward()
            optimizer.step()
            time.sleep(0.001)
            if epoch == 6 and step == 3:
                END
        scheduler.step()

main()
"""


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        ("print('here', flush=True); time.sleep(9)", 128 + signal.SIGINT),
        pytest.param("raise MemoryError", 1, marks=pytest.mark.slow),
    ],
)
def test_a_pass_that_an_exception_ends_is_no_finding(end: str, expected: int, tmp_path: Path) -> None:
    """The program ends as it does by itself, also where TrainCheck imports modules afterwards."""
    (tmp_path / "program.py").write_text(TRAIN + IN_PASSES.replace("END", end))
    words = [sys.executable, "-m", "traincheck", "run", "-o", "run", "program.py"]
    process = warm_commands.start(words, tmp_path, new_session=True)
    if expected != 1:
        assert process.stdout is not None and process.stdout.readline().strip() == "here"
        os.kill(process.pid, signal.SIGINT)
    code, _, err = finish(process)
    assert code == expected, err
    assert json.loads((tmp_path / "run" / "report.json").read_text())["findings"] == []


def test_full_disk_does_not_stop_the_training(tmp_path: Path) -> None:
    code, out, err = finish(start(tmp_path, "print(train(100))\n", prefix="ulimit -f 24; "))
    assert code == 0 and float(out) >= 0
    assert "the training goes on" in err
    assert err.count("Traceback") == 0


@pytest.mark.slow
def test_run_folder_removed_under_way(tmp_path: Path) -> None:
    text = "import shutil\ntrain(5)\nshutil.rmtree('run')\nprint(train(5))\n"
    code, out, err = finish(start(tmp_path, text))
    assert float(out) >= 0
    assert "Traceback" not in err
    assert code in (0, 1, 2)


def test_a_missing_permission_is_reported_before_the_program_starts(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file, not a folder")
    code, out, err = finish(start(tmp_path, "print('started')\n"))
    assert code in (1, 2)
    assert out == "" and "run" in err and "Traceback" not in err
    assert (tmp_path / "run").read_text() == "a file, not a folder"


@pytest.mark.slow
def test_forked_and_spawned_children(tmp_path: Path) -> None:
    text = """
import multiprocessing

def child(queue):
    queue.put(train(3))

if __name__ == "__main__":
    mine = train(6)
    found = []
    for method in ("fork", "spawn"):
        context = multiprocessing.get_context(method)
        queue = context.Queue()
        worker = context.Process(target=child, args=(queue,))
        worker.start()
        found.append(queue.get(timeout=120))
        worker.join()
        assert worker.exitcode == 0
    assert found[0] == found[1]
    print("ok")
"""
    code, out, err = finish(start(tmp_path, text))
    assert code == 0, err
    assert out == "ok\n"
    assert "Traceback" not in err
    assert steps_kept(tmp_path) == 6


def test_forked_loader_workers(tmp_path: Path) -> None:
    text = """
class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.full((4,), float(index)), torch.tensor([float(index)])

loader = torch.utils.data.DataLoader(Numbers(), batch_size=8, num_workers=2)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
for x, y in loader:
    optimizer.zero_grad()
    (model(x) - y).pow(2).mean().backward()
    optimizer.step()
print("ok")
"""
    code, out, err = finish(start(tmp_path, text))
    assert (code, out) == (0, "ok\n"), err
    assert "Traceback" not in err
    assert steps_kept(tmp_path) == 8
    assert len(list((tmp_path / "run").glob("events-*"))) == 1


@pytest.mark.slow
def test_program_that_patches_torch(tmp_path: Path) -> None:
    text = """
calls = []
before = torch.optim.Optimizer.zero_grad

def mine(self, *args, **kwargs):
    calls.append(1)
    return before(self, *args, **kwargs)

torch.optim.Optimizer.zero_grad = mine
torch.nn.functional.relu = lambda x: x
train(5)
print(len(calls), torch.optim.Optimizer.zero_grad is mine)
"""
    code, out, err = finish(start(tmp_path, text))
    assert (code, out) == (0, "5 True\n"), err
    assert steps_kept(tmp_path) == 5


def test_program_without_torch(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("print('no torch here')\n")
    command = [sys.executable, "-m", "traincheck", "collect", "-o", "run", "program.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "no torch here\n")
    assert "nothing was observed" in done.stderr
