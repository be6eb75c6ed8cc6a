"""The demo: its programs differ in one line, and it says what is missing and what is in its way."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from traincheck.cli.commands.demo import NAMES, demo, difference, program
from traincheck.errors import MissingExtra, RunFolderInUse


def test_the_programs_differ_in_one_line() -> None:
    lines = [line[2:] for line in difference().splitlines()]
    assert [line for line in lines if line.startswith(("+", "-")) and not line.startswith(("+++", "---"))] == [
        "+model.train()",
        "-    model.train()",
    ]


@pytest.mark.parametrize("name", NAMES)
def test_the_programs_are_those_of_a_user(name: str) -> None:
    text = program(name)
    compile(text, f"{name}.py", "exec")
    assert "traincheck" not in text.lower()


def test_torch_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match="pip install torch"):
        demo(tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_nonempty_folder_stays_unchanged(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "mine.txt").write_text("")
    with pytest.raises(RunFolderInUse):
        demo(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
