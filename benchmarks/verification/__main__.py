"""python -m benchmarks.replays [--rounds N] [--workload cnn]: cost of `traincheck run --verify-every`.

For each workload, runs of the plain program alternate with `traincheck run --packs none` that replays one step in
`EVERY`. The cost of a replay is the extra time of its step and the next one over other steps of the run (medians), in
units of a step. With `--verify-every 100`, the average cost is a hundredth of it.
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
from traincheck.vocab.replayed_computations import KIND

RESULTS = Path(__file__).resolve().parents[1] / "results" / "replays.json"
EVERY, TARGET = 10, 100
EARLY = 12
"""Steps that are not looked at: the first ones are executed again in any case, and import and allocate."""
AFTER = 2
"""Steps from an execution on that are compared with the others: what was put off comes in the next."""


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--workload", action="append", choices=WORKLOADS)
    chosen = options.parse_args()
    before = json.loads(RESULTS.read_text())["workloads"] if RESULTS.exists() and chosen.workload else {}
    with tempfile.TemporaryDirectory() as scratch:
        measured = {name: measure(name, chosen.rounds, Path(scratch)) for name in chosen.workload or WORKLOADS}
    results = {"machine": machine(), "every": EVERY, "workloads": {**before, **measured}}
    RESULTS.write_text(json.dumps(results, indent=2) + "\n")
    write_page()


def measure(name: str, rounds: int, scratch: Path) -> dict[str, Any]:
    """Return the cost of a replay in steps, and the ratio of other steps to plain ones, for one workload."""
    script = HERE / "workloads" / f"{name}.py"
    shares, ratios, plain_steps, executions = [], [], [], 0
    for number in range(rounds):
        plain = timed([sys.executable, str(script)], scratch)["median_step"]
        folder = scratch / f"{name}-{number}"
        words = ["--packs", "none", "--record", "all", "--verify-every", str(EVERY), "--fail-on", "never"]
        times = timed([*TRAINCHECK, "run", *words, "-o", str(folder), str(script)], scratch)["times"]
        report = json.loads((folder / "report.json").read_text())
        assert not report["findings"], f"{name} was told to be wrong"
        taken, other = excesses(times, executed(folder))
        executions += len(taken)
        shares.append(statistics.median(taken) / other)
        ratios.append(other / plain)
        plain_steps.append(plain)
        print(f"{name} round {number}: {shares[-1]:.2f} steps each, {len(taken)} times", file=sys.stderr, flush=True)
    return {
        "rounds": rounds,
        "plain_step_ms": round(statistics.median(plain_steps) * 1e3, 3),
        "executions": executions,
        "steps_each": spread(shares),
        "other_steps": spread(ratios),
        "ratio_at_100": round(1 + statistics.median(shares) / TARGET, 4),
    }


def excesses(times: list[float], steps: set[int]) -> tuple[list[float], float]:
    """By how much each execution in these steps (the first is 1) prolonged the run, and the median of other steps."""
    near = {step + later for step in steps for later in range(AFTER)}
    other = statistics.median([taken for step, taken in enumerate(times, 1) if step > EARLY and step not in near])
    late = [step for step in sorted(steps) if EARLY < step <= len(times) + 1 - AFTER]
    return [sum(times[step - 1 : step - 1 + AFTER]) - AFTER * other for step in late], other


def executed(folder: Path) -> set[int]:
    """The steps in which the first rank executed something again."""
    steps = set()
    for events in sorted(folder.glob("events-*.arrows")):
        for window in read_windows(events):
            if window.rank == 0 and any(reading.kind == KIND for reading in window.readings):
                steps.add(window.step)
    return steps


def spread(values: list[float]) -> dict[str, float]:
    """Median, least and most."""
    return {
        "median": round(statistics.median(values), 3),
        "least": round(min(values), 3),
        "most": round(max(values), 3),
    }


if __name__ == "__main__":
    main()
