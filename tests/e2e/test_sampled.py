"""A sampled run reports no clean program and every buggy one; checking its recording gives the same findings."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from test_bit_identical import run as hashed
from test_main_job import BUGGY, EXAMPLES, LEARNED_FROM, book, buggy_run, traincheck

import warm_commands
from rank_jobs import PROGRAM, learn, rank_starter
from shared_artifacts import made_once
from traincheck.invariants.book import read_books
from traincheck.runtime.recording.sampling import BURST, RARE_EVENTS, in_sample
from traincheck.sources.recording.sampling_gate import EVALUATION_MODE, FILE, PASS_ENDS, STATE_DICT, WITHOUT_GRADIENTS
from traincheck.trace.folder import RunFolder
from traincheck.trace.reader import read_windows
from traincheck.vocab.events import TRAIN

pytestmark = pytest.mark.slow

__all__ = ["book"]


def sampled(script: Path, book: Path, folder: Path, *words: str) -> tuple[int, dict[str, Any]]:
    """Return exit code, report and recorded steps of a sampled run."""
    done = traincheck("run", "--book", book, "-o", folder, "--record", "all", *words, script)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, json.loads((folder / "report.json").read_text())


def recorded_steps(folder: Path) -> list[int]:
    """The training steps that the recording holds."""
    (file,) = RunFolder.open(folder).event_files()
    return [window.step for window in read_windows(file) if window.stage == TRAIN]


KINDS = len({PASS_ENDS, EVALUATION_MODE, WITHOUT_GRADIENTS, STATE_DICT, FILE})
"""Kinds of rare events."""

FIRST = ("grad_accum_bf16", "buggy/missing_zero_grad_clean")
"""Clean programs that are tried for every change: all of them together take long."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in FIRST else pytest.mark.long)
        for name in (*LEARNED_FROM, *(f"buggy/{name}_clean" for name in BUGGY))
    ],
)
def test_clean_programs_stay_clean(name: str, book: Path, tmp_path: Path) -> None:
    folder, interval = tmp_path / "run", "3" if "_clean" in name else "5"
    code, report = sampled(EXAMPLES / f"{name}.py", book, folder, "--budget", f"1/{interval},first=4")
    assert code == 0
    assert [finding["diagnosis"] for finding in report["findings"] if finding["severity"] == "error"] == []
    counts, cost = report["counts"], report["cost"]
    assert counts["passed"] > 5 and counts["violated"] <= len(report["findings"])
    steps = recorded_steps(folder)
    assert cost["watched"] == len(steps) < cost["steps"] == counts["steps"]
    sample = {step for step in range(1, cost["steps"] + 1) if step <= 4 or in_sample(step, int(interval))}
    assert sample <= set(steps)  # the others follow on rare events
    assert len(steps) - len(sample) <= KINDS * RARE_EVENTS * BURST


