"""python -m benchmarks.replays [--rounds N] [--workload cnn]: what `traincheck run --replay-every` costs.

For each workload runs of the plain program, and of `traincheck run --packs none` with no step executed again after the
first ones and with one in `EVERY`, take turns. What an execution costs is what the source says that it took, divided by
how often and by the mean step of the plain program in the same round: in steps. At 100 it costs a hundredth of that.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.machine import machine
from benchmarks.overhead.__main__ import HERE, TRAINCHECK, WORKLOADS, timed
from benchmarks.page import write_page
from traincheck.trace.reader import read_windows

RESULTS = Path(__file__).resolve().parents[1] / "results" / "replays.json"
EVERY, NEVER, TARGET = 10, 1_000_000, 100


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--workload", action="append", choices=WORKLOADS)
    chosen = options.parse_args()
    before = json.loads(RESULTS.read_text())["workloads"] if RESULTS.exists() and chosen.workload else {}
    with tempfile.TemporaryDirectory() as scratch:
        found = {name: measure(name, chosen.rounds, Path(scratch)) for name in chosen.workload or WORKLOADS}
    told = {"machine": machine(), "rounds": chosen.rounds, "every": EVERY, "workloads": {**before, **found}}
    RESULTS.write_text(json.dumps(told, indent=2) + "\n")
    write_page()


def measure(name: str, rounds: int, scratch: Path) -> dict[str, Any]:
    """Of one workload: what an execution takes, in steps, and how much longer the mean step is with replays."""
    script = HERE / "workloads" / f"{name}.py"
    shares, ratios, plain_steps, times = [], [], [], 0
    for number in range(rounds):
        plain = timed([sys.executable, str(script)], scratch)["mean_step"]
        steps = {}
        for every in (NEVER, EVERY):
            folder = scratch / f"{name}-{every}-{number}"
            words = ["--packs", "none", "--record", "all", "--replay-every", str(every), "--fail-on", "never"]
            steps[every] = timed([*TRAINCHECK, "run", *words, "-o", str(folder), str(script)], scratch)["mean_step"]
        report = json.loads((folder / "report.json").read_text())
        assert not report["findings"], f"{name} was told to be wrong"
        times = repeated(folder)
        shares.append(report["cost"]["sources"]["replays"] / times / plain if times else 0.0)
        ratios.append(steps[EVERY] / steps[NEVER])
        plain_steps.append(plain)
        print(f"{name} round {number}: {shares[-1]:.2f} steps each, {times} times", file=sys.stderr, flush=True)
    return {
        "plain_step_ms": round(statistics.median(plain_steps) * 1e3, 3),
        "executions": times,
        "steps_each": spread(shares),
        "mean_step_ratio": spread(ratios),
        "ratio_at_100": round(1 + statistics.median(shares) / TARGET, 4),
    }


def repeated(folder: Path) -> int:
    """In how many steps something was executed again, all ranks together."""
    found = set()
    for events in sorted(folder.glob("events-*.arrows")):
        for window in read_windows(events):
            if any(reading.kind == "computation" for reading in window.readings):
                found.add((window.rank, window.process, window.index))
    return len(found)


def spread(values: list[float]) -> dict[str, float]:
    """Median, least and most."""
    return {
        "median": round(statistics.median(values), 3),
        "least": round(min(values), 3),
        "most": round(max(values), 3),
    }


if __name__ == "__main__":
    main()
