"""Runs programs of the corpus: plain, to see that they train, and recorded, to learn from them."""

from __future__ import annotations

import hashlib
import re
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.corpus.skeleton import skeleton_of
from benchmarks.corpus.writing import write
from benchmarks.detection import warm
from benchmarks.detection.recordings import Program, digest_of_recording
from traincheck.inference.learn import tally_folder
from traincheck.inference.tally_files import write_tallies

TIMEOUT = 60
"""Seconds that a program may take; the slowest takes ten, recorded on a busy machine."""

MEASURED = re.compile(r"\b(loss|score)\b[\s:=,]*(-?\d+(?:\.\d+)?(?:e[+-]?\d+)?|-?nan|-?inf)", re.IGNORECASE)


@dataclass(frozen=True)
class CorpusProgram:
    """A program of the corpus in a folder of its own, and what it is made of."""

    seed: int
    parts: Mapping[str, str]
    program: Program
    epochs: int
    batch_size: int

    @property
    def text(self) -> str:
        """The source text."""
        return (self.program.home / self.program.script).read_text()


def lay_out(seeds: list[int], folder: Path, *, only: Mapping[str, str] | None = None) -> list[CorpusProgram]:
    """Write the programs of `seeds`, each into a folder of its own below `folder`."""
    programs = []
    for seed, chosen in write(seeds, folder / "texts", only=only).items():
        home = folder / f"{seed:05d}"
        home.mkdir(parents=True, exist_ok=True)
        kind = chosen.program or f"{chosen.loop}_{chosen.task}"
        script = f"{kind}_{chosen.precision.replace(' ', '-')}_{seed:05d}.py"  # themes of packs go by these names
        shutil.move(folder / "texts" / f"{seed:05d}.py", home / script)
        parts = {
            "program": chosen.program,
            "loop": chosen.loop or "own",
            "task": chosen.task,
            "optimizer": chosen.optimizer,
            "precision": chosen.precision,
            "data": chosen.data,
        }
        program = Program(f"{seed:05d}", home, script, (), chosen.ranks)
        programs.append(CorpusProgram(seed, parts, program, chosen.epochs, chosen.batch_size))
    return programs


@dataclass(frozen=True)
class PlainRun:
    """A run without TrainCheck: exit code, seconds, what was printed."""

    code: int
    seconds: float
    output: str

    @property
    def problem(self) -> str:
        """Why the run is no sound training, "" where it is: it ends well, and its loss falls or its score rises."""
        if self.code:
            return f"exit code {self.code}: {self.output.strip().splitlines()[-1:] or ''}"
        series: dict[str, list[float]] = {"loss": [], "score": []}
        for name, value in MEASURED.findall(self.output):
            series[name.lower()].append(float(value))
        loss, score = series["loss"], series["score"]
        if any(value != value or abs(value) == float("inf") for value in loss + score):
            return "a printed number is not finite"
        if len(loss) > 1 and min(loss[len(loss) // 2 :]) < loss[0]:
            return ""
        if len(score) > 1 and max(score[len(score) // 2 :]) > score[0]:
            return ""
        return f"neither loss nor score improves (loss {loss[:1]}..{loss[-1:]}, score {score[:1]}..{score[-1:]})"


def run_plain(program: Program, args: tuple[str, ...] = ()) -> PlainRun:
    """Run a program without TrainCheck, in a fork (see Note [Warm starts])."""
    began = time.perf_counter()
    code, output = warm.run_forked(
        program.script, (*program.args, *args), program.home, program.ranks, dict(program.env), lambda: None, TIMEOUT
    )
    return PlainRun(code, time.perf_counter() - began, output)


def record(
    program: Program, folder: Path, args: tuple[str, ...] = (), *, verify_every: int = 0, what: str = "all"
) -> tuple[int, str]:
    """Record a run into `folder` as `traincheck collect` does: exit code and what was printed.

    One of `verify_every` steps is verified, none with 0. `what` is the value of `--record`.
    """
    shutil.rmtree(folder, ignore_errors=True)
    words, args = (*program.target, *args), (*program.args, *args)
    return warm.collect(
        words, program.script, args, program.home, folder, program.ranks, dict(program.env), verify_every, what
    )


@dataclass(frozen=True)
class Learned:
    """A program that was recorded and tallied: its tally file, its event skeleton, the seconds it took."""

    name: str
    problem: str
    tally: Path
    skeleton: str
    seconds: float


def learn_from(program: CorpusProgram, folder: Path) -> Learned:
    """Record a program and tally it into `folder`; a tally of the same program and TrainCheck is taken as it is.

    The recording is removed: a thousand of them would fill a disk.
    """
    name = program.program.name
    tally, note = folder / f"{name}.tally", folder / f"{name}.made-of"
    made_of = hashlib.sha256(f"{program.text}\n{digest_of_recording()}".encode()).hexdigest()
    if note.exists() and note.read_text().split()[0] == made_of and tally.exists():
        _, skeleton, seconds = note.read_text().split()
        return Learned(name, "", tally, skeleton, float(seconds))
    began = time.perf_counter()
    run = folder / f"{name}.run"
    code, output = record(program.program, run)
    try:
        problem = PlainRun(code, 0.0, output).problem
        if problem:
            return Learned(name, problem, tally, "", 0.0)
        counted = tally_folder(run)
        skeleton = skeleton_of(run)
    finally:
        shutil.rmtree(run, ignore_errors=True)
    write_tallies([counted], tally)
    seconds = time.perf_counter() - began
    note.write_text(f"{made_of} {skeleton} {seconds:.2f}")
    return Learned(name, "", tally, skeleton, seconds)
