"""Runs a program plain and under `traincheck run`, and compares the two."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.command_cost import TRAINCHECK, CommandCost
from benchmarks.public import output
from benchmarks.public.checkout import Missing, generate, lay_out
from benchmarks.public.programs import Program

SUPPORT = Path(__file__).parent / "support"
TIMED_OUT = 124
"""The exit code of a run that took longer than the program's timeout."""
QUIET = {
    "CUDA_VISIBLE_DEVICES": "",
    "HF_DATASETS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_OFFLINE": "1",
    "MPLBACKEND": "Agg",
    "NO_COLOR": "1",
    "OMP_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
    "SDL_VIDEODRIVER": "dummy",
    "TOKENIZERS_PARALLELISM": "false",
    "TRANSFORMERS_OFFLINE": "1",
    "WANDB_MODE": "disabled",
}
"""The environment of every run: no network, no accelerator, no window, one thread."""


class Ran(NamedTuple):
    """A finished run: exit code, what it took, and the normalised lines of what it printed."""

    code: int
    took: CommandCost
    out: list[str]
    err: list[str]


LEAST_COST = 0.05
"""Seconds of a source that are worth a word."""


def measure(program: Program, home: Path, scratch: Path, rounds: int = 1, plain_only: bool = False) -> dict[str, Any]:
    """Run the program plain and observed by turns, each in a fresh copy at the same path, and compare.

    If the outputs differ, or for more rounds, it runs plain again; differences between plain runs are ignored. `home`
    is the checkout, `scratch` a folder for copies and logs, which stay there. Raises Missing.
    """
    scratch_folder = scratch / program.id
    generate(program, scratch_folder / "generated")
    plain, observed = [_run(program, home, scratch_folder, "plain-1")], []
    if plain[0].code or plain_only:
        return _figures(program, plain, [], {}, scratch_folder)
    for number in range(rounds):
        observed.append(_run(program, home, scratch_folder, "observed"))
        compared = _compared(program, plain, observed)
        if rounds > 1 or not compared["equal"] or compared["lost_stderr"]:
            plain.append(_run(program, home, scratch_folder, f"plain-{number + 2}"))
    return _figures(program, plain, observed, _report(scratch_folder / "run"), scratch_folder)


def words_of(program: Program) -> list[str]:
    """The command of the program, as its user would type it after `python`."""
    if not program.ranks:
        return list(program.command)
    return ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={program.ranks}", *program.command]


def observed_words(program: Program, run: Path) -> list[str]:
    """The command under `traincheck run`, with the packs alone; findings leave the exit code as it is."""
    start = [sys.executable, *words_of(program)] if program.ranks else words_of(program)
    return [*TRAINCHECK, "run", "--fail-on", "never", "-o", str(run), *(["--"] if program.ranks else []), *start]


def _run(program: Program, home: Path, scratch_folder: Path, kind: str) -> Ran:
    work = lay_out(home, program, scratch_folder / "work", scratch_folder / "generated")
    environ = _environment(program, scratch_folder)
    for number, words in enumerate(program.before):
        prepared = _timed([sys.executable, *words], work, environ, scratch_folder / f"before-{number}", program.timeout)
        if prepared.code:
            raise Missing(f"{program.id}: {' '.join(words)} failed, see {scratch_folder}/before-{number}.err")
    words = [sys.executable, *words_of(program)]
    if kind == "observed":
        shutil.rmtree(scratch_folder / "run", ignore_errors=True)
        words = observed_words(program, scratch_folder / "run")
    return _timed(words, work, environ, scratch_folder / kind, program.timeout)


def _environment(program: Program, scratch_folder: Path) -> dict[str, str]:
    cache = scratch_folder / "cache"
    shutil.rmtree(cache, ignore_errors=True)
    cache.mkdir(parents=True)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TRAINCHECK_")}
    own = {name: value.replace("{copy}", str(scratch_folder / "work")) for name, value in program.env}
    path = os.pathsep.join(filter(None, (str(SUPPORT), own.pop("PYTHONPATH", ""), os.environ.get("PYTHONPATH", ""))))
    caches = {"HF_HOME": str(cache / "hf"), "TORCH_HOME": str(cache / "torch"), "XDG_CACHE_HOME": str(cache)}
    caches["MPLCONFIGDIR"] = str(scratch_folder.parent / "matplotlib")  # its list of fonts takes many seconds to build
    return {**inherited, **QUIET, **caches, **own, "PYTHONPATH": path}