@pytest.mark.parametrize(
    "name",
    [
        "missing_zero_grad",
        pytest.param("frozen_head", marks=pytest.mark.long),
        pytest.param("stale_optimizer", marks=pytest.mark.long),
    ],
)
def test_errors_are_found_at_the_first_watched_step_that_shows_them(
    name: str, book: Path, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    script = EXAMPLES / "buggy" / f"{name}.py"
    whole = json.loads((buggy_run(name, book, tmp_path_factory) / "report.json").read_text())
    _, part = sampled(script, book, tmp_path / "part", "--budget", "1/3,first=0")
    first = min(finding["step"] for finding in whole["findings"] if finding["severity"] == "error")
    errors = [finding for finding in part["findings"] if finding["severity"] == "error"]
    assert errors and {rule for finding in errors for rule in finding["invariants"]} <= {
        rule for finding in whole["findings"] for rule in finding["invariants"]
    }
    steps = recorded_steps(tmp_path / "part")
    # Changes between two steps need both of them in the recording.
    candidates = [step for step in steps if step >= first]
    assert errors[0]["step"] in candidates[:2]
    diagnosis, variable = BUGGY[name]
    assert errors[0]["diagnosis"] == diagnosis and any(variable in name for name in errors[0]["variables"])


def test_the_recording_is_judged_as_the_run_was(book: Path, tmp_path: Path) -> None:
    script = EXAMPLES / "buggy" / "missing_zero_grad.py"
    _, live = sampled(script, book, tmp_path / "live", "--budget", "1/4,first=3")
    again = traincheck("check", tmp_path / "live", "--book", book, "--report", f"json={tmp_path / 'offline.json'}")
    assert again.returncode == 3, again.stderr
    offline = json.loads((tmp_path / "offline.json").read_text())
    for part in ("findings", "counts", "cost"):
        assert offline[part] == live[part]


@pytest.mark.long
def test_rules_that_cannot_be_judged_are_reported_as_never_triggered(book: Path, tmp_path: Path) -> None:
    """Rules about whole epochs or whole runs are reported neither as violated nor as satisfied."""
    whole, part = (
        sampled(EXAMPLES / "digits_cnn.py", book, tmp_path / name, *words)[1]["counts"]
        for name, words in (("whole", ()), ("part", ("--budget", "1/6,first=2")))
    )
    assert part["violated"] == whole["violated"] == 0
    assert part["not_triggered"] > whole["not_triggered"]
    assert part["passed"] + part["not_triggered"] == whole["passed"] + whole["not_triggered"]
    assert len(read_books([book]).invariants) >= part["invariants"]


@pytest.mark.long
@pytest.mark.parametrize("script", ["small_gpt.py", "gan.py"])
def test_training_is_bit_identical(script: str, book: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "traincheck", "run", "--fail-on", "never", "--book", str(book), "-o", "live"]
    plain = hashed(tmp_path, script, sys.executable)
    assert hashed(tmp_path, script, *command, "--budget", "1/3,first=2") == plain
    assert 2 < len(recorded_steps(tmp_path / "live")) < 200


@pytest.mark.long
def test_a_budget_is_kept_or_only_the_first_steps_are_watched(book: Path, tmp_path: Path) -> None:
    code, report = sampled(EXAMPLES / "digits_cnn.py", book, tmp_path / "run", "--budget", "0.0001%,first=5")
    assert code == 0 and report["cost"]["watched"] <= 7 + KINDS * RARE_EVENTS * BURST
    assert recorded_steps(tmp_path / "run")[:5] == [1, 2, 3, 4, 5]


EPOCHS = """
import os
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
inputs = torch.randn(1200, 16)
labels = (inputs[:, :4].sum(1) > 0).long()
order = torch.Generator()
loader = DataLoader(TensorDataset(inputs, labels), batch_size=10, shuffle=True, generator=order)
test_loader = DataLoader(TensorDataset(inputs[:200] + 0.1, labels[:200]), batch_size=50)
model = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 2))
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
for epoch in range(2):
    model.train()
    if sys.argv[1] == "order":
        order.manual_seed(1)
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    if sys.argv[1] == "checkpoint":
        state["4.weight"].zero_()
    torch.save(state, os.devnull)
    if sys.argv[1] != "schedule":
        scheduler.step()
    if sys.argv[1] != "evaluation":
        model.eval()
    with torch.no_grad():
        print(sum((model(x).argmax(1) == y).sum().item() for x, y in test_loader))
"""


@pytest.mark.parametrize(
    ("mistake", "diagnosis"),
    [
        ("none", None),
        ("evaluation", "evaluation-in-training-mode"),
        ("checkpoint", "checkpoint-differs-from-model"),
        ("order", "same-order-every-epoch"),
        ("schedule", "schedule-does-not-fit-run"),
    ],
)
def test_rare_events_and_what_lasts_are_judged_whatever_the_budget(
    mistake: str, diagnosis: str | None, tmp_path: Path
) -> None:
    """No step near the end of a pass is in the sample, but what happens there is judged."""
    (tmp_path / "train.py").write_text(EPOCHS)
    words = ["--budget", "1/1000000,first=20", "-o", tmp_path / "run", tmp_path / "train.py", mistake]
    done = traincheck("run", *words)
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert [finding["diagnosis"] for finding in report["findings"]] == [diagnosis] * bool(diagnosis), done.stderr
    assert done.returncode == (3 if diagnosis else 0)
    assert report["cost"]["watched"] < 40 < report["cost"]["steps"] == 240
    assert all(finding["step"] in (120, 121, 122, 240) for finding in report["findings"])


STAGES = """
import torch
from torch import nn

torch.manual_seed(0)
inputs = torch.randn(512, 16)
labels = (inputs[:, :4].sum(1) > 0).long()
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 2))


def train(optimizer, steps):
    for _ in range(steps):
        index = torch.randint(512, (32,))
        model.zero_grad()
        nn.functional.cross_entropy(model(inputs[index]), labels[index]).backward()
        optimizer.step()


train(torch.optim.Adam(model.parameters(), 1e-3), 100)
train(torch.optim.Adam(model[2].parameters(), 1e-4), 100)
"""


def test_a_layer_that_has_learned_before_a_gap_may_be_left_out_after_it(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(STAGES)
    done = traincheck("run", "--budget", "1/5,first=20", "-o", tmp_path / "run", tmp_path / "train.py")
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert report["findings"] == [], done.stderr
    assert report["cost"]["watched"] < 100 < report["cost"]["steps"] == 200


def test_a_run_without_a_budget_watches_its_first_steps_and_then_some(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(EPOCHS.replace("range(2)", "range(5)"))
    done = traincheck("run", "-o", tmp_path / "some", tmp_path / "train.py", "none")
    assert done.returncode == 0, done.stderr
    cost = json.loads((tmp_path / "some" / "report.json").read_text())["cost"]
    assert 200 <= cost["watched"] < cost["steps"] == 600
    assert "(--budget 1/1 watches all)" in " ".join(done.stderr.split())
    for name, words in (("watched", ("--budget", "1/1")), ("recorded", ("--record", "all"))):
        done = traincheck("run", *words, "-o", tmp_path / name, tmp_path / "train.py", "none")
        cost = json.loads((tmp_path / name / "report.json").read_text())["cost"]
        assert cost["watched"] == cost["steps"] == 600, done.stderr


def test_a_recording_to_learn_from_is_whole(tmp_path: Path) -> None:
    done = traincheck("collect", "--budget", "1/3", "-o", tmp_path / "run", EXAMPLES / "digits_cnn.py")
    assert done.returncode == 2 and not (tmp_path / "run").exists()
    assert "--budget was given '1/3'; expected nothing here" in " ".join(done.stderr.split())


def test_two_ranks_are_compared_in_the_steps_that_both_watch(tmp_path_factory: pytest.TempPathFactory) -> None:
    tmp_path = made_once(tmp_path_factory, "ranks", learn)
    drifting = PROGRAM.replace("optimizer.step()", "optimizer.step(); drift(model, dist.get_rank())").replace(
        "def main(seed)", DRIFT + "def main(seed)"
    )
    for text, clean in ((PROGRAM, True), (drifting, False)):
        (tmp_path / "train.py").write_text(text)
        folder = f"clean-{clean}"
        command = [
            sys.executable,
            "-m",
            "traincheck",
            "run",
            "--book",
            "book.jsonl",
            "-o",
            folder,
            "--fail-on",
            "never",
        ]
        words = [*command, "--budget", "1/4,first=2", "--", *rank_starter(tmp_path), "train.py", "7"]
        done = warm_commands.run(words, cwd=tmp_path, timeout=300, env={**os.environ})
        assert done.returncode == 0, done.stderr
        report = json.loads((tmp_path / folder / "report.json").read_text())
        assert (report["verdict"] == "clean") == clean, report["findings"]
        files = sorted(RunFolder.open(tmp_path / folder).event_files())
        steps = [[w.step for w in read_windows(file) if w.stage == TRAIN] for file in files]
        trained = [of_rank for of_rank in steps if of_rank]
        assert trained[0] == trained[1] and len(trained[0]) < report["counts"]["steps"]
        assert all(state["compared"] == state["recorded"] for state in report["ranks"])
        if not clean:
            first = min(finding["step"] for finding in report["findings"] if finding["compared"])
            assert first == next(step for step in trained[0] if step > 8)


DRIFT = """
STEPS = [0]

def drift(model, rank):
    STEPS[0] += 1
    if STEPS[0] == 8 and rank == 1:
        with torch.no_grad():
            next(model.parameters()).add_(0.25)

"""
