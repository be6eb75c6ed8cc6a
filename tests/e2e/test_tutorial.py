"""The tutorial's shell blocks do what the tutorial says."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from guides import DOCS, follow


@pytest.mark.slow
def test_tutorial(tmp_path: Path) -> None:
    shutil.copytree(DOCS / "tutorial", tmp_path / "docs" / "tutorial")
    outputs = follow("tutorial.md", tmp_path)
    assert len(outputs) >= 10
    output = "".join(outputs.values())
    assert "between two calls of Optimizer.step, some parameter grad is cleared" in output
    assert "TrainCheck ERROR at step 2: Gradients are not cleared between steps" in output
    assert "docs/tutorial/suspect.py:27" in output
    assert "kept: in a call of Optimizer.zero_grad, some parameter grad is cleared" in output
