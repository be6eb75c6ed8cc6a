"""`traincheck sdc doctor`: what is not reproducible in a workload is named by the first operation that differs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from processes import Running, until
from traincheck.sdc.doctor import advice
from traincheck.sdc.fingerprint_log import Difference, Entry, first_difference
from traincheck.sdc.recording import record
from traincheck.sdc.workload.workload import load_workload
from traincheck.sources.tensors.reading import fingerprints

PROGRAM = """
import os, time
import torch

class Jitter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()
    @staticmethod
    def backward(ctx, gradient):
        return gradient * (1 + 1e-3 * int.from_bytes(os.urandom(4), "little"))

class Layer(torch.nn.Module):
    def __init__(self, where):
        super().__init__()
        self.inner, self.where = torch.nn.Linear(4, 4), where
    def forward(self, x):
        x = self.inner(x)
        if self.where == "forward":
            x = x + int.from_bytes(os.urandom(4), "little")
        return Jitter.apply(x) if self.where == "backward" else torch.tanh(x)

class Optimizer(torch.optim.SGD):
    def step(self, closure=None):
        super().step()
        for group in self.param_groups:
            group["params"][1].data.mul_(1 + 1e-3 * int.from_bytes(os.urandom(4), "little"))

class Work:
    def __init__(self, seed, where):
        self.seed, self.where = seed, where
    def build_model(self):
        if self.where == "build":
            torch.seed()
        else:
            torch.manual_seed(self.seed)
        return torch.nn.Sequential(torch.nn.Linear(4, 4), Layer(self.where), torch.nn.Linear(4, 1))
    def build_optimizer(self, model):
        return (Optimizer if self.where == "optimizer" else torch.optim.SGD)(model.parameters(), lr=0.1)
    def batch(self, step):
        seed = time.time_ns() if self.where == "batch" and step == 2 else self.seed + step
        return torch.randn(8, 4, generator=torch.Generator().manual_seed(seed))
    def loss(self, model, batch):
        if self.where == "raises":
            raise ValueError("no such column")
        if self.where == "sleeps":
            time.sleep(600)
        print("hello from the workload")
        return model(batch).pow(2).mean()
"""


def make(tmp_path: Path, where: str) -> str:
    (tmp_path / "mine.py").write_text(f"{PROGRAM}\ndef workload(seed, device):\n    return Work(seed, {where!r})\n")
    return "mine.py:workload"


def doctor(tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "traincheck", "sdc", "doctor", *words]
    return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)


def test_irreproducible_operations_are_named(tmp_path: Path) -> None:
    done = doctor(tmp_path, "--workload", make(tmp_path, "forward"), "--steps", "1")
    assert done.returncode == 3, done.stdout + done.stderr
    assert "first to differ: aten.add in 1, forward, step 1" in done.stdout
    assert "hello from the workload" in done.stderr


@pytest.mark.parametrize(
    ("where", "named"),
    [
        ("backward", "aten.mul in 1, backward, step 1"),
        ("batch", "aten.randn, batch, step 2"),
        ("build", "aten.uniform_, build, before the first step"),
        ("optimizer", "aten.mul_, optimizer, step 1"),
    ],
)
def test_wherever_it_is(tmp_path: Path, where: str, named: str) -> None:
    workload, runs = f"{tmp_path}/{make(tmp_path, where)}", []
    for _ in range(2):
        settle_again()
        runs.append([])
        record(load_workload(workload, 0, torch.device("cpu")), 2, runs[-1].append)
    parted = first_difference(*runs)
    assert parted is not None and parted.first is not None and parted.same_work
    assert parted.first.sentence == named and advice(parted, ())


def settle_again() -> None:
    """The seeds as `make_deterministic` sets them; its other settings would last beyond the test."""
    torch.manual_seed(0)


@pytest.mark.slow
def test_an_exception_in_a_workload_is_reported_with_its_line(tmp_path: Path) -> None:
    done = doctor(tmp_path, "--workload", make(tmp_path, "raises"))
    assert done.returncode == 2 and "[workload-unusable]" in done.stderr
    assert "it raised ValueError: no such column" in done.stderr and "mine.py, line" in done.stderr


def test_ctrl_c_ends_child_processes(tmp_path: Path) -> None:
    running = Running(tmp_path, "sdc", "doctor", "--workload", make(tmp_path, "sleeps"))
    try:
        children = Path(f"/proc/{running.process.pid}/task/{running.process.pid}/children")
        until(lambda: children.read_text().split() or running.process.poll() is not None)
        (child,) = children.read_text().split()
        os.kill(running.process.pid, signal.SIGINT)
        assert running.ends() == 130
        assert not Path(f"/proc/{child}").exists()
    finally:
        running.kill()


def test_recording_changes_no_bit_and_names_modules() -> None:
    def workload():
        return load_workload("decoder-tiny", 0, torch.device("cpu"))

    entries: list[Entry] = []
    record(workload(), 2, entries.append)
    model = workload().build_model()
    optimizer = workload().build_optimizer(model)
    for step in (1, 2):
        optimizer.zero_grad()
        workload().loss(model, workload().batch(step)).backward()
        optimizer.step()
    plain = [f"{entry:016x}" for entry in fingerprints([p.detach() for p in model.parameters()])]
    assert plain == [entry.fingerprint for entry in entries if entry.operation == "parameter" and entry.step == 2]
    matmuls = {entry.module for entry in entries if entry.operation == "aten.mm" and entry.direction == "backward"}
    assert "layers.1.attention.query" in matmuls and "head" in matmuls and "" not in matmuls


def test_the_first_divergence_of_two_runs() -> None:
    entry = Entry(1, "forward", "a", "aten.mm", "0")
    assert first_difference([entry], [entry]) is None
    assert first_difference([entry], [entry, entry]) == Difference(1, None, entry)
    parted = first_difference([entry, entry], [entry, entry._replace(fingerprint="1")])
    assert parted is not None and parted.number == 1 and parted.same_work
    other = first_difference([entry], [entry._replace(module="b")])
    assert other is not None and not other.same_work
