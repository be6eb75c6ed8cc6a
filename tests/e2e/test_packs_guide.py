"""The shell blocks of "Packs" do what it says."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from guides import PROGRAM

from recorded_runs import training, write_run
from warm_commands import path_of_shell

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```(bash|toml)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The folder of a team that has recorded two good runs, and is about to train."""
    for name, optimizer in (("a", "SGD"), ("b", "Adam")):
        write_run(tmp_path / "runs" / name, f"{name}.py", training(12, optimizer))
    (tmp_path / "train.py").write_text(PROGRAM)
    return tmp_path


def run(project: Path, line: str) -> subprocess.CompletedProcess[str]:
    """The command in a shell."""
    environ = {**os.environ, "PATH": path_of_shell(), "COLUMNS": "100"}
    return subprocess.run(["bash", "-c", line], cwd=project, env=environ, capture_output=True, text=True)


@pytest.mark.slow
def test_the_guide_works(project: Path) -> None:
    text = (ROOT / "docs" / "packs.md").read_text(encoding="utf-8")
    blocks = BLOCK.findall(text)
    (themes,) = (block for kind, block in blocks if kind == "toml")
    (project / "themes.toml").write_text(themes)
    lines = [line for kind, block in blocks if kind == "bash" for line in block.splitlines() if line.strip()]
    assert len(lines) >= 9
    outputs = {}
    for line in lines:
        done = run(project, line)
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        outputs[line] = done.stdout + done.stderr
    first, listed, shown, *_ = outputs.values()
    assert "of the packs traincheck" in first and "general" in first and "distributed" not in first
    assert "Nothing wrong found in 12 steps" in first
    assert "mixed-precision" in listed and "2 ranks and more" in listed
    assert re.search(r"learned from \d+ programs: accelerate_\w.* and \d+ more", " ".join(shown.split()))
    *_, both = outputs.values()
    assert "packs team 3: general" in both and "packs traincheck" in both


@pytest.mark.slow
def test_your_own_good_runs(project: Path) -> None:
    text = (ROOT / "docs" / "your-own-good-runs.md").read_text(encoding="utf-8")
    (project / ".git").mkdir()
    outputs = {}
    for line in [line for _, block in BLOCK.findall(text) for line in block.splitlines() if line.strip()]:
        done = run(project, line)
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        outputs[line] = done.stdout + done.stderr
    first, accepted, *_ = outputs.values()
    assert "traincheck accept runs/monday" in first and "accepted train.py: 12 steps" in accepted
    *_, later, status = outputs.values()
    assert "the rules of 3 accepted runs" in later and "have later ones" not in later
    assert "3 accepted runs" in status and "not covered by any accepted run: evaluation" in status
    changed = (project / "train.py").read_text().replace("optim.Adam", "optim.SGD")
    (project / "train.py").write_text(changed)
    done = run(project, "traincheck run train.py --epochs 2")
    assert done.returncode == 0 and "[setting-changed]" in done.stderr, done.stderr
    (project / "train.py").write_text(changed.replace("        optimizer.zero_grad()\n", ""))
    assert run(project, "traincheck run train.py --epochs 2").returncode == 3


@pytest.mark.slow
def test_an_error_in_a_new_program_is_reported_at_once(project: Path) -> None:
    text = (project / "train.py").read_text()
    (project / "train.py").write_text(text.replace("        optimizer.zero_grad()\n", ""))
    done = run(project, "traincheck run train.py --epochs 2")
    assert done.returncode == 3
    assert "ERROR at step 2: Gradients are not cleared between steps" in done.stderr
    (project / "train.py").write_text(text.replace("        loss.backward()\n", "        loss.detach()\n"))
    done = run(project, "traincheck run train.py --epochs 2")
    assert done.returncode == 3 and "ERROR at step 1" in done.stderr, done.stderr
