"""python -m benchmarks.verification [--rounds N] [--workload cnn]: cost of `traincheck run --verify-every`.

For each workload, runs of the plain program alternate with `traincheck run --packs none` that verifies one step in
`EVERY`, where the experiments take turns. The cost of a turn is the extra time of its steps and the next ones over
other steps of the run (medians), in units of a step. With `--verify-every 200`, the average cost is a two hundredth of
the mean turn.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from benchmarks.machine import machine
from benchmarks.overhead.__main__ import HERE, WORKLOADS
from benchmarks.overhead.step_times import TRAINCHECK, timed
from benchmarks.page import write_page
from traincheck.sources.verification.verified_steps import TURNS_FROM, Turn, VerifiedSteps

RESULTS = Path(__file__).resolve().parents[1] / "results" / "verification.json"
EVERY, TARGET = TURNS_FROM, 200
EARLY = 12
"""Steps that are not looked at: the first ones are verified in any case, and import and allocate."""
AFTER = 2
"""Steps from a verified one on that are compared with the others: what was put off comes in the next."""


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--workload", action="append", choices=WORKLOADS)
    chosen = options.parse_args()
    before = json.loads(RESULTS.read_text())["workloads"] if RESULTS.exists() and chosen.workload else {}
    with tempfile.TemporaryDirectory() as scratch:
        measured = {name: measure(name, chosen.rounds, Path(scratch)) for name in chosen.workload or WORKLOADS}
    results = {"machine": machine(), "every": EVERY, "target": TARGET, "workloads": {**before, **measured}}
    RESULTS.write_text(json.dumps(results, indent=2) + "\n")
    write_page()


def measure(name: str, rounds: int, scratch: Path) -> dict[str, Any]:
    """Return the cost of each turn in steps, and the ratio of other steps to plain ones, for one workload."""
    script = HERE / "workloads" / f"{name}.py"
    costs: dict[Turn, list[float]] = {turn: [] for turn in Turn}
    ratios, plain_steps = [], []
    for number in range(rounds):
        plain = timed([sys.executable, str(script)], scratch)["median_step"]
        folder = scratch / f"{name}-{number}"
        words = ["--packs", "none", "--verify-every", str(EVERY), "--budget", "1/1", "--fail-on", "never"]
        times = timed([*TRAINCHECK, "run", *words, "-o", str(folder), str(script)], scratch)["times"]
        report = json.loads((folder / "report.json").read_text())
        assert not report["findings"], f"{name} was told to be wrong"
        taken, other = excesses(times)
        for turn, steps in taken.items():
            costs[turn].append(statistics.median(steps) / other)
        ratios.append(other / plain)
        plain_steps.append(plain)
        print(
            f"{name} round {number}: {', '.join(f'{turn.name} {values[-1]:.2f}' for turn, values in costs.items())}",
            file=sys.stderr,
            flush=True,
        )
    mean_turn = statistics.mean(statistics.median(values) for values in costs.values())
    return {
        "rounds": rounds,
        "plain_step_ms": round(statistics.median(plain_steps) * 1e3, 3),
        "steps_each": {turn.name.lower(): spread(values) for turn, values in costs.items()},
        "other_steps": spread(ratios),
        "ratio": round(1 + mean_turn / TARGET, 4),
    }


def excesses(times: list[float]) -> tuple[dict[Turn, list[float]], float]:
    """By how much each verified step prolonged the run, by turn, and the median of other steps. The first step is 1."""
    verified = VerifiedSteps(EVERY)
    steps = [step for step in range(EARLY, len(times) + 2 - AFTER) if verified.includes(step)]
    near = {step + later for step in steps for later in range(AFTER)}
    other = statistics.median([taken for step, taken in enumerate(times, 1) if step > EARLY and step not in near])
    taken = defaultdict(list)
    for step in steps:
        (turn,) = (turn for turn in Turn if verified.includes(step, turn))
        taken[turn].append(sum(times[step - 1 : step - 1 + AFTER]) - AFTER * other)
    return taken, other


def spread(values: list[float]) -> dict[str, float]:
    """Median, least and most."""
    return {
        "median": round(statistics.median(values), 3),
        "least": round(min(values), 3),
        "most": round(max(values), 3),
    }


if __name__ == "__main__":
    main()
