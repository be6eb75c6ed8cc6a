"""The code of docs/extend/sinks.md runs, and an installed package provides its sink."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from traincheck.reporting.json_report import write_json
from traincheck.vocab.finding import Report

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "extend" / "sinks.md"
BLOCK = re.compile(r"^```(python|toml)\n(.*?)^```", re.MULTILINE | re.DOTALL)
TEXT = GUIDE.read_text(encoding="utf-8")
BLOCKS = BLOCK.findall(TEXT)


def test_guide() -> None:
    assert len(BLOCKS) >= 5
    names: dict[str, object] = {}
    for match in BLOCK.finditer(TEXT):
        if match[1] == "python":
            line = TEXT[: match.start(2)].count("\n")
            exec(compile("\n" * line + match[2], str(GUIDE), "exec"), names)


@pytest.fixture
def project(tmp_path: Path, some_report: Report) -> Path:
    """A run with its report, and the package of the guide next to the installed ones."""
    site = tmp_path / "site"
    info = site / "my_package-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "my_package").mkdir()
    (site / "my_package" / "__init__.py").write_text("")
    (site / "my_package" / "csv_sink.py").write_text(BLOCKS[0][1])
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
    (entry,) = (block for kind, block in BLOCKS if kind == "toml")
    (info / "entry_points.txt").write_text(
        entry.replace('[project.entry-points."traincheck.sinks"]', "[traincheck.sinks]").replace('"', "")
    )
    (tmp_path / "run").mkdir()
    write_json(some_report, tmp_path / "run" / "report.json")
    return tmp_path


def traincheck(project: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command with the package."""
    path = os.pathsep.join([str(project / "site"), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-m", "traincheck", *words],
        cwd=project,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )


def test_a_package_brings_a_sink(project: Path) -> None:
    done = traincheck(project, "report", "run", "--report", "csv")
    assert done.returncode == 3 and "traincheck.csv" in done.stdout, done.stderr
    assert (project / "traincheck.csv").read_text().splitlines()[1].startswith("error,3,The optimizer changes none")
    done = traincheck(project, "report", "run", "--report", "csv=-")
    assert done.stdout.startswith("severity,step") and "1 error" in done.stderr


def test_a_package_with_a_broken_sink_is_named(project: Path) -> None:
    (project / "site" / "my_package" / "csv_sink.py").write_text("class CsvSink:\n    name = 'csv'\n")
    done = traincheck(project, "report", "run", "--report", "csv")
    assert done.returncode == 2 and "error [plugin]" in done.stderr and "has no open, show, close" in done.stderr
    done = traincheck(project, "report", "run", "--report", "junit")  # who does not ask for it is not concerned
    assert done.returncode == 3, done.stderr
