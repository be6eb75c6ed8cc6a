"""The ordinary commands learn, check and report a relation of an installed package."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import warm_commands
from recorded_runs import training, write_run

ROOT = Path(__file__).resolve().parents[2]

RELATION = '''
"""A model returns tensors of single precision."""

from traincheck.relations.base import context_of, ended, short
from traincheck.vocab.demand import Demand
from traincheck.vocab.facts import value_of
from traincheck.vocab.occasion import Occasion, Property, Subject

SINGLE = Property("returns", "dtype", "float32")


class ReturnsFloating:
    """An outermost call of a module returns a tensor of single precision."""

    name = "ReturnsFloating"

    def __init__(self, interest=None):
        self._interest = interest

    def occasions(self, window):
        for call in window.calls:
            dtype = value_of(call.result, "dtype")
            subject = Subject(call.levels[-1], "floating")
            if not ended(call) or dtype is None or value_of(call.context, "outermost") is not True:
                continue
            if self._interest is None or subject in self._interest:
                held, failed = ({SINGLE}, set()) if dtype == "float32" else (set(), {SINGLE})
                yield Occasion(subject, context_of((), window.stage), held, failed, call.seq)

    @staticmethod
    def needs(subject, prop):
        return Demand.of_calls(subject.api)

    @staticmethod
    def is_optional_practice(prop):
        return False

    @staticmethod
    def is_setting(prop):
        return False

    @staticmethod
    def argument_of(subject, prop):
        return None

    @staticmethod
    def implied(prop):
        return ()

    @staticmethod
    def describe(subject, prop):
        return f"an outermost call of {short(subject.api)} returns single precision"
'''

SCRIPT = """
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.{activation}(), torch.nn.Linear(8, 2))
optimizer = torch.optim.{optimizer}(model.parameters(), lr=0.01)
for step in range(8):
    optimizer.zero_grad()
    if step == {wrong}:
        model.double()
    x = torch.randn(16, 4).to(model[0].weight.dtype)
    torch.nn.functional.mse_loss(model(x), torch.zeros(16, 2).to(x.dtype)).backward()
    optimizer.step()
