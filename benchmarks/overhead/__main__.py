"""python -m benchmarks.overhead [--rounds N] [--workload cnn] [--start-up | --budget-only | --device cuda].

It measures ratios to plain runs.

Each round runs every mode once, so a slow phase of the machine affects all of them. The figure of a mode is the median
over the rounds of its median step time, divided by that of the plain program in the same round. A second figure uses
the mean step time, because some short steps carry the work of several. --start-up measures only the time that the
commands add to a short program, see start_up.py. --budget-only measures only whole runs, with `--budget 1%` and by
default, see budget_runs.py; otherwise they follow the other modes. --device measures language models on an
accelerator, see device_models.py.

A ratio is worse if it is above the published one in every round. The command then ends with exit code 1, and publishes
nothing; --keep publishes nevertheless.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console

from benchmarks.machine import machine
from benchmarks.overhead.budget_runs import measure_budget
from benchmarks.overhead.device_models import DEFAULT, DEVICE_WORKLOADS, Extent, measure_device
from benchmarks.overhead.device_models import MODES as DEVICE_MODES
from benchmarks.overhead.start_up import start_up
from benchmarks.overhead.step_times import TRAINCHECK, ratio, timed, where
from benchmarks.overhead.worsened import table, worsened
from benchmarks.page import write_page
from traincheck.runtime.recording.retention import FARTHEST, IN_A_ROW
from traincheck.trace.reader import count_windows

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results" / "overhead.json"
MODES = ("plain", "collect", "run", "unwatched", "operations", "every 10")
"""`unwatched` times only unwatched steps. `operations` records for `traincheck compare`. The figure of `every 10` is
the mean step, because its median step is not watched."""
WORKLOADS = ("cnn", "gpt", "gpt_20m", "lstm", "gan", "accumulation", "hf_trainer", "ddp")
SAMPLED = {"run": "1", "unwatched": "1000000", "every 10": "10"}
TIMED_FROM = "10"
"""The first steps are not timed, see workloads/timing.py; they are watched."""


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--workload", action="append", choices=(*WORKLOADS, *DEVICE_WORKLOADS))
    options.add_argument("--start-up", action="store_true", help="only what the commands add to a short program")
    options.add_argument("--budget-only", action="store_true", help="only whole runs, with --budget 1%% and by default")
    options.add_argument("--start-rounds", type=int, default=15)
    options.add_argument("--device", help="measure language models on this device, such as cuda, and nothing else")
    options.add_argument("--mode", action="append", choices=DEVICE_MODES, help="with --device: only these modes")
    options.add_argument("--steps", type=int, default=40, help="with --device: steps that each process times")
    options.add_argument("--keep", action="store_true", help="publish the ratios even if one is worse")
    options.add_argument("--out", type=Path, help="with --device: result file (results/overhead-DEVICE.json)")
    chosen = options.parse_args()
    suitable = DEVICE_WORKLOADS if chosen.device else WORKLOADS
    if unsuitable := set(chosen.workload or ()) - set(suitable):
        options.error(f"no such workload here: {', '.join(unsuitable)}; choose from {', '.join(suitable)}")
    if chosen.device:
        extent = Extent(chosen.rounds, chosen.steps, chosen.mode or tuple(DEVICE_MODES))
        measure_device(chosen.device, chosen.workload or DEFAULT, extent, chosen.out)
        return 0
    before = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    published = before.get("workloads", {})
    results: dict[str, object] = {"workloads": {}, **before, "machine": machine()}
    worse: list[str] = []
    with tempfile.TemporaryDirectory() as scratch:
        if not chosen.start_up:
            names = chosen.workload or WORKLOADS
            measure_one = measure_budget_only if chosen.budget_only else measure
            measured = {name: measure_one(name, chosen.rounds, Path(scratch)) for name in names}
            if chosen.budget_only:  # the other figures stay
                measured = {name: {**published.get(name, {}), **result} for name, result in measured.items()}
            others = published if chosen.workload else {}  # they stay as they are
            results.update(rounds=chosen.rounds, workloads={**others, **measured})
            if not chosen.budget_only:
                Console().print(table(measured, published))
                worse = worsened(measured, published)
        if chosen.start_up or not (chosen.workload or chosen.budget_only):
            results["start_up"] = start_up(chosen.start_rounds, Path(scratch))
            print(f"start-up: {json.dumps(results['start_up'])}")
    for line in worse:
        print(f"worse: {line}")
    if worse and not chosen.keep:
        print("Nothing is published (--keep publishes it nevertheless).")
        return 1
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(results, indent=2) + "\n")
    write_page()
    return 0


def measure(name: str, rounds: int, scratch: Path) -> dict[str, object]:
    """Ratios of the modes for one workload; the book of `run` is learned from two recorded runs of it."""
    script = HERE / "workloads" / f"{name}.py"
    book, learned = learn(name, script, scratch)
    steps: dict[str, list[dict[str, float]]] = {mode: [] for mode in MODES}
    spent: dict[str, dict[str, object]] = {}
    for number in range(rounds):
        for mode in MODES:
            folder = scratch / f"{name}-{mode}-{number}".replace(" ", "-")
            steps[mode].append(timed(command(mode, script, book, folder), scratch))
            milliseconds = steps[mode][-1]["median_step"] * 1e3
            print(f"{name} {mode} round {number}: {milliseconds:.2f} ms a step", file=sys.stderr, flush=True)
            if mode in ("collect", "run") and not number:
                spent[mode] = where(folder)
            shutil.rmtree(folder, ignore_errors=True) if number else None
    plain_step = statistics.median(timing["median_step"] for timing in steps["plain"])
    return {
        "plain_step_ms": round(plain_step * 1e3, 3),
        **{f"{mode}_ratio": ratio_of(mode, steps, "median_step") for mode in MODES[1:5]},
        **{f"{mode}_mean_ratio": ratio_of(mode, steps, "mean_step") for mode in MODES[1:3]},
        "every_10_ratio": ratio_of("every 10", steps, "mean_step"),
        "invariants": sum(1 for _ in book.open()) - 1,
        "where": spent,
        "trace_bytes_per_step": {mode: bytes_per_step(scratch / f"{name}-{mode}-0") for mode in MODES[1:3]},
        "operations_bytes_per_step": bytes_per_step(scratch / f"{name}-operations-0", "operations"),
        "trace_bytes_later": bytes_later(scratch / f"{name}-run-0"),
        "infer_seconds": learned,
        **measure_budget(name, script, book, rounds, plain_step, scratch),
    }


def measure_budget_only(name: str, rounds: int, scratch: Path) -> dict[str, object]:
    """The figures of whole runs with `--budget 1%` for one workload."""
    script = HERE / "workloads" / f"{name}.py"
    book, _ = learn(name, script, scratch)
    plain_step = timed([sys.executable, str(script)], scratch)["median_step"]
    return measure_budget(name, script, book, rounds, plain_step, scratch)


def learn(name: str, script: Path, scratch: Path) -> tuple[Path, float]:
    """A book from two recorded runs, and the seconds that learning it took."""
    book, recorded = scratch / f"{name}.jsonl", []
    for number in range(2):
        recorded.append(scratch / f"{name}-{number}")
        timed([*TRAINCHECK, "collect", "-o", str(recorded[-1]), str(script)], scratch)
    began = time.perf_counter()
    run([*TRAINCHECK, "infer", *map(str, recorded), "-o", str(book)])
    return book, round(time.perf_counter() - began, 2)


def command(mode: str, script: Path, book: Path, folder: Path) -> list[str]:
    """The command line of a mode."""
    if mode == "plain":
        return [sys.executable, str(script)]
    if mode in ("collect", "operations"):
        words = ["--record", "operations"] if mode == "operations" else []
        return [*TRAINCHECK, "collect", *words, "-o", str(folder), str(script)]
    words = ["--budget", f"1/{SAMPLED[mode]},first={TIMED_FROM}"] if mode in SAMPLED else []
    return [*TRAINCHECK, "run", *words, "--fail-on", "never", "--book", str(book), "-o", str(folder), str(script)]


def ratio_of(mode: str, steps: dict[str, list[dict[str, float]]], figure: str) -> dict[str, float]:
    """Median and range of the ratios of a mode to the plain program, round by round."""
    return ratio([timing[figure] for timing in steps[mode]], [timing[figure] for timing in steps["plain"]])


def bytes_per_step(folder: Path, kind: str = "events") -> int:
    """Size of the files of a kind over the steps recorded."""
    notes = [json.loads(path.read_text()) for path in folder.glob("process-*.json")]
    return sum(path.stat().st_size for path in folder.glob(f"{kind}-*")) // max(1, sum(note["steps"] for note in notes))


def bytes_later(folder: Path) -> int:
    """Return the bytes that a step of a long checked run without findings adds to the event files.

    This is the size of a recorded pair of steps, divided by the distance of two pairs.
    """
    if not any(json.loads(path.read_text())["left_out"] for path in folder.glob("process-*.json")):
        return bytes_per_step(folder)  # each is recorded, as somebody reads along (of several ranks)
    files = list(folder.glob("events-*"))
    bytes_per_window = sum(path.stat().st_size for path in files) / max(1, sum(map(count_windows, files)))
    return round(IN_A_ROW * bytes_per_window / FARTHEST)


def run(command: list[str]) -> str:
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return done.stdout + done.stderr


if __name__ == "__main__":
    sys.exit(main())
