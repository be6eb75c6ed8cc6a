"""The shell blocks of the CI guide work, and every format reports a program with an error."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from xml.etree import ElementTree as Tree

import pytest
from guides import PROGRAM

from recorded_runs import training, write_run
from traincheck.cli.main import main
from traincheck.reporting.json_report import write_json
from traincheck.vocab.finding import Report
from warm_commands import path_of_shell

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "ci.md"
BLOCK = re.compile(r"^```bash\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.fixture
def project(tmp_path: Path, clean_report: Report, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project in a CI job: a script, a book, a recording and a report."""
    for name, optimizer in (("a", "SGD"), ("b", "Adam"), ("c", "AdamW"), ("suspicious", "Adam")):
        write_run(tmp_path / "runs" / name, f"{name}.py", training(12, optimizer))
    (tmp_path / "runs" / "today").mkdir()
    write_json(clean_report, tmp_path / "runs" / "today" / "report.json")
    (tmp_path / "train.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    runs = [f"runs/{name}" for name in "abc"]
    assert main(["infer", *runs, "-o", "good.jsonl"]) == 0
    return tmp_path


def run(project: Path, line: str) -> subprocess.CompletedProcess[str]:
    """The command in the shell of a job on GitHub."""
    environ = {**os.environ, "PATH": path_of_shell(), "COLUMNS": "100", "GITHUB_WORKSPACE": str(project)}
    environ["GITHUB_STEP_SUMMARY"] = str(project / "summary.md")
    return subprocess.run(["bash", "-c", line], cwd=project, env=environ, capture_output=True, text=True)


@pytest.mark.slow
def test_the_guide_works(project: Path) -> None:
    lines = [line for block in BLOCK.findall(GUIDE.read_text(encoding="utf-8")) for line in block.splitlines()]
    assert len(lines) == 6
    results = {}
    for line in lines:
        done = run(project, line)
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        results[line] = done
    assert json.loads((project / "traincheck.sarif").read_text())["version"] == "2.1.0"
    markdown = next(done for line, done in results.items() if "markdown=-" in line)
    assert markdown.stdout.startswith("## TrainCheck: Nothing wrong found in 1 step")
    assert "Nothing wrong found" in markdown.stderr
    suite = Tree.parse(project / "results" / "traincheck.xml").getroot()[0]
    assert suite.attrib["failures"] == "0" and "Nothing wrong found in 12 steps" in (project / "summary.md").read_text()

    # The same of a program that forgets to clear its gradients.
    line = next(line for line in lines if "sarif --report github" in line).replace("runs/ci", "runs/bad")
    (project / "train.py").write_text(PROGRAM.replace("        optimizer.zero_grad()\n", ""))
    done = run(project, line)
    assert done.returncode == 3, done.stderr
    (annotation,) = (line for line in done.stderr.splitlines() if line.startswith("::error "))
    assert annotation.startswith("::error file=train.py,line=") and "Gradients are not cleared" in annotation
    (result,) = json.loads((project / "traincheck.sarif").read_text())["runs"][0]["results"][:1]
    where = result["locations"][0]["physicalLocation"]
    assert where["artifactLocation"]["uri"] == "train.py"
    assert f"line={where['region']['startLine']}," in annotation
    assert Tree.parse(project / "results" / "traincheck.xml").getroot()[0].attrib["failures"] != "0"
    assert "| 1 | **error** |" in (project / "summary.md").read_text()
