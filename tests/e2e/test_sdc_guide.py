"""The blocks of "Silent data corruption" do what it says."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from threaded_ranks import on_each_rank, trained
from traincheck.sdc.workload.workload import load_workload
from warm_commands import path_of_shell

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```(bash|python|)\n(.*?)^```", re.MULTILINE | re.DOTALL)
BLOCKS = BLOCK.findall((ROOT / "docs" / "sdc.md").read_text(encoding="utf-8"))
LINES = [line for kind, text in BLOCKS if kind == "bash" for line in text.splitlines()]
WITH_XLA = "--framework xla"


def commands(word: str) -> list[str]:
    """Return the lines of shell blocks with this command, except those about XLA."""
    return [line for line in LINES if line.startswith(f"traincheck sdc {word}") and WITH_XLA not in line]


def run(project: Path, line: str) -> subprocess.CompletedProcess[str]:
    """The command in a shell."""
    environ = {**os.environ, "PATH": path_of_shell(), "COLUMNS": "100"}
    return subprocess.run(["bash", "-c", line], cwd=project, env=environ, capture_output=True, text=True)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the workload of the guide."""
    home = tmp_path_factory.mktemp("guide")
    (text,) = (text for kind, text in BLOCKS if kind == "python" and "def workload" in text)
    (home / "mine.py").write_text(text)
    return home


@pytest.mark.slow
def test_training_is_reproducible(project: Path) -> None:
    for line, name in zip(commands("doctor"), ("decoder-tiny", "mine.py:workload"), strict=True):
        done = run(project, line)
        assert done.returncode == 0, done.stderr
        assert f"Reproducible: two runs of {name}, 3 steps on cpu" in done.stdout


@pytest.mark.slow
def test_a_fault_is_studied(project: Path) -> None:
    line, shown, ranks = commands("study")
    done = run(project, line)
    assert done.returncode == 3, done.stderr
    assert "attention  forward" in done.stdout and "worst noise to signal of the gradients: 0." in done.stdout
    study = json.loads((project / "study.json").read_text())
    last = study["levels"]["period"]["series"][-1]
    assert last["relative_distance"] > 0 and abs(last["loss"] - last["suspect_loss"]) < 0.05
    again = run(project, shown)
    assert (again.returncode, again.stdout) == (3, done.stdout), again.stderr
    assert "<title>The suspect worker computed otherwise" in (project / "study.html").read_text()

    done = run(project, ranks)
    assert done.returncode == 3, done.stderr
    (summary,) = (text for kind, text in BLOCKS if not kind and text.startswith("Level 1"))
    assert summary in done.stdout
    assert json.loads((project / "ranks.json").read_text())["levels"]["step"]["by_kind"][0]["ranks"] == [0, 1]


def test_a_custom_workload_is_split(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (text,) = (text for kind, text in BLOCKS if kind == "python" and "def split" in text)
    (project / "parts.py").write_text(text)
    monkeypatch.syspath_prepend(str(project))
    monkeypatch.delitem(sys.modules, "mine", raising=False)  # another test may have one of its own
    monkeypatch.chdir(project)
    cpu = torch.device("cpu")
    losses, _, _ = trained(load_workload("parts.py:split", 0, cpu))
    for own, parameters, _ in on_each_rank(lambda host: trained(load_workload("parts.py:split", 0, cpu, host))):
        assert own == pytest.approx(losses, abs=1e-5) and len(parameters["part.0.bias"]) == 8


@pytest.mark.long
@pytest.mark.slow
def test_two_processes_compute_the_same_bits_with_xla(project: Path) -> None:
    doctor, study = (run(project, line) for line in LINES if WITH_XLA in line)
    assert doctor.returncode == 0, doctor.stderr
    assert "Reproducible: two runs of decoder-tiny, 3 steps on cpu with xla computed the same bits" in doctor.stdout
    assert study.returncode == 0, study.stderr
    assert ", jax " in study.stdout and "Level 2" in study.stdout and "No bit differed." in study.stdout


@pytest.mark.slow
def test_a_machine_is_screened(project: Path) -> None:
    saves, judges, faulty = (run(project, line) for line in commands("screen"))
    assert saves.returncode == 0 and "CLEAN" in saves.stdout and "are in good.json" in saves.stderr, saves.stderr
    assert judges.returncode == 0 and "compared with known fingerprints, 0 wrong" in judges.stdout, judges.stderr
    assert faulty.returncode == 3 and "CORRUPT" in faulty.stdout and "attention" in faulty.stdout, faulty.stderr


@pytest.mark.slow
def test_steps_of_a_run_are_executed_again(project: Path) -> None:
    (line,) = (
        candidate
        for kind, text in BLOCKS
        if kind == "bash"
        for candidate in text.splitlines()
        if "--verify-every" in candidate
    )
    program = ["from mine import workload", "one = workload(0, 'cpu')", "model = one.build_model()"]
    program += ["optimizer = one.build_optimizer(model)", "for step in range(1, 31):"]
    program += ["    loss = one.loss(model, one.batch(step))", "    optimizer.zero_grad(); loss.backward()"]
    (project / "train.py").write_text("\n".join([*program, "    optimizer.step()", ""]))
    done = run(project, line)
    assert done.returncode == 0 and "Nothing wrong found in 30 steps" in done.stderr, done.stderr
    (report,) = project.glob("traincheck-runs/train-*/report.json")
    assert json.loads(report.read_text())["cost"]["sources"]["replays"] > 0


def test_a_fault_is_put_in(tmp_path: Path) -> None:
    program = next(text for kind, text in BLOCKS if kind == "python")
    (tmp_path / "program.py").write_text(program)
    done = subprocess.run([sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[0]) > 2 and "Hit(step=" in done.stdout