"""


def install(site: Path, module: str, target: str, name: str = "ReturnsFloating") -> None:
    """Put a package into `site` as an installer does: the module, and what it offers in its metadata."""
    site.mkdir(exist_ok=True)
    (site / "floating_relation.py").write_text(module, encoding="utf-8")
    info = site / "floating_relation-1.0.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: floating-relation\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(f"[traincheck.relations]\n{name} = {target}\n", encoding="utf-8")


def traincheck(folder: Path, *words: str, installed: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a command in `folder`, with the package next to the installed ones."""
    path = str(folder / "site") if installed else ""
    environ = {**os.environ, "PYTHONPATH": path, "COLUMNS": "120", "OMP_NUM_THREADS": "1"}
    return warm_commands.run([sys.executable, "-m", "traincheck", *words], cwd=folder, env=environ)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Three good scripts, a bad one, and the package."""
    install(tmp_path / "site", RELATION, "floating_relation:ReturnsFloating")
    for name, activation, optimizer, wrong in (
        ("one", "ReLU", "SGD", -1),
        ("two", "Tanh", "Adam", -1),
        ("three", "GELU", "AdamW", -1),
        ("bad", "ReLU", "SGD", 4),
    ):
        text = SCRIPT.format(activation=activation, optimizer=optimizer, wrong=wrong)
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    return tmp_path


@pytest.mark.slow
def test_a_package_brings_a_relation(project: Path) -> None:
    for name in ("one", "two", "three"):
        done = traincheck(project, "collect", "-o", f"runs/{name}", f"{name}.py")
        assert done.returncode == 0, done.stdout + done.stderr
    done = traincheck(project, "infer", "runs/one", "runs/two", "runs/three", "-o", "book.jsonl")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [json.loads(line) for line in (project / "book.jsonl").read_text(encoding="utf-8").splitlines()]
    book = project / "own.jsonl"
    own = [line for line in lines if line.get("relation") == "ReturnsFloating"]
    assert [line["subject"] for line in own] and own[0]["severity"] == "error"
    # With this rule alone, so that nothing but the relation can find the error.
    head = {**lines[0], "invariants": len(own)}
    book.write_text("".join(json.dumps(line) + "\n" for line in (head, *own)), encoding="utf-8")

    done = traincheck(project, "run", "--book", "own.jsonl", "-o", "runs/bad", "bad.py")
    output = done.stdout + done.stderr
    assert done.returncode == 3, output
    assert "single precision" in output and "step 5" in output
    offline = traincheck(project, "check", "runs/bad", "--book", "own.jsonl")
    assert offline.returncode == 3 and "1 error in 8 steps, first at step 5" in offline.stdout, offline.stdout

    # Where the package is not installed nobody knows what the rule means.
    without = traincheck(project, "check", "runs/bad", "--book", "own.jsonl", installed=False)
    assert without.returncode == 0, without.stdout + without.stderr


BROKEN = {
    "raises": ("raise RuntimeError('no licence')", "floating_relation:ReturnsFloating", "RuntimeError: no licence"),
    "not there": ("", "floating_relation:ReturnsFloating", "cannot be imported"),
    "no class named": (RELATION, "floating_relation", "names no class"),
    "no class": (RELATION + "\nReturnsFloating = 3\n", "floating_relation:ReturnsFloating", "is no class but int"),
    "other name": (RELATION + "\nReturnsFloating.name = 'Other'\n", "floating_relation:ReturnsFloating", "'Other'"),
    "no relation": (RELATION + "\ndel ReturnsFloating.needs\n", "floating_relation:ReturnsFloating", "has no needs"),
}


def loading(folder: Path) -> str:
    """Return the message to a program that loads the relations, as one line."""
    code = "from traincheck import plugins\nplugins.load('traincheck.relations')"
    environ = {**os.environ, "PYTHONPATH": str(folder / "site")}
    done = warm_commands.run([sys.executable, "-c", code], env=environ, cwd=folder)
    assert done.returncode == 1
    return done.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize("name", BROKEN)
def test_a_package_that_cannot_be_used_is_named(tmp_path: Path, name: str) -> None:
    module, target, message = BROKEN[name]
    install(tmp_path / "site", module, target)
    error = loading(tmp_path)
    assert "PluginError" in error and "'ReturnsFloating' of traincheck.relations" in error and message in error


def test_built_in_relation_names_are_reserved(tmp_path: Path) -> None:
    install(tmp_path / "site", RELATION, "floating_relation:ReturnsFloating", name="Periodic")
    error = loading(tmp_path)
    assert (
        "both traincheck.relations.periodic.relation:Periodic and floating_relation:ReturnsFloating claim it" in error
    )


@pytest.mark.slow
def test_recording_needs_no_relation(tmp_path: Path) -> None:
    install(tmp_path / "site", "raise RuntimeError('no licence')", "floating_relation:ReturnsFloating")
    (tmp_path / "one.py").write_text(SCRIPT.format(activation="ReLU", optimizer="SGD", wrong=-1), encoding="utf-8")
    done = traincheck(tmp_path, "collect", "-o", "runs/one", "one.py")
    assert done.returncode == 0, done.stderr


def test_a_command_ends_with_the_error_and_without_a_traceback(tmp_path: Path) -> None:
    install(tmp_path / "site", "raise RuntimeError('no licence')", "floating_relation:ReturnsFloating")
    write_run(tmp_path / "runs" / "one", "one.py", training())
    done = traincheck(tmp_path, "infer", "runs/one", "-o", "book.jsonl")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "error [plugin]" in done.stderr and "no licence" in done.stderr and "Traceback" not in done.stderr
