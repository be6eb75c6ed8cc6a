"""The archives, as `make dist` builds them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from archives import ROOT

from shared_artifacts import made_once


@pytest.fixture(scope="session")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the source archive; the wheel is built from the latter, as everywhere."""
    pytest.importorskip("build", reason="the extra `dev` is not installed")

    def make(folder: Path) -> None:
        words = [sys.executable, "-m", "build", "--outdir", str(folder), str(ROOT)]
        done = subprocess.run(words, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr

    return made_once(tmp_path_factory, "archives", make)
