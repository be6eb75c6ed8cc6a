"""The benchmark of packages brings an error back into a package, and its page shows what was detected."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.stacks.lists import Edit, Package, Program, SilentError
from benchmarks.stacks.page import text, verdict
from benchmarks.stacks.running import SUPPORT

PACKAGE = "def rate(step):\n    return 1 / step\n"
PROGRAM = "import package\nprint(package.rate(4))\n"
ERROR, NOTICE = ({"severity": severity, "step": 3, "title": "It is odd"} for severity in ("error", "notice"))


def run(home: Path, *edits: Edit) -> subprocess.CompletedProcess[str]:
    (home / "package.py").write_text(PACKAGE)
    (home / "program.py").write_text(PROGRAM)
    environ = {**os.environ, "PYTHONPATH": str(SUPPORT), "STACKS_EDITS": json.dumps([vars(edit) for edit in edits])}
    return subprocess.run([sys.executable, "program.py"], cwd=home, env=environ, capture_output=True, text=True)


def test_an_edit_changes_the_module_and_not_its_file(tmp_path: Path) -> None:
    assert run(tmp_path).stdout == "0.25\n"
    assert run(tmp_path, Edit("package", "1 / step", "1 * step")).stdout == "4\n"
    assert (tmp_path / "package.py").read_text() == PACKAGE


def test_an_edit_that_does_not_match_ends_the_program(tmp_path: Path) -> None:
    done = run(tmp_path, Edit("package", "2 / step", "2 * step"))
    assert done.returncode == 70 and done.stdout == ""
    assert "package.py has 0 times, not once, the text of an edit:\n2 / step\n" in done.stderr


@pytest.mark.parametrize(("findings", "word"), [([], "missed"), ([NOTICE], "notice"), ([NOTICE, ERROR], "error")])
def test_an_error_is_detected_by_a_finding_of_severity_error(findings: list[dict[str, object]], word: str) -> None:
    assert verdict(findings) == word


def test_the_page_counts_errors_and_lists_requests_separately() -> None:
    source = "https://github.com/owner/name/issues/7"
    errors = (
        SilentError("one", "loop", "The rate is wrong", source, (Edit("package", "a", "b"),)),
        SilentError("two", "loop", "Nothing is frozen", args=("--case", "frozen"), family="silently off"),
    )
    packages = [
        Package("name", 1, "its loops", "its data", (Program("loop", "loop.py", "a loop"),), errors),
        Package("other", 2, "nothing", "all", (), ()),  # without results
    ]
    loop = {"equal": True, "findings": {"packs": [], "own": [NOTICE]}, "step_ms": 2.0, "observed_step_ms": 3.0}
    found = {"one": {"packs": [ERROR], "own": []}, "two": {"packs": [], "own": [NOTICE]}}
    results = {
        "machine": {"cores": 2, "processor": "x86_64", "python": "3.11", "torch": "2.13"},
        "packages": {"name": {"version": "1.0", "programs": {"loop": loop}, "errors": found}},
    }
    lines = text(packages, results).split("\n")
    assert "| name | 1.0 | a loop | 1 of 1 | 0 | 1 | 1 of 1 | 0 of 1 | 2.0 ms, 1.50x |" in lines
    assert "* `loop`, own: notice in step 3, It is odd" in lines
    assert "| name | `traincheck run train.py` | its loops | its data |" in lines
    assert not any(line.startswith("| other |") for line in lines)
    assert f"| The rate is wrong ([name 7]({source})) | error, step 3: It is odd | missed |" in lines
    off = lines.index("| request | packs | own |")
    assert lines[off + 2] == "| Nothing is frozen | missed | notice, step 3: It is odd |"
