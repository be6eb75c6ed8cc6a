"""`traincheck demo` finds the error in the broken program and none in the sound one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_demo(tmp_path: Path) -> None:
    environ = {**os.environ, "TRAINCHECK_BOOK": "no-such-book.jsonl", "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "traincheck", "demo"], cwd=tmp_path, env=environ, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ERROR at step 9: Training runs in evaluation mode" in done.stderr
    assert done.stderr.count("Nothing wrong found in 40 steps") == 1
    (home,) = tmp_path.glob("traincheck-demo-*")
    assert str(home / "runs" / "broken" / "report.html") in done.stdout
    losses = [float(line.split("loss ")[1].split(",")[0]) for line in done.stdout.splitlines() if "epoch 5" in line]
    assert losses[1] < losses[0], "that it cannot be seen from the loss is what the demo says"
