"""The page of results: docs/benchmarks.md, written from the data in `results/`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.detection import live_table, tables
from benchmarks.ranks.simulated import LAYOUTS

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

RANKS = """
## What comparing ranks costs

`python -m benchmarks.ranks`. *Simulated*: jobs of which each rank tells of {parameters:,} parameters ({what}).
The messages, digests and the comparison are real, the training is not. In step 7 the last rank holds another value of
one parameter. The figures are of the rank (or the command) that compares: to read what all ranks tell of a step, to
judge it in the first step, in one in which nothing is wrong and in the one that goes wrong, and how many windows of
others it asked for in full in these. (A shard that no other rank holds can be compared with nothing.)

| layout | ranks | bytes a rank tells | to read | first | steady | wrong | asked in full | found in step | named |
|---|---|---|---|---|---|---|---|---|---|
{simulated}

A rank takes {digest:.0f} ms to work out what it tells of a step, on a thread of its own: {lean:,} bytes, where all
values would be {in_full:,}.
"""

MEASURED = """
*Measured*: jobs of gloo ranks with DistributedDataParallel on this machine, by turns with the exchange and with
`--compare-ranks off` (so all else that a checked run costs is in both). Messages and bytes are those of one rank.

| ranks | step without | ratio with (least-most) | messages a step | bytes a step |
|---|---|---|---|---|
"""

TRANSFER = """
## Whether rules carry over

`python -m benchmarks.transfer`: a book is learned from k of the good examples and checks the others, all clean, so that
each violated rule is a false alarm. All choices of k, or a fixed sample of them.
"""

PIPELINE = """
## Whether a pipeline's own rules keep quiet

`python -m benchmarks.pipeline`: for each example a book is learned from two of its runs (another seed, another length).
It checks a third clean run, and runs with something changed, whose settings it should name. A cell tells rules that
failed as errors, as notices about settings, and as other notices.
"""


def write_page() -> None:
    """Write the page anew from what results there are."""
    parts = [HEAD]
    cost, transfer, pipeline = _data("overhead"), _data("transfer"), _data("pipeline")
    detection, live, ranks = _data("detection"), _data("live"), _data("ranks")
    if detection:
        parts += [tables.text(detection), _told_machine(detection)]
    if live:
        parts += [live_table.text(live), _told_machine(live)]
    if cost:
        parts += [COST, _table(cost), _told_machine(cost)]
    if ranks:
        parts += [_ranks(ranks), _told_machine(ranks)]
    if transfer:
        parts += [TRANSFER, _summary(transfer), _told_machine(transfer)]
    if pipeline:
        parts += [PIPELINE, _variations(pipeline), _told_machine(pipeline)]
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


def _ranks(found: dict[str, Any]) -> str:
    rows = [
        f"| {row['layout']} | {row['ranks']:,} | {row['message_bytes']} | {row['decode_seconds'] * 1e3:.1f} ms | "
        + " | ".join(f"{row['judge_seconds'][when] * 1e3:,.0f} ms" for when in ("first", "steady", "wrong"))
        + f" | {', '.join(str(row['asked_in_full'][when]) for when in ('first', 'steady', 'wrong'))}"
        + f" | {row['found_in_step'] or '-'} | {', '.join(map(str, row['named'])) or '-'} |"
        for row in found.get("simulated", ())
    ]
    one = found["one_rank"]
    text = RANKS.format(
        parameters=found["parameters"],
        what="; ".join(f"{name}: {words}" for name, words in LAYOUTS.items()),
        simulated="\n".join(rows),
        digest=one["digest_seconds"] * 1e3,
        lean=one["message_bytes"],
        in_full=one["in_full_bytes"],
    )
    measured = [
        f"| {row['ranks']} | {row['step_ms']:.1f} ms | {_ratio(row['ratio'])} | {row['messages_per_step']:.2f} | "
        f"{row['bytes_per_step']:,} |"
        for row in found.get("measured", ())
    ]
    return text + (MEASURED + "\n".join(measured) + "\n" if measured else "")


def _ratio(found: dict[str, float]) -> str:
    return f"{found['median']:.2f}x ({found['least']:.2f}-{found['most']:.2f})"


def _summary(transfer: dict[str, Any]) -> str:
    lines = [
        "",
        "| k | choices | without any alarm | checks | with an error | with a notice "
        "| rules (median) | triggered | failed / triggered |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for k, found in transfer["by_k"].items():
        lines.append(
            f"| {k} | {found['choices']} | {found['choices_without_alarm']} | {found['checks']} | "
            f"{found['checks_with_error']} | {found['checks_with_notice']} | {found['rules_median']:.0f} | "
            f"{found['triggered_share']:.0%} | {found['failed_share_of_triggered']:.3%} |"
        )
    return "\n".join(lines) + "\n"


def _variations(pipeline: dict[str, Any]) -> str:
    changes = list(dict.fromkeys(row["changed"] for row in pipeline["rows"]))
    lines = ["", "| example | rules | " + " | ".join(changes) + " |", "|---" * (len(changes) + 2) + "|"]
    cells: dict[str, dict[str, dict[str, Any]]] = {}
    for row in pipeline["rows"]:
        cells.setdefault(row["example"], {})[row["changed"]] = row
    for name, found in cells.items():
        told = [
            f"{row['errors']} / {len(row['settings'])} / {row['notices'] - len(row['settings'])}" if row else "-"
            for row in (found.get(change) for change in changes)
        ]
        lines.append(f"| {name} | {next(iter(found.values()))['rules']} | " + " | ".join(told) + " |")
    return "\n".join(lines) + "\n"


def _told_machine(result: dict[str, Any]) -> str:
    machine = result["machine"]
    return (
        f"\nMeasured on {machine['cores']} cores ({machine['processor']}), Python {machine['python']}, "
        f"torch {machine['torch']}, pyarrow {machine['pyarrow']}.\n"
    )
