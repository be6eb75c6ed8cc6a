"""The walk-through of the published tool, with the real commands: learn from one good run, check other scripts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import warm_commands
from shared_artifacts import made_once

GOOD = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class SmallCNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.drop = nn.Dropout(0.1)
        self.fc = nn.Linear(8 * 4 * 4, 4)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm(self.conv(x))), 2)
        return self.fc(self.drop(x.flatten(1)))


def evaluate(model, loader):
    model.eval()
    with torch.no_grad():
        right = sum((model(x).argmax(1) == y).sum().item() for x, y in loader)
    model.train()
    return right


def main():
    torch.manual_seed(0)
    images = torch.randn(320, 1, 8, 8)
    labels = images.mean((1, 2, 3)).gt(0).long() + 2 * images[:, 0, 0, 0].gt(0).long()
    loader = DataLoader(TensorDataset(images, labels), batch_size=16, shuffle=True)
    model = SmallCNN()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(2):
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        print(epoch, evaluate(model, loader))


main()
"""

# PyTorch forum, topic 84911: all but the batch norms are frozen, and the new head with them, although the optimizer
# was built from the head alone.
FINETUNE = """
import torch
import torch.nn as nn

torch.manual_seed(3)
backbone = nn.Sequential(
    nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()
)
backbone.load_state_dict(backbone.state_dict())  # as a pretrained one
net = nn.ModuleDict({"features": backbone, "classifier": nn.Linear(24, 5)})
HEAD_FIRST
for name, parameter in net.named_parameters():
    if not isinstance(net.features[1], nn.Identity) and "features.1" not in name:
        parameter.requires_grad = False
HEAD_LAST
trained = torch.optim.Adam(net.classifier.parameters(), lr=1e-3)
pictures, kinds = torch.rand(200, 3, 12, 12), torch.randint(0, 3, (200,))
for number in range(25):
    chosen = torch.randperm(200)[:20]
    trained.zero_grad()
    scores = net.classifier(net.features(pictures[chosen]))
    nn.functional.cross_entropy(scores, kinds[chosen]).backward()
    trained.step()
"""

FORECAST = """
import torch


class Forecaster(torch.nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.lstm = torch.nn.LSTM(1, hidden, batch_first=True)
        self.out = torch.nn.Linear(hidden, 1)

    def forward(self, series):
        states, _ = self.lstm(series)
        return self.out(states[:, -1])


torch.manual_seed(11)
forecaster = Forecaster(12)
adam = torch.optim.AdamW(forecaster.parameters(), lr=3e-3)
waves = torch.sin(torch.arange(600) / 7.0)
losses = []
while len(losses) < 30:
    starts = torch.randint(0, 570, (32,))
    window = torch.stack([waves[start : start + 20] for start in starts])
    CLEAR
    error = (forecaster(window[:, :-1, None]) - window[:, -1:]).square().mean()
    error.backward()
    adam.step()
    losses.append(error.item())
"""

NEW_HEAD = 'net["classifier"] = nn.Linear(24, 3)'
SCRIPTS = {
    "learned/cnn.py": GOOD,
    "finetune_frozen.py": FINETUNE.replace("HEAD_FIRST", NEW_HEAD).replace("HEAD_LAST", ""),
    "finetune.py": FINETUNE.replace("HEAD_LAST", NEW_HEAD).replace("HEAD_FIRST", ""),
    "forecast_uncleared.py": FORECAST.replace("    CLEAR\n", ""),
    "forecast.py": FORECAST.replace("CLEAR", "adam.zero_grad()"),
    "moved/renamed.py": GOOD,
    "moved/renamed_uncleared.py": GOOD.replace("            optimizer.zero_grad()\n", ""),
    "moved/__init__.py": "",
    "moved/smaller.py": GOOD.replace("batch_size=16", "batch_size=20").replace("manual_seed(0)", "manual_seed(5)"),
}


