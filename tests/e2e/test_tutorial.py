"""The tutorial's shell blocks do what the tutorial says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```bash\n(.*?)^```", re.MULTILINE | re.DOTALL)
ENDS = re.compile(r"#.*ends with exit code (\d+)")


@pytest.mark.slow
def test_tutorial(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    shutil.copytree(ROOT / "docs" / "tutorial", tmp_path / "docs" / "tutorial")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environ = {**os.environ, "PATH": path, "COLUMNS": "80", "OMP_NUM_THREADS": "1"}
    told = ""
    lines = [line for block in BLOCK.findall(text) for line in block.splitlines() if line.strip()]
    assert len(lines) >= 10
    for line in lines:
        ends = ENDS.search(line)
        done = subprocess.run(
            ["bash", "-c", line], cwd=tmp_path, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert done.returncode == (int(ends[1]) if ends else 0), f"{line}\n{done.stdout}"
        told += done.stdout
    assert "between two calls of Optimizer.step, some parameter grad is cleared" in told
    assert "TrainCheck ERROR at step 2: Gradients are not cleared between steps" in told
    assert "docs/tutorial/suspect.py:27" in told
    assert "kept: in a call of Optimizer.zero_grad, some parameter grad is cleared" in told
