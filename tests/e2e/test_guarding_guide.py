"""The control commands of docs/guarding-a-run.md work as written."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

import warm_commands

GUIDE = (Path(__file__).resolve().parents[2] / "docs" / "guarding-a-run.md").read_text(encoding="utf-8")
CONTROL = GUIDE.partition("## Control without restart")[2].partition("\n## ")[0]

PROGRAM = """
import sys, time
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
{block}
for step in range(int(sys.argv[1])):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
    time.sleep(float(sys.argv[2]))
"""


def blocks(language: str) -> list[str]:
    fences = re.findall(r"^```(\w*)\n(.*?)^```", CONTROL, re.MULTILINE | re.DOTALL)
    return [text for name, text in fences if name == language]


def traincheck(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return warm_commands.run([sys.executable, "-m", "traincheck", *words], cwd=home, timeout=120)


@pytest.mark.slow
def test_the_commands_and_the_code_of_the_guide(tmp_path: Path) -> None:
    reading, registering = blocks("python")
    (tmp_path / "train.py").write_text(PROGRAM.format(block=registering))
    for number in (1, 2, 3):
        traincheck(tmp_path, "collect", "-o", f"good{number}", "train.py", "24", "0").check_returncode()
    traincheck(tmp_path, "infer", "good1", "good2", "good3", "-o", "book.jsonl").check_returncode()
    rule = next(json.loads(line)["id"] for line in (tmp_path / "book.jsonl").read_text().splitlines() if '"id"' in line)
    words = [
        "run",
        "--book",
        "book.jsonl",
        "--on-violation",
        "callback",
        "-o",
        "runs/big",
        "train.py",
        "100000",
        "0.02",
    ]
    run = warm_commands.start([sys.executable, "-m", "traincheck", *words], tmp_path)
    try:
        deadline = time.monotonic() + 60
        while not any('"training": true' in file.read_text() for file in (tmp_path / "runs/big").glob("controlled*")):
            assert time.monotonic() < deadline and run.poll() is None
            time.sleep(0.1)
        (commands,) = blocks("")
        for line in commands.splitlines():
            argv = shlex.split(line.replace("3f9a", rule), comments=True)
            done = traincheck(tmp_path, *argv[1:], "--wait", "100")
            assert done.returncode == 0, (line, done.stderr)
        _, stderr = run.communicate(timeout=60)
    finally:
        run.kill()
    assert run.returncode == 3 and "on request: wrong data" in stderr, stderr
    assert (tmp_path / "last.pt").exists()
    (snapshot,) = (tmp_path / "runs/big/snapshots").iterdir()
    code = reading.replace("runs/big/snapshots/step-812-rank-0.pt", str(snapshot)) + "\nprint(sorted(norms))\n"
    done = warm_commands.run([sys.executable, "-c", code], tmp_path, check=True)
    assert done.stdout.strip() == "['Linear.bias', 'Linear.weight']"
