"""What takes long to make is made once, however many processes the tests run in."""

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
    place = shared / f"once-{name}"
    with FileLock(f"{place}.lock"):
        if not (place / "made").exists():
            place.mkdir()
            make(place)
            (place / "made").touch()
    own = factory.mktemp(name) / name
    shutil.copytree(place, own)
    return own