def _timed(words: list[str], work: Path, environ: dict[str, str], log: Path, timeout: int) -> Ran:
    """Run the command; a process group of its own, which is killed after `timeout` seconds."""
    out, err = log.with_name(log.name + ".out"), log.with_name(log.name + ".err")
    expired = threading.Event()
    with out.open("wb") as stdout, err.open("wb") as stderr:
        began = time.perf_counter()
        process = subprocess.Popen(
            words, cwd=work, env=environ, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, start_new_session=True
        )

        def kill() -> None:
            expired.set()
            os.killpg(process.pid, signal.SIGKILL)

        timer = threading.Timer(timeout, kill)
        timer.start()
        _, status, used = os.wait4(process.pid, 0)
        timer.cancel()
        seconds = time.perf_counter() - began
    process.returncode = TIMED_OUT if expired.is_set() else os.waitstatus_to_exitcode(status)
    took = CommandCost(seconds, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in (out, err)]
    return Ran(process.returncode, took, *(output.normalised(text) for text in texts))


def _report(run: Path) -> dict[str, Any]:
    path = run / "report.json"
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}


def _figures(
    program: Program, plain: list[Ran], observed: list[Ran], report: dict[str, Any], scratch_folder: Path
) -> dict[str, Any]:
    """Return the figures for the page and the verdict."""
    figures: dict[str, Any] = {
        "exit_plain": next((ran.code for ran in plain if ran.code), 0),
        "seconds_plain": round(min(ran.took.seconds for ran in plain), 2),
        "megabytes_plain": round(max(ran.took.megabytes for ran in plain)),
    }
    if not observed:
        return {**figures, "last_lines": _tail(scratch_folder / "plain-1.err")}
    figures |= {
        "exit_observed": next((ran.code for ran in observed if ran.code), 0),
        "seconds_observed": round(min(ran.took.seconds for ran in observed), 2),
        "megabytes_observed": round(max(ran.took.megabytes for ran in observed)),
        "output": _compared(program, plain, observed),
        "reported": bool(report),
        "steps": report.get("counts", {}).get("steps", 0),
        "windows": report.get("counts", {}).get("windows", 0),
        "findings": [_finding(finding) for finding in report.get("findings", ())],
        "cost": cost_of(report),
    }
    if figures["exit_observed"]:
        figures["last_lines"] = _tail(scratch_folder / "observed.err")
    return figures


def _compared(program: Program, plain: list[Ran], observed: list[Ran]) -> dict[str, Any]:
    """The observed runs and the first plain one; what differs between plain runs is not compared, nor is the order of
    lines of several processes."""
    if program.ranks or "multiprocess" in program.tags:
        known_lines = {line for ran in (*plain, *observed) for line in ran.out}
        plain, observed = (
            [ran._replace(out=output.unjoined(ran.out, known_lines)) for ran in runs] for runs in (plain, observed)
        )
    first = plain[0]
    ignored = output.merge_unsteady(output.changing_numbers(first.out, ran.out) for ran in plain[1:])
    ignored_err = output.merge_unsteady(output.changing_numbers(first.err, ran.err) for ran in plain[1:])
    results = [output.compare(first.out, ran.out, ignored) for ran in observed]
    worst = min(results, key=lambda comparison: comparison.equal)
    lost = [line for ran in observed for line in output.lost(first.err, ran.err, ignored_err)]
    warnings = [line for ran in observed for line in output.new_warnings(first.err, ran.err)]
    comparison = worst._asdict()
    kept = output.steady(first.err, ignored_err)
    comparison |= {"compared": worst.compared + len(kept), "lines": worst.lines + len(first.err)}
    return {**comparison, "lost_stderr": lost[:5], "new_stderr": warnings[:5]}


def cost_of(report: dict[str, Any]) -> dict[str, float]:
    """Return seconds by TrainCheck's own meter: by source on training threads, and `background` for the others."""
    cost = report.get("cost") or {}
    seconds = {**cost.get("sources", {}), "background": sum(cost.get("background", {}).values())}
    return {name: round(took, 2) for name, took in seconds.items() if took >= LEAST_COST}


def _finding(finding: dict[str, Any]) -> dict[str, Any]:
    return {
        **{key: finding[key] for key in ("severity", "diagnosis", "title", "step", "last_step", "times", "ranks")},
        "site": _file_and_line(finding.get("site") or {}),
        "variables": list(finding["variables"][:3]),
    }


def _tail(path: Path) -> list[str]:
    """The last lines of a log, without the paths of this machine."""
    return [line[-300:] for line in output.normalised(path.read_text(encoding="utf-8", errors="replace"))[-3:]]


def _file_and_line(site: dict[str, Any]) -> str:
    """Return the file and the line; paths of installed files start at the package."""
    if not site:
        return ""
    file = re.sub(r"^/.*/(?:site-packages|work)/", "", site["file"])
    return f"{Path(file).name if file.startswith('/') else file}:{site['line']}"
