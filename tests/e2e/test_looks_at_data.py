"""Programs that look at some batches before they train are clean, and a last pass that is cut short is still found."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

import warm_commands

PROGRAM = Path(__file__).with_name("programs") / "looks_at_data.py"
SOURCE = Path(__file__).resolve().parents[2] / "src"


def findings(folder: Path, way: str) -> list[dict[str, Any]]:
    """Return the findings of `traincheck run` in the program with the packs."""
    command = [sys.executable, "-m", "traincheck", "run", "--fail-on", "never", "-o", "run", str(PROGRAM), way]
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(SOURCE)}
    done = warm_commands.run(command, cwd=folder, env=environ, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "the training goes on" not in done.stderr
    rows: list[dict[str, Any]] = json.loads((folder / "run" / "report.json").read_text())["findings"]
    return rows


@pytest.mark.slow
@pytest.mark.parametrize("way", ["kept", "shows"])
def test_a_stored_iterator_is_no_abandoned_epoch(tmp_path: Path, way: str) -> None:
    assert findings(tmp_path, way) == []


@pytest.mark.slow
def test_a_last_pass_that_is_cut_short_is_found(tmp_path: Path) -> None:
    assert [finding["diagnosis"] for finding in findings(tmp_path, "left out")] == ["run-stops-early"]
