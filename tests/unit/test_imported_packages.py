"""The imports of a program are read from its text, before it runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from traincheck.invariants.packs import Program
from traincheck.runtime.launching.command_target import Target
from traincheck.runtime.launching.imported_packages import program_of

FRAMEWORKS = ("transformers", "accelerate", "lightning")


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def look(home: Path, *words: str, **environ: str) -> Program:
    return program_of(Target.parse(words), environ, home, FRAMEWORKS)


def test_project_files_are_read_and_installed_packages_are_queried(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\nfrom loop import run\nif 0:\n    import helpers.deep\n")
    (tmp_path / "loop.py").write_text("def run():\n    from transformers import Trainer\n")
    (tmp_path / "helpers").mkdir()
    (tmp_path / "helpers" / "__init__.py").write_text("from . import aside\n")
    (tmp_path / "helpers" / "deep.py").write_text("from ..loop import run\nimport json, not_installed.part\n")
    (tmp_path / "helpers" / "aside.py").write_text("import hypothesis\n")
    imports = look(tmp_path, "train.py")
    assert imports.packages is not None
    assert {"torch", "transformers", "not_installed", "hypothesis", "sortedcontainers"} <= imports.packages
    assert not imports.packages & {"json", "loop", "helpers"} and not imports.distributed


def test_modules_and_commands_are_read_where_they_have_a_file(tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__main__.py").write_text("import accelerate\n")
    assert "accelerate" in (look(tmp_path, "-m", "pkg").packages or ())
    (tmp_path / "train.py").write_text("import torch\n")
    (tmp_path / "job.sh").write_text("python train.py\n")
    assert look(tmp_path, "--", "torchrun", "train.py") == Program(
        frozenset(("torch",)), True, look(tmp_path, "train.py").torch
    )
    assert look(tmp_path, "--", "bash", "job.sh").packages is None
    assert look(tmp_path, "-m", "json.tool").packages is None


def test_a_program_may_start_ranks_itself(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch.multiprocessing as mp\n")
    assert look(tmp_path, "train.py").distributed
    (tmp_path / "train.py").write_text("import torch\n")
    assert not look(tmp_path, "train.py").distributed
    assert look(tmp_path, "train.py", WORLD_SIZE="4").distributed


@pytest.mark.parametrize("text", ["import (", "\0", "x = " + "(" * 10_000, "é".encode("latin-1")])
def test_an_unreadable_text_gives_no_imports(tmp_path: Path, text: str | bytes) -> None:
    (tmp_path / "train.py").write_text("import torch, other\n")
    (tmp_path / "other.py").write_bytes(text if isinstance(text, bytes) else text.encode())
    imports = look(tmp_path, "train.py")
    assert imports.packages is None and imports.distributed


@pytest.mark.filterwarnings("error")
def test_syntax_warnings_are_left_to_python(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\nassert (torch, 'always')\npattern = '\\d'\n")
    assert look(tmp_path, "train.py").packages == {"torch"}


def test_files_that_import_each_other_are_read_once(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import other\n")
    (tmp_path / "other.py").write_text("import train, other, torch\n")
    assert look(tmp_path, "train.py").packages == {"torch"}
