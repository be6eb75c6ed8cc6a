"""The shell blocks of "Living with a book" do what it says, from the recordings of the tutorial on."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from recorded import training, write_run

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```bash\n(.*?)^```", re.MULTILINE | re.DOTALL)
ENDS = re.compile(r"#.*ends with exit code (\d+)")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Where the tutorial has recorded its runs."""
    for name, optimizer in (("regression", "SGD"), ("classifier", "Adam"), ("autoencoder", "AdamW")):
        write_run(tmp_path / "runs" / name, f"{name}.py", training(12, optimizer))
    return tmp_path


def test_living_with_a_book(place: Path) -> None:
    text = (ROOT / "docs" / "living-with-a-book.md").read_text(encoding="utf-8")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environ = {**os.environ, "PATH": path, "COLUMNS": "80"}
    lines = [line for block in BLOCK.findall(text) for line in block.splitlines() if line.strip()]
    assert len(lines) >= 15
    told = ""
    for line in lines:
        ends = ENDS.search(line)
        done = subprocess.run(
            ["bash", "-c", line], cwd=place, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert done.returncode == (int(ends[1]) if ends else 0), f"{line}\n{done.stdout}"
        told += done.stdout
    assert "kept: in a call of Optimizer.zero_grad, some parameter grad is cleared [9238e" in told
    assert "What breaks it: Gradients are not cleared between steps" in told
    assert "1 mute of the older good.jsonl stayed: 9238e" in told
    assert "the reason was: we accumulate over 8 batches on purpose" in told
