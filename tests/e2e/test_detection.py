"""The detection benchmark with its real command: a representative third of the cases, and no alarm on a clean run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from benchmarks.detection.cases import BUGGY, CASES, read_cases
from benchmarks.detection.recordings import programs_of, record
from benchmarks.detection.warm import warm_pool

from traincheck.trace.folder import RunFolder
from traincheck.trace.reader import read_windows

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / "benchmarks" / "results" / "detection.json"
EVERY = 3

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The findings of the command in every third case, and in the clean runs."""
    runs = tmp_path_factory.mktemp("runs")
    some = ",".join(case.id for case in read_cases()[::EVERY])
    command = [sys.executable, "-m", "benchmarks.detection", "--ours", "--examples-only", "--runs", str(runs)]
    done = subprocess.run([*command, "--cases", some], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    result: dict[str, Any] = json.loads((runs / "result.json").read_text())
    return result


@pytest.mark.long
def test_the_figures_are_those_of_the_page(result: dict[str, Any]) -> None:
    kept = {row["id"]: row["books"]["examples"] for row in json.loads(KEPT.read_text())["cases"]}
    judged = ("detected", "same_step", "diagnosed")
    now = {row["id"]: [row["books"]["examples"][key] for key in judged] for row in result["cases"]}
    assert now == {name: [kept[name][key] for key in judged] for name in now}


@pytest.mark.long
def test_no_clean_run_has_an_error(result: dict[str, Any]) -> None:
    checks = [check for check in result["alarms"].values() if check]
    assert len(checks) == 2
    for check in checks:
        assert check["with_error"] == [], check["alarms"]
        assert check["failed_share_of_triggered"] < 0.005, check["alarms"]


@pytest.mark.long
@pytest.mark.parametrize("name", ["a13-stackoverflow-60335387", "a11-x-jxmnop-ddp-out-of-sync"])
def test_warm_and_cold_starts_record_the_same(name: str, tmp_path: Path) -> None:
    (case,) = read_cases(name)
    program = programs_of(case, tmp_path)[BUGGY]
    cold = record(program, tmp_path / "cold", reuse=False, cold=True)
    with warm_pool(1) as pool:
        warm = pool.submit(record, program, tmp_path / "warm", reuse=False, cold=False).result()
    assert events(warm.folder) == events(cold.folder)


def events(run: Path) -> list[Counter[tuple[str, ...]]]:
    """For each process that trained, how often each thing happened."""
    events = []
    for file in sorted(RunFolder.open(run).event_files()):
        seen: Counter[tuple[str, ...]] = Counter()
        for window in read_windows(file):
            at = (window.stage, str(window.step))
            seen.update((*at, "call", call.name, call.site) for call in window.calls)
            seen.update((*at, "change", change.variable, change.attribute) for change in window.changes)
            seen.update((*at, "reading", reading.variable, reading.attribute) for reading in window.readings)
        if len(seen) > 1:  # the launcher, too, tells how many steps it made
            events.append(seen)
    return sorted(events, key=repr)


def test_a_wrong_choice_is_an_error() -> None:
    command = [sys.executable, "-m", "benchmarks.detection", "--cases", "b99"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "COLUMNS": "100"})
    assert done.returncode == 2
    assert "no case or part is called 'b99'" in done.stderr and str(CASES) in done.stderr
    assert "Traceback" not in done.stderr
