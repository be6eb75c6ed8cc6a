"""The code of docs/extend/diagnoses.md runs, and an installed package brings its diagnosis."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from sample_rules import make_invariant
from traincheck.diagnoses.catalogue import catalogue
from traincheck.testing.diagnoses import NotConforming, check_diagnosis
from traincheck.vocab.occasion import Property, Subject

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "extend" / "diagnoses.md"
BLOCK = re.compile(r"^```(python|toml)\n(.*?)^```", re.MULTILINE | re.DOTALL)
TEXT = GUIDE.read_text(encoding="utf-8")
BLOCKS = BLOCK.findall(TEXT)
LOADED = make_invariant(Property("returns size", "batch of x"), subject=Subject("features.store.load", "result"))


def code_of_the_guide() -> dict[str, object]:
    names: dict[str, object] = {}
    for match in BLOCK.finditer(TEXT):
        if match[1] == "python":
            line = TEXT[: match.start(2)].count("\n")
            exec(compile("\n" * line + match[2], str(GUIDE), "exec"), names)
    return names


def test_guide() -> None:
    assert len(BLOCKS) == 3
    entry = code_of_the_guide()["STALE_FEATURES"]
    assert "make features" in check_diagnosis(entry, [LOADED])  # type: ignore[arg-type]


def test_nonconforming_diagnoses_are_refused() -> None:
    ours = catalogue()["result-size-differs"]
    copied = replace(ours, slug="another-slug")
    for entry, complaint in (
        (replace(ours, title="", slug="another-slug"), "must not be empty"),
        (replace(ours), "another diagnosis has this slug"),
        (copied, "at least as precisely"),
        (replace(copied, explains=catalogue()["ranks-diverged"].explains), "does not explain"),
    ):
        with pytest.raises(NotConforming, match=complaint):
            check_diagnosis(entry, [LOADED])


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The package of the guide next to the installed ones."""
    info = tmp_path / "my_package-1.0.dist-info"
    info.mkdir()
    (tmp_path / "my_package").mkdir()
    (tmp_path / "my_package" / "__init__.py").write_text("")
    (tmp_path / "my_package" / "stale_features.py").write_text(BLOCKS[0][1])
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
    (entry,) = (block for kind, block in BLOCKS if kind == "toml")
    (info / "entry_points.txt").write_text(
        entry.replace('[project.entry-points."traincheck.diagnoses"]', "[traincheck.diagnoses]").replace('"', "")
    )
    return tmp_path


def traincheck(project: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command with the package."""
    path = os.pathsep.join([str(project), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-m", "traincheck", *words],
        cwd=project,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )


def test_a_package_brings_a_diagnosis(project: Path) -> None:
    done = traincheck(project, "explain", "feature-store-stale")
    assert done.returncode == 0 and done.stdout.startswith("# Features are older than their labels"), done.stderr
    assert "https://wiki.example.com/features" in done.stdout


def test_a_diagnosis_that_cannot_be_used_stops_a_run_before_the_program_starts(project: Path) -> None:
    file = project / "my_package" / "stale_features.py"
    file.write_text(file.read_text().replace('slug="feature-store-stale"', 'slug="feature-store-old"'))
    (project / "train.py").write_text("print('started')\n")
    done = traincheck(project, "run", "train.py")
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert "error [plugin]" in done.stderr and "needs the same name" in done.stderr
