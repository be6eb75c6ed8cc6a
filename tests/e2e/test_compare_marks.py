"""Programs that share no modules are compared by the values that they mark, at the command line."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import warm_commands

SOURCE = Path(__file__).resolve().parents[2] / "src"

TRAINER = """
import torch
import traincheck
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.first = nn.Embedding(16, 8), nn.Linear(8, 32)
        self.second, self.head = nn.Linear(32, 32), nn.Linear(32, 16)

    def forward(self, tokens):
        x = self.embed(tokens)
        traincheck.mark("embedding", x, gradient=True)
        x = F.gelu(self.first(x))
        traincheck.mark("first", x)
        x = F.gelu(self.second(x))
        traincheck.mark("second", x)
        return self.head(x)


tokens = torch.randint(16, (2, 4, 9), generator=torch.Generator().manual_seed(1))
model = Policy()
torch.save({**model.state_dict(), "tokens": tokens}, "weights.pt")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in tokens:
    logprobs = F.log_softmax(model(batch[:, :-1]), -1).gather(-1, batch[:, 1:, None]).squeeze(-1)
    traincheck.mark("logprobs", logprobs)
    optimizer.zero_grad()
    (-logprobs.mean()).backward()
    optimizer.step()
"""

ENGINE = """
import sys

import torch
import traincheck

temperature = float(sys.argv[1])
weights = torch.load("weights.pt")
batch = weights["tokens"][0]


def linear(name, x):
    return x @ weights[f"{name}.weight"].t() + weights[f"{name}.bias"]


with torch.inference_mode():
    x = weights["embed.weight"][batch[:, :-1].reshape(-1)]
    x = torch.nn.functional.gelu(linear("first", x))
    logits = linear("head", torch.nn.functional.gelu(linear("second", x))) / temperature
    logprobs = logits.log_softmax(-1)[torch.arange(len(logits)), batch[:, 1:].reshape(-1)]
    traincheck.mark("logprobs", logprobs.tolist())
"""

PORT = """
import math
import sys

import numpy as np
import traincheck

weights = np.load("weights.npz")
assert "torch" not in sys.modules
tokens = weights["tokens"][0]


def gelu(x):
    return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def dense(name, x):
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


x = weights["embed.weight"][tokens[:, :-1]].astype(np.float64)
traincheck.mark("embedding", x)
x = gelu(dense("first", x))
traincheck.mark("first", x)
x = dense("second", x)
x = 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
traincheck.mark("second", x)
z = dense("head", x)
logprobs = z - np.log(np.exp(z).sum(-1, keepdims=True))
traincheck.mark("logprobs", np.take_along_axis(logprobs, tokens[:, 1:, None], -1)[..., 0])
"""


def traincheck(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "traincheck", *words]
    return warm_commands.run(command, cwd=folder, env=environ)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with recordings: a trainer, an inference engine at two temperatures, and a port to NumPy with an
    error."""
    import numpy as np
    import torch

    folder = tmp_path_factory.mktemp("marks")
    for name, program in (("train.py", TRAINER), ("engine.py", ENGINE), ("port.py", PORT)):
        (folder / name).write_text(program)
    done = traincheck(folder, "collect", "--record", "operations", "-o", "trainer", "train.py")
    assert done.returncode == 0, done.stderr
    weights = torch.load(folder / "weights.pt")
    np.savez(folder / "weights.npz", **{name: value.numpy() for name, value in weights.items()})
    programs = {
        "engine": ("engine.py", "1.0"),
        "warm": ("engine.py", "1.05"),
        "port": ("port.py",),
    }

    def record(name: str) -> subprocess.CompletedProcess[str]:
        return traincheck(folder, "collect", "--record", "operations", "-o", name, *programs[name])

    with ThreadPoolExecutor(2) as pool:
        for name, done in zip(programs, pool.map(record, programs), strict=True):
            assert done.returncode == 0, done.stderr
            assert f"recorded {4 if name == 'port' else 1} mark" in done.stderr, done.stderr
    return folder


@pytest.mark.slow
def test_an_error_in_the_second_layer_of_a_port(folder: Path) -> None:
    done = traincheck(folder, "compare", "trainer", "port")
    assert done.returncode == 3, done.stderr
    lines = [line for line in done.stdout.splitlines() if "also different" not in line]
    assert lines[0] == "different: The difference begins between the marks 'first' and 'second'"
    number = TRAINER.splitlines().index('        traincheck.mark("second", x)') + 1
    assert f"step 1, at train.py:{number}:Policy.forward" in lines[1] and "outside training steps" in lines[2]
    assert "4 marks compared" in done.stdout
    assert "marks with other numbers of values in trainer and port: 'embedding' 2 and 1" in done.stdout


@pytest.mark.slow
def test_an_inference_engine_agrees_with_the_trainer(folder: Path) -> None:
    done = traincheck(folder, "compare", "trainer", "engine", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["result"] in ("same", "rounding") and report["steps"] == [] and report["marks"]["compared"] == 1


@pytest.mark.slow
def test_a_wrong_temperature_is_reported_by_token(folder: Path) -> None:
    done = traincheck(folder, "compare", "trainer", "warm", "--json")
    assert done.returncode == 3, done.stdout + done.stderr
    first = json.loads(done.stdout)["marks"]["first"]
    assert first["name"] == "logprobs" and first["after"] is None and first["elements"]["size"] == 32
    assert 0 < first["elements"]["mean"] < first["elements"]["largest"] < 0.5
    own, other = first["elements"]["pair"]
    assert abs(own - other) == pytest.approx(first["elements"]["largest"])


@pytest.mark.slow
def test_modules_and_marks_are_compared_together(folder: Path) -> None:
    done = traincheck(folder, "compare", "trainer", "trainer")
    assert done.returncode == 0 and "results have the same bits in 2 steps" in done.stdout
    assert "10 marks compared: 10 have the same values" in done.stdout


@pytest.mark.slow
def test_runs_without_a_common_mark_are_refused(folder: Path) -> None:
    shutil.copytree(folder / "port", folder / "other")
    for file in (folder / "other").glob("marks-*.msgpack"):
        file.unlink()
    done = traincheck(folder, "compare", "port", "other")
    assert done.returncode == 2 and "error [nothing-to-compare]" in done.stderr and "no marks that" in done.stderr
    assert "Traceback" not in done.stderr
