"""Training is the same to the last bit, with and without observation: losses, weights, gradients, random stream."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest

import warm_commands
from traincheck.invariants.book import Book, write_book
from traincheck.vocab.invariant import Invariant, Precondition, Support
from traincheck.vocab.occasion import Property, Subject

ROOT = Path(__file__).resolve().parents[2]
HARNESS = Path(__file__).with_name("hashing.py")
STEP, BACKWARD = "torch.optim.Optimizer.step", "torch.autograd.backward"

SCRIPTS: dict[str, tuple[dict[str, str], list[str]]] = {
    "digits_cnn.py": ({}, ["--epochs", "1"]),
    "small_gpt.py": ({"max_iters = ": "max_iters = 12 or ", "eval_interval = ": "eval_interval = 6 or "}, []),
    "gan.py": ({"EPOCHS = 5": "EPOCHS = 1"}, []),
}
"""Each script, what is replaced in it to make it short, and its arguments."""


def rule(api: str, grain: str, verb: str, target: str, detail: str) -> Invariant:
    return Invariant(
        "EventContain" if verb == "contains change" else "APISequence",
        Subject(api, grain),
        Property(verb, target, detail),
        Precondition(),
        Support(100, 100, 3, 3),
        0.9,
        "error",
        "general",
        f"{api} {verb} {target} {detail}",
    )


BOOK = Book(
    (
        rule(STEP, "call", "contains change", "parameter.data", "changes"),
        rule(BACKWARD, "call", "contains change", "parameter.grad", "changes"),
        rule(STEP, "cycle", "preceded by", "parameter.grad", "is filled"),
        rule(STEP, "cycle", "preceded by", "torch.nn.Module.forward", ""),
    )
)


def run(folder: Path, script: str, *before: str) -> list[str]:
    """The lines that the program prints, its hash among them, less what it says of the time."""
    replacements, arguments = SCRIPTS[script]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    words = [*before, str(HARNESS), json.dumps(replacements), str(ROOT / "examples" / script), *arguments]
    done = warm_commands.run(words, cwd=folder, env=environment, timeout=600)
    assert done.returncode == 0, done.stderr
    return [re.sub(r"\d+\.\d+s\b", "", line) for line in done.stdout.splitlines() if not line.startswith("traincheck")]


@pytest.mark.slow
@pytest.mark.parametrize("script", ["digits_cnn.py", "small_gpt.py", pytest.param("gan.py", marks=pytest.mark.long)])
def test_training_is_bit_identical(script: str, tmp_path: Path) -> None:
    write_book(BOOK, tmp_path / "book.jsonl")
    traincheck = [sys.executable, "-m", "traincheck.cli.main"]
    plain = run(tmp_path, script, sys.executable)
    assert plain[-1].startswith("HASH ") and int(plain[-1].split()[1]) > 4
    assert run(tmp_path, script, *traincheck, "collect", "-o", "full") == plain
    assert (
        run(tmp_path, script, *traincheck, "run", "--fail-on", "never", "-o", "live", "--book", "book.jsonl") == plain
    )
    for name in ("full", "live"):
        (events,) = (tmp_path / name).glob("events-*.arrows")
        assert events.stat().st_size > 1000
