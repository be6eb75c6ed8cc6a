"""Makes slow artifacts once for all processes of a test run."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """A folder with what `make` puts into it, for this process alone: the others have copies of their own."""
    shared = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent  # the folder of all workers
    folder = shared / f"once-{name}"
    with FileLock(f"{folder}.lock"):
        if not (folder / "made").exists():
            folder.mkdir()
            make(folder)
            (folder / "made").touch()
    own = factory.mktemp(name) / name
    shutil.copytree(folder, own)
    return own
