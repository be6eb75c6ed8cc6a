"""Measures whole runs: whether `--budget 1%` keeps to its share in wall time, and what the default budget costs."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
from pathlib import Path
from typing import Any

from benchmarks.overhead.step_times import TRAINCHECK, ratio, timed

STEPS, FEWEST, SECONDS = 2_000, 200, 40.0
"""Steps of a run; as many as take so many seconds where steps are long, but at least `FEWEST`."""
LENGTHS = (40, 400, 4_000)
"""Steps of the short and long runs."""
OF_LENGTHS = ("cnn", "accumulation")
"""Workloads whose short and long runs are measured."""

HEAD = """
Ratios with `--budget 1%`, over whole runs after their first 10 steps. The figure is the mean step, divided by the mean
step of the plain program in the same round. *Own meter* is the time that TrainCheck itself measured on the training
thread, with all steps of the run:

| workload | steps | mean of all steps | own meter |
|---|---|---|---|
"""
LENGTHS_HEAD = """
Short and long runs without `--budget`: TrainCheck watches the first 200 steps, and then as many as fit into 5 % of the
time:

| workload | {lengths} |
|---|{lines}|
"""


def steps_of(plain_step: float) -> int:
    """Steps of a run whose plain step takes so many seconds."""
    return max(FEWEST, min(STEPS, int(SECONDS / plain_step)))


def measure_budget(
    name: str, script: Path, book: Path, rounds: int, plain_step: float, scratch: Path
) -> dict[str, Any]:
    """The figures of one workload: `one_percent`, and `lengths` by the number of steps."""
    percent = ["--budget", "1%"]
    results: dict[str, Any] = {"one_percent": _measure(script, book, rounds, steps_of(plain_step), scratch, percent)}
    if name in OF_LENGTHS:
        results["lengths"] = {
            str(steps): _measure(script, book, rounds, steps, scratch, [])["ratio"] for steps in LENGTHS
        }
    return results


def _measure(script: Path, book: Path, rounds: int, steps: int, scratch: Path, budget: list[str]) -> dict[str, Any]:
    means: dict[str, list[float]] = {"plain": [], "run": []}
    metered: list[float] = []
    folder = scratch / "whole-run"
    words = [*budget, "--fail-on", "never", "--book", str(book), "-o", str(folder)]
    environ = {**os.environ, "BENCH_STEPS": str(steps)}
    for number in range(rounds):
        means["plain"].append(timed([sys.executable, str(script)], scratch, environ)["mean_step"])
        means["run"].append(timed([*TRAINCHECK, "run", *words, str(script)], scratch, environ)["mean_step"])
        metered.append(_own_meter(folder) / means["plain"][-1])
        shutil.rmtree(folder)
        ratios = f"{means['run'][-1] / means['plain'][-1]:.3f}x"
        run = " ".join([script.stem, *budget])
        print(f"{run}, {steps} steps, round {number}: {ratios}", file=sys.stderr, flush=True)
    return {
        "steps": steps,
        "ratio": ratio(means["run"], means["plain"]),
        "own_meter": round(1 + statistics.median(metered), 3),
    }


def _own_meter(folder: Path) -> float:
    """Seconds of a step that TrainCheck measured as its own on the training thread."""
    notes = [json.loads(path.read_text()) for path in folder.glob("process-*.json")]
    return sum(sum(note["cost"].values()) for note in notes) / max(1, sum(note["steps"] for note in notes))


def text(workloads: dict[str, Any]) -> str:
    """The tables of the page; empty for results that were measured before there were such runs."""
    rows = [
        f"| {name} | {result['steps']:,} | {_exact(result['ratio'])} | {result['own_meter']:.3f}x |\n"
        for name, workload in workloads.items()
        if (result := workload.get("one_percent"))
    ]
    lengths = [
        f"| {name} | {' | '.join(_exact(workload['lengths'][str(steps)]) for steps in LENGTHS)} |\n"
        for name, workload in workloads.items()
        if "lengths" in workload
    ]
    head = LENGTHS_HEAD.format(
        lengths=" | ".join(f"{steps:,} steps" for steps in LENGTHS), lines="|".join(["---"] * len(LENGTHS))
    )
    return (HEAD + "".join(rows) if rows else "") + (head + "".join(lengths) if lengths else "")


def _exact(figure: dict[str, float]) -> str:
    """A ratio with three digits: the share is one percent."""
    return f"{figure['median']:.3f}x ({figure['least']:.3f}-{figure['most']:.3f})"
