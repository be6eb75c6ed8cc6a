"""What the tests of several ranks share."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs import learn


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a book of three good runs; each test takes run folders of its own in it."""
    found = tmp_path_factory.mktemp("ranks")
    learn(found)
    return found
