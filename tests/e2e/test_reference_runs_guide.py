"""The commands of docs/choosing-reference-runs.md work as written, on recordings made without training."""

from __future__ import annotations

from pathlib import Path

import pytest
from guides import follow

from recorded_runs import training, write_run


@pytest.mark.slow
def test_the_guide_works(tmp_path: Path) -> None:
    for name, optimizer in (("a", "SGD"), ("b", "Adam"), ("c", "AdamW")):
        write_run(tmp_path / "runs" / name, f"{name}.py", training(12, optimizer))
    for number, name in enumerate(("monday", "tuesday", "wednesday"), start=5):
        started = f"2026-01-{number:02}T09:00:00+00:00"
        write_run(tmp_path / "runs" / name, "train.py", training(10 + number, "Adam"), started)
    two, three, errors, diff, mine, shown, candidate, checked = follow("choosing-reference-runs.md", tmp_path).values()
    assert "error " not in two and "error     general" in three
    assert "zero_grad" in errors and ", 0 notices" in errors
    assert "notice" in diff and "error" in diff
    assert "error     pipeline" in mine and "3 runs, 1 script, confidence 0.750" in shown
    assert "so breaking it is an error" in candidate
    assert "Nothing wrong found" in checked
