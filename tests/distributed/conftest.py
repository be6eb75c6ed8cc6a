"""Fixtures of the tests with several ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from rank_jobs import learn
from shared_artifacts import made_once


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a book of three good runs. Each test creates its run folders in it."""
    return made_once(tmp_path_factory, "ranks", learn)
