"""The commands of docs/distributed.md work as written, on two ranks."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from guides import DOCS, follow


@pytest.mark.slow
def test_the_guide_works(tmp_path: Path) -> None:
    shutil.copytree(DOCS / "tutorial", tmp_path / "docs" / "tutorial")
    sound, around, report, check = follow("distributed.md", tmp_path).values()
    assert "Nothing wrong found in 20 steps" in sound and sound.count("ended      agrees") == 2
    finding = "Gradients of replicas"
    assert f"TrainCheck ERROR at step 1 between ranks 0, 1: {finding}" in around
    assert finding in report and finding in check
