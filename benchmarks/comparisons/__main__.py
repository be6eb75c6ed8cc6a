"""python -m benchmarks.comparisons [--pairs 40] [--jobs 2]: does `traincheck compare` name where an error begins?

A pair is a program of the corpus and a mutant of it, by an operator that is not reserved, see pairs.py. Each clean
program is also compared with itself. Other pairs are a small GPT and a port of it, right or with an error (ports.py).
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.comparisons.pairs import COUNTED, Pair, compare_program
from benchmarks.comparisons.ports import PortResult, compare_ports
from benchmarks.corpus.__main__ import results
from benchmarks.corpus.running import lay_out
from benchmarks.detection.recordings import ROOT
from benchmarks.detection.warm import warm_pool
from benchmarks.machine import machine
from benchmarks.mutants.__main__ import FIRST_SEED, seeds_of
from benchmarks.mutants.operator import all_operators, reserved
from benchmarks.mutants.plan import plan_mutants

RESULTS = ROOT / "benchmarks" / "results" / "comparisons.json"
PER_PROGRAM = 2
SKIPPED = "pipeline,sac,td3,moco,packed_sequences,reinforce"
"""Loops that take several times as long as others."""


def main() -> int:
    """Compare the pairs, and write the figures."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--pairs", type=int, default=40)
    options.add_argument("--jobs", type=int, default=2)
    options.add_argument("--keep", action="store_true", help="write benchmarks/results")
    options.add_argument("--folder", type=Path, default=ROOT / "traincheck-runs" / "comparisons")
    chosen = options.parse_args()
    held_back = reserved(all_operators())
    operators = [operator for operator in all_operators() if operator.name not in held_back]
    folder = chosen.folder.resolve()
    count = -(-chosen.pairs // PER_PROGRAM)
    drawn = itertools.islice(seeds_of(FIRST_SEED, frozenset(SKIPPED.split(","))), count)
    programs = lay_out(list(drawn), folder / "programs")
    plan = plan_mutants({entry.program.name: entry.text for entry in programs}, operators, PER_PROGRAM)
    entries = [(program, plan[program.program.name], folder / "work") for program in programs]
    pairs: list[Pair] = []
    twins: list[str] = []
    with warm_pool(chosen.jobs) as pool:
        for program, (twin, found) in results(pool, compare_program, entries, programs, "comparing"):
            twins.append(twin)
            pairs += found
            texts = [f"{pair.operator}: {pair.outcome} {pair.found}".strip() for pair in found]
            print(f"{program.program.name}: itself {twin}; {'; '.join(texts)}", flush=True)
    shutil.rmtree(folder / "ports", ignore_errors=True)
    ports = []
    for port in compare_ports(folder / "ports"):
        ports.append(port)
        print(f"{port.port}: right {port.right}; wrong {port.wrong}", flush=True)
    figures = summary(pairs, twins, ports)
    print(json.dumps(figures, indent=2))
    if chosen.keep:
        data = {
            "machine": machine(),
            **figures,
            "pairs": [asdict(pair) for pair in pairs],
            "ports": [port._asdict() for port in ports],
        }
        RESULTS.write_text(json.dumps(data, indent=2) + "\n")
    return 0


def summary(pairs: Sequence[Pair], twins: Sequence[str], ports: Sequence[PortResult]) -> dict[str, Any]:
    """The counts of outcomes."""
    counted = [pair for pair in pairs if pair.outcome in COUNTED]
    outcomes = [pair.outcome for pair in counted]
    return {
        "counted": len(counted),
        "outcomes": {outcome: outcomes.count(outcome) for outcome in sorted(set(outcomes))},
        "with themselves": {result: twins.count(result) for result in sorted(set(twins))},
        "right ports": {"equal": sum(port.equal for port in ports), "of": len(ports)},
        "wrong ports": {"named": sum(port.named for port in ports), "of": len(ports)},
    }


if __name__ == "__main__":
    raise SystemExit(main())
