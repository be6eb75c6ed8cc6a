"""The page of results: docs/benchmarks.md, written from the data in `results/`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "benchmarks.md"

HEAD = """# Benchmarks

Written by the benchmarks from the data in `benchmarks/results/`; do not edit by hand. `make bench` runs all of them.
"""

COST = """
## What observing costs

`python -m benchmarks.overhead`: runs of the plain program, of `traincheck collect` and of `traincheck run` take turns.
The figure is the median over the rounds of step time divided by that of the plain program in the same round, with the
least and the most. The book of `run` is learned from two runs of the same program, and every step is checked.
"""

TRANSFER = """
## Whether rules carry over

`python -m benchmarks.transfer`: a book is learned from some of the good examples and checks the others, all clean, so
that each violated rule is a false alarm.
"""


def write_page() -> None:
    """Write the page anew from what results there are."""
    parts = [HEAD]
    cost, transfer = _data("overhead"), _data("transfer")
    if cost:
        parts += [COST, _table(cost), _told_machine(cost)]
    if transfer:
        parts += [TRANSFER, _summary(transfer), _told_machine(transfer)]
    PAGE.write_text("".join(parts))


def _data(name: str) -> dict[str, Any] | None:
    path = ROOT / "benchmarks" / "results" / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def _table(cost: dict[str, Any]) -> str:
    lines = [
        "",
        "| workload | plain step | collect | run | rules | bytes a step, collect | run | seconds to infer |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, found in cost["workloads"].items():
        sizes = found["trace_bytes_per_step"]
        lines.append(
            f"| {name} | {found['plain_step_ms']:.1f} ms | {_ratio(found['collect_ratio'])} | "
            f"{_ratio(found['run_ratio'])} | {found['invariants']} | {sizes['collect']:,} | {sizes['run']:,} | "
            f"{found['infer_seconds']} |"
        )
    return "\n".join(lines) + "\n"


def _ratio(found: dict[str, float]) -> str:
    return f"{found['median']:.2f}x ({found['least']:.2f}-{found['most']:.2f})"


def _summary(transfer: dict[str, Any]) -> str:
    return (
        f"\nLearned from {transfer['k']} examples, {transfer['subsets']} choices of them, {transfer['checks']} checks: "
        f"{transfer['checks_with_error']} with an error, {transfer['checks_with_notice']} with a notice; "
        f"{transfer['failed_share_of_triggered']:.2%} of the rules that were triggered failed.\n"
    )


def _told_machine(result: dict[str, Any]) -> str:
    machine = result["machine"]
    return (
        f"\nMeasured on {machine['cores']} cores ({machine['processor']}), Python {machine['python']}, "
        f"torch {machine['torch']}, pyarrow {machine['pyarrow']}.\n"
    )
