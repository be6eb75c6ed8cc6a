"""Runs the programs of a package: plain, checked with the packs, and checked with their own good runs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.command_cost import TRAINCHECK
from benchmarks.public import output
from benchmarks.public.running import QUIET, TIMED_OUT
from benchmarks.stacks.lists import HERE, PROGRAMS, Package, Program, SilentError
from traincheck.checking.findings import group
from traincheck.checking.outcome_files import (
    FOLLOWED_FILES,
    PROCESS_FILES,
    RANK_FILES,
    read_comparison,
    read_outcome,
)
from traincheck.invariants.book import read_book
from traincheck.invariants.builtin_rules import of_training
from traincheck.invariants.packs import SHIPPED as PACK_FOLDER
from traincheck.relations.consistent.builtin_rules import of_verification

SUPPORT = HERE / "support"
GOOD_SEEDS, SEED = (11, 12, 13), 14
"""Seeds of the accepted runs, and the seed of all other runs."""
PACKS, OWN = "packs", "own"
VERIFY = ("--verify-every", "5")
"""Added to the runs that are judged by their findings; runs whose time is measured go without."""
LEAST_INTERVALS = 5
"""Times between training steps that a median needs."""


class Failed(Exception):
    """A run that should succeed did not; the message has the end of its output."""


class Ran(NamedTuple):
    """A finished run: exit code, the normalised lines of its output, and processor seconds between its steps."""

    code: int
    lines: list[str]
    intervals: list[float]


def measure(package: Package, scratch: Path, rounds: int) -> dict[str, Any]:
    """Run all programs and errors of the package, and return the figures. Raises Failed."""
    return {
        "verified": True,
        "programs": {program.id: _program(program, scratch / program.id, rounds) for program in package.programs},
        "errors": {error.id: _error(error, _named(package, error.program), scratch) for error in package.errors},
    }


def _named(package: Package, name: str) -> Program:
    return next(program for program in package.programs if program.id == name)


def _program(program: Program, home: Path, rounds: int) -> dict[str, Any]:
    """The figures of the program as it is; its folder holds the library of its good runs afterwards."""
    shutil.rmtree(home, ignore_errors=True)
    work = {book: _lay_out(home / book) for book in (PACKS, OWN)}
    plain, observed = [], []
    for _ in range(rounds):
        plain.append(_plain(program, work[PACKS]))
        observed.append(_observed(program, work[PACKS], "clean"))
    unsteady: output.Unsteady = {}
    if any(ran.lines != plain[0].lines for ran in observed):
        plain.append(_plain(program, work[PACKS]))
        unsteady = output.merge_unsteady(output.changing_numbers(plain[0].lines, ran.lines) for ran in plain[1:])
    compared = [output.compare(plain[0].lines, ran.lines, unsteady) for ran in observed]
    _accept_good_runs(program, work[OWN])
    verified = _observed(program, work[OWN], "clean", options=VERIFY)
    compared.append(output.compare(plain[0].lines, verified.lines, unsteady))
    packs = report_of(work[PACKS] / "runs" / "clean")
    findings = findings_by_book(work[OWN] / "runs" / "clean")
    seen = {_key(finding) for finding in findings[PACKS]}
    findings[PACKS] += [new for new in map(in_short, packs["findings"]) if _key(new) not in seen]
    worst = min(compared, key=lambda comparison: comparison.equal)
    return {
        "equal": worst.equal,
        **({} if worst.equal else {"expected": worst.expected[:200], "got": worst.got[:200]}),
        "lines": worst.lines,
        "steps": packs.get("counts", {}).get("steps", 0),
        "held": packs.get("counts", {}).get("passed", 0),
        "findings": findings,
        "step_ms": _milliseconds(plain),
        "observed_step_ms": _milliseconds(observed),
    }


def _error(error: SilentError, program: Program, scratch: Path) -> dict[str, Any]:
    """The findings that the program has with the error and not without, by the book that has their rules."""
    home = scratch / program.id
    ran = _observed(program, home / OWN, error.id, error, VERIFY)
    clean, found = (findings_by_book(home / OWN / "runs" / name) for name in ("clean", error.id))
    known = {book: {_key(finding) for finding in clean[book]} for book in (PACKS, OWN)}
    plain = output.normalised((home / PACKS / "logs" / "plain.out").read_text(encoding="utf-8", errors="replace"))
    return {
        **{book: [finding for finding in found[book] if _key(finding) not in known[book]] for book in (PACKS, OWN)},
        "changes": ran.lines != plain,
    }


def _key(finding: Mapping[str, Any]) -> tuple[object, ...]:
    return finding["severity"], finding["diagnosis"], tuple(finding["variables"])


def _lay_out(work: Path) -> Path:
    """Copy the programs, as a project of its own."""
    shutil.copytree(PROGRAMS, work, ignore=shutil.ignore_patterns("__pycache__"))
    (work / "pyproject.toml").write_text('[project]\nname = "training"\nversion = "1"\n')
    (work / "logs").mkdir()
    return work


def _plain(program: Program, work: Path) -> Ran:
    return _run([sys.executable, *_words(program, SEED)], program, work, "plain", timed=True)


def _observed(
    program: Program, work: Path, name: str, error: SilentError | None = None, options: Sequence[str] = ()
) -> Ran:
    """Run the program under `traincheck run`: with the packs, and with the good runs that were accepted in `work`."""
    shutil.rmtree(work / "runs" / name, ignore_errors=True)
    start = _under_traincheck(program, _words(program, SEED, error))
    words = [*TRAINCHECK, "run", "--fail-on", "never", *options, "-o", f"runs/{name}", *start]
    return _run(words, program, work, name, error, timed=not options)


def _accept_good_runs(program: Program, work: Path) -> None:
    folders = [f"runs/good{seed}" for seed in GOOD_SEEDS]
    for seed, folder in zip(GOOD_SEEDS, folders, strict=True):
        words = [*TRAINCHECK, "collect", "-o", folder, *_under_traincheck(program, _words(program, seed))]
        _run(words, program, work, f"good{seed}")
    words = [*TRAINCHECK, "accept", *folders, "--reason", "good runs of the benchmark"]
    _run(words, program, work, "accept")


def _words(program: Program, seed: int, error: SilentError | None = None) -> list[str]:
    words = [program.script, *program.args, *(error.args if error else ()), "--seed", str(seed)]
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={program.ranks}"]
    return [*launcher, *words] if program.ranks else words


def _under_traincheck(program: Program, words: Sequence[str]) -> list[str]:
    """The words after the options of TrainCheck: a launcher of ranks is a command."""
    return ["--", sys.executable, *words] if program.ranks else list(words)


def _run(
    words: Sequence[str],
    program: Program,
    work: Path,
    name: str,
    error: SilentError | None = None,
    *,
    timed: bool = False,
) -> Ran:
    """Run a command in `work`, in a process group that is killed after the program's timeout. Raises Failed.

    A run that is `timed` has a hook of all optimizers, which might explain an update: no update in it is verified.
    """
    log, times = work / "logs" / name, work / "logs" / f"{name}.times"
    times.unlink(missing_ok=True)
    path = os.pathsep.join(filter(None, (str(SUPPORT), os.environ.get("PYTHONPATH", ""))))
    edits = json.dumps([vars(edit) for edit in error.edits]) if error else ""
    cache = {"HF_HOME": str(work / "cache"), "TORCH_EXTENSIONS_DIR": str(work.parents[1] / "extensions")}
    environ = {key: value for key, value in os.environ.items() if not key.startswith("TRAINCHECK_")}
    # DeepSpeed compiles a part of itself with the ninja of the environment.
    tools = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))
    environ |= {**QUIET, **cache, "PATH": tools, "PYTHONPATH": path}
    environ |= {"STACKS_EDITS": edits, "STACKS_TIMES": str(times) if timed else ""}
    with log.with_suffix(".out").open("wb") as out, log.with_suffix(".err").open("wb") as err:
        process = subprocess.Popen(
            words, cwd=work, env=environ, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
        )
        try:
            code = process.wait(program.timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            code = TIMED_OUT
    if code:
        end = log.with_suffix(".err").read_text(encoding="utf-8", errors="replace")[-1500:]
        raise Failed(f"{program.id}, {name}: exit code {code}, see {log}.err\n{end}")
    stamps = json.loads(times.read_text()) if times.exists() else []
    lines = output.normalised(log.with_suffix(".out").read_text(encoding="utf-8", errors="replace"))
    return Ran(code, lines, [after - before for before, after in pairwise(stamps)])


def _milliseconds(runs: Sequence[Ran]) -> float | None:
    """The median processor time between two steps, of all threads of a process, in the run that needed least."""
    medians = [statistics.median(ran.intervals) for ran in runs if len(ran.intervals) >= LEAST_INTERVALS]
    return round(1e3 * min(medians), 2) if medians else None


def report_of(run: Path) -> dict[str, Any]:
    """Return the report of a run folder. Raises Failed where there is none."""
    path = run / "report.json"
    if not path.exists():
        raise Failed(f"{run} has no report")
    return dict(json.loads(path.read_text(encoding="utf-8")))


def findings_by_book(run: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the findings of a run by the rules that need no run of its own, and by those of its good runs alone."""
    deployed = read_book(run / "book.jsonl")
    in_packs = {rule.id for path in PACK_FOLDER.glob("*.jsonl") for rule in read_book(path).invariants}
    in_packs |= {rule.id for rule in (*of_training(compares_ranks=True), *of_verification())}
    found = {}
    for name in (PACKS, OWN):
        rules = tuple(rule for rule in deployed.invariants if (rule.id in in_packs) == (name == PACKS))
        book = replace(deployed, invariants=rules)
        outcomes = [read_outcome(path, book) for path in run.glob(PROCESS_FILES)]
        compared = [path for files in (RANK_FILES, FOLLOWED_FILES) for path in run.glob(files)]
        outcomes += [read_comparison(path, book).comparison.outcome for path in compared]
        findings = group(violation for outcome in outcomes for violation in outcome.violations)
        found[name] = [in_short(asdict(finding)) for finding in findings]
    return found


def in_short(finding: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of a finding that the results keep."""
    keys = ("severity", "diagnosis", "title", "step", "expected", "observed")
    return {**{key: finding[key] for key in keys}, "variables": list(finding["variables"][:3])}
