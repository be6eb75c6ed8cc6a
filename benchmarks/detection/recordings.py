"""Recordings of programs by `traincheck collect`, made once for each state of a program and of TrainCheck."""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.detection import warm
from benchmarks.detection.cases import BUGGY, CLEAN, Case

ROOT = Path(__file__).resolve().parents[2]
SRC = ROOT / "src" / "traincheck"
TORCHRUN = str(Path(sys.executable).with_name("torchrun"))
TIMEOUT = 900
"""Seconds for one recording; the slowest takes 20 on two idle cores."""


class ProgramFailed(Exception):
    """A program of the benchmark, which has to end well, did not."""

    def __init__(self, name: str, output: str) -> None:
        super().__init__(name, output)

    def __str__(self) -> str:
        name, output = self.args
        return f"{name} failed:\n{output[-4000:]}"


@dataclass(frozen=True)
class Program:
    """A script in a separate folder, its arguments, and its name in the benchmark."""

    name: str
    home: Path
    script: str
    args: tuple[str, ...] = ()
    ranks: int = 1
    env: tuple[tuple[str, str], ...] = ()

    @property
    def target(self) -> tuple[str, ...]:
        """The words that name it to `traincheck collect`."""
        launcher = ("--", TORCHRUN, "--standalone", "--nproc-per-node", str(self.ranks)) if self.ranks > 1 else ()
        return (*launcher, self.script, *self.args)

    @property
    def digest(self) -> str:
        """Tells the files of the program, its arguments and environment, as text."""
        hasher = hashlib.sha256(repr((self.target[1:], self.env)).encode())
        for file in sorted(self.home.rglob("*.py")):
            hasher.update(file.name.encode() + file.read_bytes())
        return hasher.hexdigest()


@dataclass(frozen=True)
class Recording:
    """A run folder and the seconds that it took to record."""

    name: str
    folder: Path
    seconds: float


def of_case(case: Case, variant: str, args: Sequence[str], home: Path, name: str) -> Program:
    """The program of a case, laid out in `home`."""
    shutil.rmtree(home, ignore_errors=True)
    case.lay_out(variant, home)
    return Program(name, home, case.script, (*case.args, *args), case.ranks, case.env)


def of_example(script: Path, ranks: int, home: Path) -> Program:
    """An example, in a folder of its own."""
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    shutil.copy(script, home)
    return Program(script.stem, home, script.name, (), ranks)


def programs_of(case: Case, runs: Path) -> dict[str, Program]:
    """The five programs of a case: clean, buggy, and three earlier configurations of the clean one."""
    home = runs / case.folder.name
    programs = {
        variant: of_case(case, variant, (), home / f"{variant}.program", f"{case.id} {variant}")
        for variant in (CLEAN, BUGGY)
    }
    for number, args in enumerate(case.twins, 1):
        which = f"twin{number}"
        programs[which] = of_case(case, CLEAN, args, home / f"{which}.program", f"{case.id} {which}")
    return programs


def record(program: Program, folder: Path, *, reuse: bool, cold: bool = False) -> Recording:
    """Record `program` into `folder`, or reuse the recording if program and TrainCheck are unchanged.

    With `reuse`, TrainCheck may have changed. With `cold`, the command line is used, see Note [Warm starts]. Raises
    ProgramFailed.
    """
    note = folder.with_name(folder.name + ".made-of")
    made_of = [program.digest, digest_of_recording()]
    if note.exists() and (folder / "run.json").exists():
        note_fields = note.read_text().split()
        if note_fields[:2] == made_of or (reuse and note_fields[:1] == made_of[:1]):
            return Recording(program.name, folder, float(note_fields[2]))
    note.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    began = time.perf_counter()
    if cold:
        code, output = _by_command_line(program, folder)
    else:
        code, output = warm.collect(
            program.target, program.script, program.args, program.home, folder, program.ranks, dict(program.env)
        )
    seconds = time.perf_counter() - began
    if code:
        raise ProgramFailed(program.name, output)
    note.write_text(" ".join([*made_of, f"{seconds:.2f}"]))
    return Recording(program.name, folder, seconds)


def _by_command_line(program: Program, folder: Path) -> tuple[int, str]:
    command = (sys.executable, "-m", "traincheck", "collect", "-o", str(folder.resolve()), *program.target)
    environ = {**os.environ, "OMP_NUM_THREADS": "1", **dict(program.env)}
    try:
        done = subprocess.run(command, cwd=program.home, capture_output=True, text=True, timeout=TIMEOUT, env=environ)
    except subprocess.TimeoutExpired:
        return 1, f"it did not end within {TIMEOUT} s"
    return done.returncode, done.stdout + done.stderr


AFTER_RECORDING = frozenset(
    ("checking", "cli", "demo", "diagnoses", "integrations", "invariants", "packs", "reporting", "sdc", "testing")
)
"""The packages that change neither what is recorded nor how it is counted."""

COUNTING = frozenset(("contexts.py", "tally.py", "tally_files.py", "tally_runs.py"))
"""The modules of `inference` that count; the others judge what was counted."""


@functools.cache
def digest_of_traincheck() -> str:
    """A digest of all of TrainCheck."""
    return _digest_of(SRC.rglob("*.py"))


@functools.cache
def digest_of_recording() -> str:
    """A digest of the part of TrainCheck that records and counts; recordings and tallies depend on nothing else."""
    return _digest_of(file for file in SRC.rglob("*.py") if _is_of_recording(file.relative_to(SRC).parts))


def _is_of_recording(parts: tuple[str, ...]) -> bool:
    return parts[0] not in AFTER_RECORDING and (parts[0] != "inference" or parts[-1] in COUNTING)


def _digest_of(files: Iterable[Path]) -> str:
    hasher = hashlib.sha256()
    for file in sorted(files):
        hasher.update(file.read_bytes())
    return hasher.hexdigest()
