"""TrainCheck imports few modules before the program starts and before its first step.

A number here may fall. Where one rises, each run of each user starts later; that wants a reason. See Note [While the
program starts] in runtime/launching/launch.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from sample_rules import make_invariant
from traincheck.invariants.book import Book, write_book
from traincheck.runtime.launching.command_target import Target
from traincheck.runtime.launching.launch import launch
from traincheck.runtime.launching.run_settings import Settings

COMMAND = """
import json, os, pathlib, sys

def hear(event, told):
    if event == "subprocess.Popen":
        file = pathlib.Path(os.environ["TEST_IMPORTED"]) / "command.json"
        file.exists() or file.write_text(json.dumps(sorted(sys.modules)))

sys.addaudithook(hear)
from traincheck.cli.main import main
code = main(sys.argv[1:])
(pathlib.Path(os.environ["TEST_IMPORTED"]) / "end.json").write_text(json.dumps(sorted(sys.modules)))
sys.exit(code)
"""

TRAIN = """
import json, os, pathlib, sys
tell = lambda name: (pathlib.Path(os.environ["TEST_IMPORTED"]) / name).write_text(json.dumps(sorted(sys.modules)))
import torch
tell("attached.json")
parameter = torch.nn.Parameter(torch.ones(2))
optimizer = torch.optim.SGD([parameter], lr=0.1)
for _ in range(3):
    parameter.grad = torch.ones(2)
    optimizer.step()
tell("trained.json")
"""

REPORTS = ("rich.console", "jinja2", "traincheck.reporting.html", "traincheck.reporting.terminal")
FOR_THE_END = ("traincheck.checking.results", "traincheck.checking.findings", "traincheck.diagnoses")
OF_RANKS = (
    "traincheck.checking.rank_comparison",
    "traincheck.runtime.ranks.rank_client",
    "traincheck.runtime.ranks.rank_server",
)
LEARNING = ("traincheck.inference", "traincheck.testing", "ray", "fsspec")
OTHER_COMMANDS = tuple(
    f"traincheck.cli.commands.{name}" for name in ("check", "ctl", "diff", "doctor", "infer", "merge", "show")
)
PANDAS = ("pandas",)
"""pyarrow imports it when it is handed a list, which takes longer than all the rest."""

NOT_BEFORE_THE_START = (
    *("torch", "numpy", "pyarrow", "xxhash", "traincheck.relations", "traincheck.sources", "traincheck.checking"),
    *(*REPORTS, *OF_RANKS, *LEARNING, *OTHER_COMMANDS, *PANDAS),
)
NOT_IN_THE_PROGRAM = (
    *("typer", "click", "traincheck.cli", "traincheck.trace.reader", "traincheck.relations.api_arg.relation"),
    *(*REPORTS, *FOR_THE_END, *OF_RANKS, *LEARNING, *PANDAS),
)
MOST = {"collect": {"command": 61, "attached": 188}, "run": {"command": 74, "attached": 198}}
"""Modules of ours before the program starts, and in the program before its first step.

What a program is by its text has to be known before it starts: that is three modules, and three more decide which rules
are checked on it. Every run is checked by the rules about gradients that need no good run, whose relation (`Periodic`)
is fourteen modules; nearly all books and packs have rules of it anyway. Each source has a module of its own, also those
about graphs and evaluations. A recording of everything has four more, about what is computed without gradients. Bands
are one more, because verbs declare them. The results of verification are a part of each report: the words for them are
one module, and counting them in the program is two more. The source that waits for JAX is two modules, and the rule
about copies on devices is one. The marks of a program, the code version of a run and its configuration are one each.
A recording of everything also describes the values of functions and compares copies of models, which is three modules.
Copies and seeds have to be seen when a model is made, and autocast regions when they begin: each is one module.
"""


def imported(home: Path, *words: str, path: Sequence[Path] = ()) -> dict[str, list[str]]:
    """The modules that are imported at each of the moments, in a run of `words`."""
    (home / "command.py").write_text(COMMAND)
    (home / "train.py").write_text(TRAIN)
    write_book(Book((make_invariant(),)), home / "book.jsonl")
    (home / "imported").mkdir()
    search = os.pathsep.join([*map(str, path), *filter(None, [os.environ.get("PYTHONPATH")])])
    environ = {**os.environ, "TEST_IMPORTED": str(home / "imported"), "PYTHONPATH": search}
    command = [sys.executable, "command.py", *words, "train.py"]
    done = subprocess.run(command, cwd=home, env=environ, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "traincheck: " not in done.stderr.replace("traincheck: r", ""), done.stderr
    return {file.stem: json.loads(file.read_text()) for file in (home / "imported").iterdir()}


def among(modules: Sequence[str], unwanted: Sequence[str]) -> list[str]:
    """The unwanted packages and modules of which something is among `modules`."""
    return [name for name in unwanted if any(module == name or module.startswith(f"{name}.") for module in modules)]


def ours(modules: Sequence[str]) -> list[str]:
    return [module for module in modules if module.split(".")[0] == "traincheck"]


@pytest.mark.parametrize("words", [("collect",), ("run", "--book", "book.jsonl")], ids=lambda words: words[0])
def test_little_is_imported_before_the_program_starts_and_before_its_first_step(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    pandas = tmp_path / "path" / "pandas"
    pandas.mkdir(parents=True)
    (pandas / "__init__.py").touch()  # it can be imported
    modules = imported(tmp_path, *words, path=[pandas.parent])
    assert among(modules["command"], NOT_BEFORE_THE_START) == []
    assert among(modules["attached"], NOT_IN_THE_PROGRAM) == []
    assert among(modules["trained"], NOT_IN_THE_PROGRAM) == []
    counted = {moment: len(ours(modules[moment])) for moment in ("command", "attached")}
    assert all(counted[moment] <= most for moment, most in MOST[words[0]].items()), counted


def test_report_modules_are_imported_at_the_end(tmp_path: Path) -> None:
    modules = imported(tmp_path, "run", "--book", "book.jsonl")
    assert among(modules["end"], (*REPORTS, *FOR_THE_END)) == [*REPORTS, *FOR_THE_END]
    # What several ranks have written is read in Arrow; one rank says all that the report tells in files of its own.
    assert among(modules["end"], ("torch", "numpy", "pyarrow", *LEARNING)) == []


def test_a_broken_package_prevents_the_start(tmp_path: Path) -> None:
    package = tmp_path / "path" / "odd-1.0.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: odd\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[traincheck.relations]\nEventContain = odd.place:Odd\n")
    (tmp_path / "train.py").write_text("print('started')")
    write_book(Book((make_invariant(),)), tmp_path / "book.jsonl")
    search = os.pathsep.join(filter(None, [str(package.parent), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-m", "traincheck", "run", "--book", "book.jsonl", "train.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": search},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "odd.place:Odd claim it" in done.stderr


def test_an_internal_failure_is_reported_and_the_program_continues(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text("import time; time.sleep(0.2); print('ran'); raise SystemExit(4)")

    def during_run() -> AbstractContextManager[object]:
        raise OSError("no more memory")

    target = Target.parse([str(tmp_path / "train.py")])
    status = launch(target, Settings(str(tmp_path), "collect"), os.environ, during_run)
    captured = capfd.readouterr()
    assert (status.code, captured.out) == (4, "ran\n")
    assert captured.err == "traincheck: OSError: no more memory (the program continues)\n"
