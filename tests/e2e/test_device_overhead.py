"""The benchmark of accelerators runs on the CPU as well, with a tiny model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.overhead import device_table

ROOT = Path(__file__).parents[2]


@pytest.mark.long
@pytest.mark.slow
def test_the_device_benchmark_measures_a_tiny_model_on_the_cpu(tmp_path: Path) -> None:
    out = tmp_path / "overhead.json"
    words = ["--device", "cpu", "--workload", "gpt_tiny", "--mode", "run", "--rounds", "1", "--steps", "2"]
    subprocess.run([sys.executable, "-m", "benchmarks.overhead", *words, "--out", str(out)], cwd=ROOT, check=True)

    results = json.loads(out.read_text())
    workload = results["workloads"]["gpt_tiny"]
    run = workload["modes"]["run"]
    assert workload["failed"] == {} and run["findings"] == []
    assert run["ratio"]["median"] > 0 and workload["plain_peak_mb"] > 0
    assert run["added"]["kernels"] > 0 and run["counts"]["kernels"] > workload["plain_counts"]["kernels"]
    assert "| gpt_tiny | run | " in device_table.text(results)
