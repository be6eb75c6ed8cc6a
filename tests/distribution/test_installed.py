"""The wheel in an empty environment: all but training works without torch, and training once torch is there."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from installing import Installed

from recorded_runs import STEP, training, write_run
from traincheck.testing.readable_traces import from_text

NOTHING_CHANGED = STEP.replace("parameter.data some -> some changed", "parameter.data some -> some")
PROGRAM = """
import torch

torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
"""


@pytest.mark.slow
def test_the_wheel_in_an_empty_environment(archives: Path, tmp_path: Path) -> None:
    (wheel,) = archives.glob("*.whl")
    installed = Installed(tmp_path, wheel)
    nothing_else_is_installed(installed)
    record_elsewhere(installed.work / "runs")
    what_needs_no_torch(installed)
    what_needs_torch_says_so(installed)
    installed.lend_torch()
    with_torch(installed)


def nothing_else_is_installed(installed: Installed) -> None:
    done = installed.start(installed.python, "-m", "pip", "list", "--format", "json")
    names = {entry["name"].lower() for entry in json.loads(done.stdout)}
    assert {"traincheck", "pyarrow", "msgspec", "xxhash"} <= names
    assert not names & {"torch", "numpy", "pandas", "pytest", "mkdocs"}
    output = installed.start(installed.python, "-c", "import traincheck; print(traincheck.__file__)").stdout
    assert str(installed.home) in output


def record_elsewhere(folder: Path) -> None:
    """Three good runs of different programs, and one in which the optimizer changes nothing."""
    for name, optimizer in (("a", "SGD"), ("b", "Adam"), ("c", "AdamW")):
        write_run(folder / name, f"{name}.py", training(12, optimizer))
    windows = [replace(window, step=step) for step, window in enumerate(from_text(NOTHING_CHANGED * 12), start=1)]
    write_run(folder / "odd", "odd.py", windows)


def what_needs_no_torch(installed: Installed) -> None:
    does, work = installed.does, installed.work
    assert "Commands:" in does("--help")
    assert "general" in does("packs", "list")
    assert "zero_grad" in does("packs", "show", "general")
    does("infer", "runs/a", "runs/b", "runs/c", "-o", "book.jsonl")
    does("infer", "runs/a", "-o", "less.jsonl")
    assert "zero_grad" in does("show", "book.jsonl")
    assert "only in" in does("diff", "less.jsonl", "book.jsonl").lower()
    assert "Nothing wrong found" in does("check", "runs/b", "--book", "book.jsonl")
    files = ("--report", "html=report.html", "--report", "json=runs/odd/report.json")
    assert "changes no parameter" in does("check", "runs/odd", "--book", "book.jsonl", *files, code=3)
    assert "<html" in (work / "report.html").read_text(encoding="utf-8")
    assert json.loads((work / "runs/odd/report.json").read_text(encoding="utf-8"))["verdict"] == "errors"
    assert "changes no parameter" in does("report", "runs/odd", code=3)
    assert "Nothing wrong found" in does("check", "runs/b"), "against the packs"
    assert "zero_grad" in does("explain", "--filter", "zero_grad", "runs/a", "runs/b")
    does("status")


def what_needs_torch_says_so(installed: Installed) -> None:
    assert "PyTorch is not installed" in installed.does("doctor", code=1)
    assert "pip install torch" in installed.does("demo", code=2)


def with_torch(installed: Installed) -> None:
    assert "PyTorch is not installed" not in installed.does("doctor")
    (installed.work / "train.py").write_text(PROGRAM)
    assert "Nothing wrong found in 4 steps" in installed.does("run", "-o", "runs/mine", "train.py")
    output = installed.does("demo", "-o", "demo")
    assert "Nothing wrong found in 40 steps" in output and "ERROR at step 9: Training runs in evaluation mode" in output
    assert (installed.work / "demo" / "runs" / "broken" / "report.html").is_file()
    assert "is not empty" in installed.does("demo", "-o", "demo", code=2)
