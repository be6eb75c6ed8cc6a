"""The archives hold what they should, and nothing else."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from archives import faults_of_source, faults_of_wheel, files_of, main


@pytest.mark.slow
def test_contents(archives: Path) -> None:
    assert main(archives) == 0


@pytest.mark.slow
def test_missing_and_surplus_files_are_reported(archives: Path, tmp_path: Path) -> None:
    (wheel,) = archives.glob("*.whl")
    changed = tmp_path / wheel.name
    with zipfile.ZipFile(wheel) as before, zipfile.ZipFile(changed, "w") as after:
        for name in before.namelist():
            if name != "traincheck/py.typed":
                after.writestr(name, before.read(name))
        after.writestr("traincheck/notes.txt", "")
        after.writestr("tests/test_x.py", "")
    faults = faults_of_wheel(changed)
    assert "traincheck/py.typed is missing" in faults
    assert "traincheck/notes.txt should not be there" in faults
    assert "tests/test_x.py should not be there" in faults
    assert faults_of_wheel(wheel) == []


@pytest.mark.slow
def test_source_archive(archives: Path) -> None:
    (source,) = archives.glob("*.tar.gz")
    assert faults_of_source(source) == []


def test_files_of_packs() -> None:
    assert files_of({"packs": [{"name": "a", "file": "a.jsonl"}]}) == ["a.jsonl"]