def traincheck(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return warm_commands.run(
        [sys.executable, "-m", "traincheck", *words], cwd=home, timeout=300, env={**os.environ, "COLUMNS": "200"}
    )


def learn(home: Path) -> None:
    for name, text in SCRIPTS.items():
        (home / name).parent.mkdir(exist_ok=True)
        (home / name).write_text(text)
    for words in (("collect", "-o", "runs/cnn", "learned/cnn.py"), ("infer", "runs/cnn", "-o", "good.jsonl")):
        done = traincheck(home, *words)
        assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the scripts and the book of one run of one of them."""
    return made_once(tmp_path_factory, "one-good-run", learn)


def errors(report: Path) -> list[str]:
    content = json.loads(report.read_text())
    return [finding["diagnosis"] for finding in content["findings"] if finding["severity"] == "error"]


@pytest.mark.parametrize(
    ("script", "diagnosis"),
    [
        ("finetune_frozen.py", "optimizer-changes-nothing"),
        ("forecast_uncleared.py", "gradients-not-cleared"),
        ("moved/renamed_uncleared.py", "gradients-not-cleared"),
    ],
)
def test_errors_of_other_scripts_are_found(script: str, diagnosis: str, home: Path, tmp_path: Path) -> None:
    done = traincheck(home, "run", "--book", "good.jsonl", "-o", str(tmp_path / "run"), "--record", "all", script)
    assert done.returncode == 3, done.stderr
    assert diagnosis in errors(tmp_path / "run" / "report.json")
    # The recording gives the same findings afterwards: live and offline decide alike.
    again = traincheck(
        home, "check", str(tmp_path / "run"), "--book", "good.jsonl", "--report", f"json={tmp_path / 'again.json'}"
    )
    assert again.returncode == 3 and errors(tmp_path / "again.json") == errors(tmp_path / "run" / "report.json")


@pytest.mark.parametrize("script", ["finetune.py", "forecast.py", "moved/renamed.py", "moved/smaller.py"])
def test_their_clean_twins_pass(script: str, home: Path, tmp_path: Path) -> None:
    done = traincheck(home, "run", "--book", "good.jsonl", "-o", str(tmp_path / "run"), script)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert report["verdict"] == "clean" and report["counts"]["passed"] > 10


def test_rules_of_the_other_program_are_counted_and_as_checks_them(home: Path, tmp_path: Path) -> None:
    done = traincheck(home, "run", "--book", "good.jsonl", "-o", str(tmp_path / "run"), "forecast.py")
    first = done.stderr.splitlines()[0]
    assert "rules of good.jsonl belong to learned/cnn.py and are not checked here" in first
    assert "--as learned/cnn.py" in first
    deployed = json.loads((tmp_path / "run" / "report.json").read_text())["counts"]["invariants"]
    words = ("run", "--book", "good.jsonl", "--as", "learned/cnn.py", "-o", str(tmp_path / "as"), "forecast.py")
    named = traincheck(home, *words)
    assert "belong to" not in named.stderr and named.returncode == 0, named.stderr
    assert json.loads((tmp_path / "as" / "report.json").read_text())["counts"]["invariants"] > deployed


@pytest.mark.parametrize(
    ("folder", "words"),
    [
        (".", ("moved/renamed.py",)),
        (".", ("-m", "moved.renamed")),
        ("moved", ("--", sys.executable, "renamed.py")),
        ("runs", ("../moved/renamed.py",)),
    ],
)
def test_a_program_keeps_its_own_rules(folder: str, words: tuple[str, ...], home: Path, tmp_path: Path) -> None:
    """Renamed, as a module, by a launcher, from another folder: rules about its functions are checked and hold."""
    run = tmp_path / "run"
    done = traincheck(home / folder, "run", "--book", str(home / "good.jsonl"), "-o", str(run), *words)
    assert done.returncode == 0, done.stderr
    assert "good.jsonl was learned from this program under the name learned/cnn.py" in done.stderr
    counts = json.loads((run / "report.json").read_text())["counts"]
    assert counts["not_triggered"] == 0 and counts["passed"] == counts["invariants"]


def test_no_deployed_rules_is_not_a_pass(home: Path, tmp_path: Path) -> None:
    """A book whose rules all belong to another program: exit code 2 live and offline, and the program is not run."""
    header, *lines = (home / "good.jsonl").read_text().splitlines()
    own = [line for line in lines if '"api":"cnn.' in line]
    assert own
    head = {**json.loads(header), "invariants": len(own)}
    (tmp_path / "own.jsonl").write_text("\n".join((json.dumps(head), *own)) + "\n")
    book = str(tmp_path / "own.jsonl")
    live = traincheck(home, "run", "--book", book, "-o", str(tmp_path / "run"), "forecast.py")
    assert live.returncode == 2 and "[no-rule-deployed]" in live.stderr and "--as learned/cnn.py" in live.stderr
    assert not (tmp_path / "run").exists()
    assert traincheck(home, "collect", "-o", str(tmp_path / "run"), "forecast.py").returncode == 0
    offline = traincheck(home, "check", str(tmp_path / "run"), "--book", book)
    assert offline.returncode == 2 and "[no-rule-deployed]" in offline.stderr
    several = traincheck(home, "check", str(tmp_path / "run"), "runs/cnn", "--book", book)
    assert several.returncode == 2 and "checking runs/cnn" in several.stderr
