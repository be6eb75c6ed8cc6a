"""A book learned from three runs of one pipeline detects each single mutation of it.

`programs/translate.py` is the clean program; a mutation replaces a line or two of it, as the real errors did.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

import warm_commands
from shared_artifacts import made_once

PROGRAM = Path(__file__).parent / "programs" / "translate.py"
LEARNED_FROM = (("--seed", "1", "--epochs", "4"), ("--seed", "2"), ("--seed", "3", "--epochs", "5", "--words", "640"))

pytestmark = pytest.mark.slow


class Mutation(NamedTuple):
    """A line of the program, what the bug makes of it, and a word of the leading finding that names it."""

    line: str
    becomes: str
    names: str


MUTATIONS = {
    "stops_early": Mutation(
        "math.ceil(len(loader) / args.accumulate) * args.epochs",
        "len(loader) * args.epochs // args.accumulate",
        "batches",
    ),
    "spoilt_checkpoint": Mutation(
        "    state = model.state_dict()\n",
        "    state = {name: value.clone() for name, value in model.state_dict().items()}\n"
        '    state["head.weight"].copy_(state["head.weight"].t().reshape(20, -1))\n',
        "head.weight",
    ),
    "frozen_parameters_not_saved": Mutation(
        "    state = model.state_dict()\n",
        "    state = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}\n",
        "position.weight",
    ),
    "initialised_twice": Mutation(
        "        for module in self.modules():\n",
        "        for module in (inner for outer in self.modules() for inner in outer.modules()):\n",
        "init_weights",
    ),
    "dropout_in_evaluation": Mutation(
        "p = self.dropout if self.training else 0.0", "p = self.dropout", "scaled_dot_product_attention"
    ),
    "generates_too_much": Mutation(
        "    prompt = prompt[:, -window:]\n    limit = prompt.shape[1] + max_new_tokens\n",
        "    limit = prompt.shape[1] + max_new_tokens\n    prompt = prompt[:, -window:]\n",
        "max_new_tokens",
    ),
    "autocast_skipped": Mutation(
        "        return self.out(y.transpose(1, 2).flatten(2))\n",
        '        with torch.autocast("cpu", enabled=False):\n'
        "            return self.out(y.transpose(1, 2).flatten(2).float())\n",
        "Attention",
    ),
    "same_augmentation": Mutation(
        "num_workers=2,", "num_workers=2, worker_init_fn=lambda _: np.random.seed(0),", "worker"
    ),
    "softmax_before_loss": Mutation(
        ".float().flatten(0, 1)\n", ".float().flatten(0, 1).softmax(-1)\n", "cross_entropy"
    ),
    "batch_of_one": Mutation(
        '    return {"source": sources, "target": targets}\n',
        '    return {"source": sources[:1], "target": targets[:1]}\n',
        "collate",
    ),
    "first_step_without_warm_up": Mutation(
        "    step, out = 0,", '    optimizer.param_groups[0]["lr"] = 5e-3\n    step, out = 0,', "lr"
    ),
    "frozen_by_saving": Mutation(
        "    state = model.state_dict()\n",
        "    state = model.state_dict()\n    model.head.requires_grad_(False)\n",
        "head.weight",
    ),
    "never_cleared": Mutation("            optimizer.zero_grad()\n", "", "clear"),
    "evaluation_never_left": Mutation(
        "    while step < total_steps:\n        model.train()\n",
        "    model.train()\n    while step < total_steps:\n",
        "evaluation mode",
    ),
}


def traincheck(home: Path, *words: object) -> subprocess.CompletedProcess[str]:
    """Run the command as a user does, in `home`."""
    command = [sys.executable, "-m", "traincheck", *map(str, words)]
    return warm_commands.run(command, cwd=home, env={**os.environ, "COLUMNS": "100"})


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A book learned from three clean runs of the pipeline, of other seeds and lengths."""
    return made_once(tmp_path_factory, "pipeline", learn) / "book.jsonl"


def learn(home: Path) -> None:
    (home / PROGRAM.name).write_text(PROGRAM.read_text())
    for number, args in enumerate(LEARNED_FROM):
        done = traincheck(home, "collect", "-o", f"run{number}", PROGRAM.name, *args)
        assert done.returncode == 0, done.stderr
    done = traincheck(home, "infer", *(f"run{number}" for number in range(len(LEARNED_FROM))), "-o", "book.jsonl")
    assert done.returncode == 0, done.stderr


def checked(book: Path, home: Path, text: str, *args: str) -> tuple[int, dict[str, object], str]:
    """Exit code, report and what was said of a run of `text` under the program's name."""
    (home / PROGRAM.name).write_text(text)
    done = traincheck(home, "run", "--book", book, "-o", "run", PROGRAM.name, *args)
    return done.returncode, json.loads((home / "run" / "report.json").read_text()), done.stderr


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long if number % 2 else ()) for number, name in enumerate(MUTATIONS)]
)
def test_each_mechanism_shows(name: str, book: Path, tmp_path: Path) -> None:
    text = PROGRAM.read_text()
    mutation = MUTATIONS[name]
    assert text.count(mutation.line) == 1
    code, report, output = checked(book, tmp_path, text.replace(mutation.line, mutation.becomes))
    assert code == 3, output
    leading = report["findings"][0]  # type: ignore[index]
    assert leading["severity"] == "error"
    assert mutation.names in json.dumps(leading), output


@pytest.mark.parametrize(
    "args",
    [(), pytest.param(("--seed", "9", "--epochs", "2"), marks=pytest.mark.long), ("--words", "400", "--seed", "4")],
)
def test_the_clean_pipeline_is_clean(args: tuple[str, ...], book: Path, tmp_path: Path) -> None:
    code, report, output = checked(book, tmp_path, PROGRAM.read_text(), *args)
    assert code == 0 and not report["findings"], output
