"""Fixtures of the tests with several ranks."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rank_jobs import PROGRAM, WITHOUT_DDP, learn, run
from shared_artifacts import made_once


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a book of three good runs. Each test creates its run folders in it."""
    return made_once(tmp_path_factory, "ranks", learn)


@pytest.fixture(scope="session")
def compared_by_files(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `run`, in which gradients differ: it was checked while it trained, and its files were compared."""

    def make(folder: Path) -> None:
        shutil.copy(home / "book.jsonl", folder)
        run(folder, "run", PROGRAM.replace(*WITHOUT_DDP), "--compare-ranks", "files", expect=3)

    return made_once(tmp_path_factory, "ranks-compared-by-files", make)
