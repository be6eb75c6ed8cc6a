"""A compiled update that is silently lost is found in the step in which that happens, by rules of other runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from torch_version import TORCH

PROGRAMS = Path(__file__).parent / "programs"
PROGRAM = """
import subprocess, sys
sys.path.insert(0, {programs!r})
import torch, traincheck
from compiled_step import train

how = sys.argv[1]
for seed in range(3):
    with traincheck.observe(f"good-{{seed}}", name=f"program-{{seed}}.py"):
        train(how, seed)
infer = [sys.executable, "-m", "traincheck", "infer", "good-0", "good-1", "good-2", "-o", "good.jsonl"]
subprocess.run(infer, check=True, capture_output=True)
for way in ("eager", "compiled", "stale"):
    torch._dynamo.reset()
    alone = train(way, 7)
    torch._dynamo.reset()
    with traincheck.observe(way, "good.jsonl", name="other.py") as run:
        assert train(way, 7) == alone
    print(way, run.report.verdict)
torch._dynamo.reset()
try:
    with traincheck.observe("stopped", "good.jsonl", on_violation="stop", name="other.py"):
        for seed in range(1000):
            train("stale", seed)
except traincheck.StopTraining as stop:
    print("stopped:", stop)
"""


@pytest.mark.slow
@pytest.mark.skipif(TORCH < (2, 6), reason="the program uses guard filters of torch.compile")
@pytest.mark.parametrize("learned", [pytest.param("eager", marks=pytest.mark.long), "compiled"])
def test_a_stale_compiled_step_is_found(learned: str, tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM.format(programs=str(PROGRAMS)))
    done = subprocess.run([sys.executable, script.name, learned], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:3] == ["eager clean", "compiled clean", "stale errors"], done.stdout
    report = json.loads((tmp_path / "stale" / "report.json").read_text())
    first = report["findings"][0]
    assert (first["severity"], first["step"]) == ("error", 6)
    assert {"Sequential.0.weight", "Sequential.2.bias"} <= set(first["variables"])
    assert lines[3].startswith("stopped: ")
