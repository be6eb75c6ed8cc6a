"""Tests `traincheck compare` and `run --against` on real programs, at the command line."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import warm_commands
from pages import Page

SOURCE = Path(__file__).resolve().parents[2] / "src"
PROGRAM = """
import hashlib
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

change = sys.argv[1] if len(sys.argv) > 1 else ""
torch.manual_seed(1 if change == "seed" else 0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)
        self.head, self.drop = nn.Linear(144, 10), nn.Dropout(0.1)

    def forward(self, x):
        x = self.norm(self.conv(x)).relu()
        return self.head(self.drop(x.flatten(1) * (1.01 if change == "scale" else 1.0)))


model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
generator = torch.Generator().manual_seed(1)
batches = [(torch.randn(4, 1, 8, 8, generator=generator), torch.arange(4)) for _ in range(6)]
if change in ("order", "long"):
    batches[3], batches[4] = batches[4], batches[3]
if change == "long":
    batches += [batches[0]] * 1000
for inputs, labels in batches:
    time.sleep(0.05 if change == "long" else 0)
    loss = F.cross_entropy(model(inputs), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
state = [*model.state_dict().values(), torch.get_rng_state()]
print("HASH", hashlib.sha256(b"".join(each.numpy().tobytes() for each in state)).hexdigest())
"""


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    return warm_commands.run([sys.executable, *words], cwd=folder, env=environ)


def traincheck(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return run(folder, "-m", "traincheck", *words)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a program, and recordings of it: before, again, and with changes."""
    folder = tmp_path_factory.mktemp("compare")
    (folder / "train.py").write_text(PROGRAM)
    plain = run(folder, "train.py")
    (folder / "plain.txt").write_text(plain.stdout)
    for name, words in (("before", ()), ("again", ()), ("scale", ("scale",)), ("order", ("order",))):
        record = "operations:Net@1" if name in ("before", "scale") else "operations"
        done = traincheck(folder, "collect", "--record", record, "-o", name, "train.py", *words)
        assert done.returncode == 0, done.stderr
        assert name not in ("before", "again") or done.stdout == plain.stdout, "training has other bits"
    return folder


@pytest.mark.slow
def test_equal_runs(folder: Path) -> None:
    done = traincheck(folder, "compare", "before", "again")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("equal: all ") and "in 6 steps (1 to 6)" in done.stdout


@pytest.mark.slow
def test_another_constant_is_named_with_its_line(folder: Path) -> None:
    line = (
        PROGRAM.splitlines().index(
            '        return self.head(self.drop(x.flatten(1) * (1.01 if change == "scale" else 1.0)))'
        )
        + 1
    )
    done = traincheck(folder, "compare", "before", "scale")
    assert done.returncode == 3, done.stderr
    assert "The runs compute different things, in step 1" in done.stdout
    assert f"mul(1.0) at train.py:{line}:Net.forward" in done.stdout and "mul(1.01) at" in done.stdout
    assert "other origins" not in done.stdout


@pytest.mark.slow
def test_the_elements_of_a_module_are_compared(folder: Path) -> None:
    done = traincheck(folder, "compare", "before", "scale")
    assert re.search(r"\n  elements  \d+ of 576 differ; the largest difference is ", done.stdout)
    assert "the second run has 1.01 times the values of the first\n" in done.stdout
    assert "To see which elements differ" not in done.stdout
    report = json.loads(traincheck(folder, "compare", "before", "scale", "--json").stdout)
    assert 0 < report["elements"]["differing"] < report["elements"]["size"] == 576  # the others are 0


@pytest.mark.slow
def test_the_configuration_comes_first_and_is_silent_if_equal(folder: Path) -> None:
    done = traincheck(folder, "compare", "before", "scale")
    assert done.stdout.splitlines()[1] == "  also different: arguments scale (only scale)"
    report = json.loads(traincheck(folder, "compare", "before", "again", "--json").stdout)
    assert report["configuration"] == []
    (note,) = (folder / "before").glob("process-*.json")
    configuration = json.loads(note.read_text())["configuration"]
    assert configuration["settings"]["default dtype"] == "float32"
    assert configuration["environment"]["OMP_NUM_THREADS"] == configuration["settings"]["threads"] == "1"


@pytest.mark.slow
def test_the_page_shows_both_runs_with_their_code(folder: Path) -> None:
    done = traincheck(folder, "compare", "before", "scale", "--report", "html=page.html", "--report", "markdown=-")
    assert done.returncode == 3 and done.stdout.startswith("## TrainCheck: different: "), done.stderr
    page = Page((folder / "page.html").read_text())
    assert page.text.count("return self.head(self.drop(x.flatten(1) * (1.01") == 2  # the line of both call sites
    assert len(page.all("mark")) == 2 and "mul(1.01)" in page.text
    assert "Loss: differs from step 1 on" in page.text


@pytest.mark.slow
def test_the_order_of_data_is_named_in_its_step(folder: Path) -> None:
    done = traincheck(folder, "compare", "before", "order", "--json")
    assert done.returncode == 3, done.stderr
    report = json.loads(done.stdout)
    assert [step["step"] for step in report["steps"]] == [1, 2, 3, 4]
    assert {(each["kind"], each["phase"]) for each in report["origins"]} == {("data", "before")}
    assert report["origins"][0]["step"] == 4 and report["victims"]["forward"]
    spread = report["spread"]
    assert [step["step"] for step in spread["steps"]] == [1, 2, 3, 4, 5, 6]
    assert [step["parameters"] for step in spread["steps"][:3]] == [0, 0, 0] < [spread["steps"][3]["parameters"]]
    assert [loss["a"] == loss["b"] for loss in spread["losses"]] == [True, True, True, False, False, False]
    assert {"conv", "norm", "head"} <= {module["module"] for module in spread["modules"]}


@pytest.mark.slow
def test_runs_without_sketches_are_refused(folder: Path) -> None:
    done = traincheck(folder, "collect", "-o", "events", "train.py")
    assert done.returncode == 0
    done = traincheck(folder, "compare", "before", "events")
    assert done.returncode == 2 and "error [nothing-to-compare]" in done.stderr and "--record operations" in done.stderr
    done = traincheck(folder, "compare", "before", "nowhere")
    assert done.returncode == 2 and "nowhere" in done.stderr
    for option, slug in (("--against", "nothing-to-compare"), ("--from", "no-initial-state")):
        done = traincheck(folder, "run", option, "events", "train.py")
        assert done.returncode == 2 and f"error [{slug}]" in done.stderr
        assert not done.stdout, "the program was started"


@pytest.mark.slow
def test_a_run_begins_with_the_state_of_another_and_is_compared_while_it_trains(folder: Path) -> None:
    plain = (folder / "plain.txt").read_text()
    assert run(folder, "train.py", "seed").stdout != plain
    words = ("--packs", "none", "--against", "before", "--from", "before", "-o", "seeded")
    done = traincheck(folder, "run", *words, "train.py", "seed")
    assert done.returncode == 0, done.stderr
    assert done.stdout == plain, "training has other bits"
    assert "before: 9 of 9 parameters and buffers, and the random state of python, torch" in done.stderr
    comparison = json.loads((folder / "seeded" / "report.json").read_text())["comparison"]
    assert comparison["result"] == "same" and [step["step"] for step in comparison["steps"]] == [1, 2, 3, 4, 5, 6]
    assert comparison["text"][0].startswith("equal: all ")
    assert "with before: equal: all " in " ".join(done.stderr.split())


@pytest.mark.slow
def test_a_run_stops_at_its_first_difference(folder: Path) -> None:
    words = ("--packs", "none", "--against", "before", "--on-violation", "stop", "-o", "stopped")
    done = traincheck(folder, "run", *words, "train.py", "long")
    assert done.returncode == 3, done.stderr
    assert not done.stdout, "the program trained to its end"
    shown, _, rest = done.stderr.partition("TrainCheck stopped the training")
    assert "different: The runs compute with different data, in step 4" in shown and rest
    report = json.loads((folder / "stopped" / "report.json").read_text())
    assert report["comparison"]["origins"][0]["step"] == 4 and not report["findings"]
    assert traincheck(folder, "report", "stopped").returncode == 3


@pytest.mark.slow
def test_a_checked_run_sketches_watched_steps(folder: Path) -> None:
    words = ("--verify-every", "3", "--packs", "none", "--record", "operations", "--budget", "1/2,first=1")
    done = traincheck(folder, "run", *words, "-o", "checked", "train.py")
    assert done.returncode == 0, done.stderr
    done = traincheck(folder, "compare", "before", "checked", "--json")
    assert done.returncode == 0, done.stdout
    steps = {step["step"] for step in json.loads(done.stdout)["steps"]}
    assert {1, 2, 3, 6} <= steps


@pytest.mark.slow
def test_a_damaged_recording_is_reported(folder: Path) -> None:
    (file,) = (folder / "again").glob("operations-*.msgpack")
    contents = file.read_bytes()
    file.write_bytes(contents[: len(contents) // 2])  # as of a killed process: whole steps count
    assert traincheck(folder, "compare", "before", "again").returncode == 0
    file.write_bytes(contents[:100] + b"\xc1" * 200 + contents[300:])
    done = traincheck(folder, "compare", "before", "again")
    assert done.returncode == 2 and file.name in done.stderr and "Traceback" not in done.stderr
