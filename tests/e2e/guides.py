"""Commands in a guide, executed line by line as a reader would type them."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from warm_commands import path_of_shell

DOCS = Path(__file__).resolve().parents[2] / "docs"
BLOCK = re.compile(r"^```bash\n(.*?)^```", re.MULTILINE | re.DOTALL)
ENDS = re.compile(r"#.*ends with exit code (\d+)")


PROGRAM = """
import argparse

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters())
for epoch in range(parser.parse_args().epochs):
    for _ in range(6):
        x = torch.randn(16, 4)
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
        loss.backward()
        optimizer.step()
"""
"""The program that a reader of the guides trains, as train.py."""


def commands(page: str) -> list[str]:
    """The lines in the bash blocks of a page of docs/."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return [line for block in BLOCK.findall(text) for line in block.splitlines() if line.strip()]


def follow(page: str, home: Path) -> dict[str, str]:
    """Run the commands of a page in `home`; what each of them said. They have to end as the page says."""
    environ = {**os.environ, "PATH": path_of_shell(), "COLUMNS": "80", "OMP_NUM_THREADS": "1"}
    outputs: dict[str, str] = {}
    for line in commands(page):
        ends = ENDS.search(line)
        done = subprocess.run(
            ["bash", "-c", line], cwd=home, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert done.returncode == (int(ends[1]) if ends else 0), f"{line}\n{done.stdout}"
        outputs[line] = done.stdout
    return outputs
