"""The page of results: docs/benchmarks.md, written from the data in `results/`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.detection import live_table, tables
from benchmarks.ranks.simulated import LAYOUTS
from benchmarks.soak import table as soak_table

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "benchmarks.md"

HEAD = """# Benchmarks

The benchmarks write this page from the data in `benchmarks/results/`; do not edit it by hand. `make bench` runs all of
them except the soak, which takes an hour and a half. The detection of faulty hardware has
[a page of its own](sdc-detection.md), from `make corruption`.
"""

COST = """
## Cost of observing

`python -m benchmarks.overhead` runs the plain program, `traincheck collect` and `traincheck run` in turns. A ratio is the
step time divided by the plain step time of the same round, as the median over the rounds, with minimum and maximum. The
table has the ratio of the median step and of the mean step. They differ for short steps, because TrainCheck handles
several short steps together. The book of `run` comes from two runs of the same program, and every step is checked. Bytes
a step are the size of the recording divided by the number of steps. A checked run records only a part of its steps, so
the figure after *later* is the size that a step of a long run adds.
"""

REPLAYS = """
## Cost of replaying steps

`python -m benchmarks.replays` measures replay without other rules (`--packs none --replay-every {every}`) on the workloads
above. The replay column compares the replayed step and its successor with the other steps of the same run. It gives the
extra time in steps, as the median with minimum and maximum over the rounds. The next column compares the other steps
with those of the plain program. The last column is the time of a run that replays one of 100 steps.

| workload | plain step | time of a replay, in steps | other steps | with `--replay-every 100` |
|---|---|---|---|---|
"""

SAMPLED = """
Ratios when TrainCheck watches one of ten steps (`--budget 1/10`):

| workload | an unwatched step | mean of all steps |
|---|---|---|
"""

MOST_SOURCES = 5

WHERE = """
The next table splits the time, in milliseconds a step, with start-up. *On the thread* is the time on the training thread,
with its most expensive sources. *In parallel* is the time of background threads, which share cores and the interpreter
lock. An event is a call, a change or a reading, and its time is that of the training thread. *MB hashed* is the amount
of fingerprinted memory; hashing uses as many threads as torch.

| workload | mode | on the thread | most expensive sources | in parallel | events | µs an event | MB hashed | GB/s |
|---|---|---|---|---|---|---|---|---|
"""

START_UP = """
The start and the end of a run cost time as well. This table compares a command with the plain program, for a program that
imports torch and takes three steps (plain {plain_seconds:.2f} s). The figures are medians of {rounds} rounds in turns, with
minimum and maximum. Processor seconds are those of all processes together.

| command | additional seconds | additional processor seconds |
|---|---|---|
{rows}
"""

RANKS = """
## Cost of comparing ranks

`python -m benchmarks.ranks` has two parts. *Simulated*: in jobs of up to 1,024 ranks, each rank reports {parameters:,}
parameters ({what}). Messages, digests and the comparison are real, but the training is not. In step 7
the last rank has a different value of one parameter. The table shows the comparing rank or command: the time to decode all
messages of a step, and to judge the first step, a steady step, and the wrong step. It also shows how many complete windows
it requested in these three steps. A shard that no other rank holds cannot be compared.

| layout | ranks | bytes per rank | decode | first | steady | wrong | complete windows | found in step | named |
|---|---|---|---|---|---|---|---|---|---|
{simulated}

A rank needs {digest:.0f} ms for its message of a step, on its own thread. The message has {lean:,} bytes; all values would
take {in_full:,} bytes.
"""

MEASURED = """
*Measured*: jobs of gloo ranks with DistributedDataParallel on this machine, in turns with the exchange and with
`--compare-ranks off`. Both include all other costs of a checked run. Messages and bytes are those of one rank.

| ranks | step without exchange | ratio with exchange (min-max) | messages a step | bytes a step |
|---|---|---|---|---|
"""

SOAK = """
## Long runs

`python -m benchmarks.soak` runs all modes of a program at once, in turns of 250 steps. Program *steady* is a small network
with epochs, evaluation, a schedule, clipping, a log of the loss and checkpoints; each epoch has a new data loader. Program
*restless* creates new models, optimizers and loaders all the time, with varying shapes and rates. The books come from two runs of
300 steps of the same program. Memory is the resident memory of the training process, after 5% of the steps and at the end.
The last column is the step time divided by the plain step time in the same turn, as the median over the first and the last
third. (In sampled modes it is the mean step.) A plain step takes only a millisecond or two here, so the ratios are high;
the two figures should be equal.

"""

TRANSFER = """
## Transfer of rules

`python -m benchmarks.transfer` learns a book from k of the good examples and checks the others. All are clean, so each
violated rule is a false alarm. The table covers all choices of k, or a fixed sample of them.
"""

VERSIONS = """
## Packs under another torch release

`make transfer OTHER=/path/to/python` runs each example under two releases of torch. The table shows
the share of rules of the packs that hold under the first release and also under the second.
"""

PIPELINE = """
## False alarms of pipeline rules

`python -m benchmarks.pipeline` learns a book for each example from two of its runs, with different seeds and lengths. It
checks a third clean run, and runs with a changed setting, which the book should name. A cell counts failed rules: errors,
notices about settings, and other notices.
"""


INFERENCE = """
## Cost of learning and checking

`python -m benchmarks.inference` runs the commands `infer` (one process) and `check` on recordings of two examples. The
figures are the best of {rounds} rounds: wall-clock time, processor time, and the memory of the largest process. They
include the start of Python and all imports.

| recording | steps | events | rules | infer | check |
|---|---|---|---|---|---|
{rows}

The next table has *ten times the steps* (the same recording, repeated with other numbers). It also checks the longer
recording against *more rules*, about other calls and contexts.

| recording | infer, once | ten times | ratio of memory | {counts} |
|---|---|---|---|{lines}|
{grown}
"""

SCALE = """
## Ten million events

`python -m benchmarks.scale` learns from {events:,} events in {folders} run folders: calls, changes and readings of a
recorded {source} run, repeated with other numbers. `infer --jobs {jobs}` took {seconds:.0f} s ({processor:.0f} s of processor
time, {megabytes} MB in the largest process), or {rate:,} events a second. On a local Ray, without its start:

| workers | seconds | events a second | seconds to start Ray |
|---|---|---|---|
{rows}
"""


def write_page() -> None:
    """Write the page anew from what results there are."""
    parts = [HEAD]
    cost, transfer, pipeline = _data("overhead"), _data("transfer"), _data("pipeline")
    detection, live, ranks = _data("detection"), _data("live"), _data("ranks")
    soak = _data("soak")
    if detection:
        parts += [tables.text(detection), _told_machine(detection)]
    if live:
        parts += [live_table.text(live), _told_machine(live)]
    if cost:
        parts += [COST, _table(cost), _start_up(cost.get("start_up")), _told_machine(cost)]
    replays = _data("replays")
    if replays:
        parts += [REPLAYS.format(every=replays["every"]), _replays(replays), _told_machine(replays)]
    if soak:
        parts += [SOAK, soak_table.text(soak), _told_machine(soak)]
    if ranks:
        parts += [_ranks(ranks), _told_machine(ranks)]
    inference, scale = _data("inference"), _data("scale")
    if inference:
        parts += [_inference(inference), _told_machine(inference)]
    if scale:
        parts += [_scale(scale), _told_machine(scale)]
    if transfer:
        parts += [TRANSFER, _summary(transfer), _told_machine(transfer)]
    versions = _data("versions")
    if versions:
        parts += [VERSIONS, _versions(versions), _told_machine(versions)]
    if pipeline:
        parts += [PIPELINE, _variations(pipeline), _told_machine(pipeline)]
    PAGE.write_text("".join(parts))


def _data(name: str) -> dict[str, Any] | None:
    path = ROOT / "benchmarks" / "results" / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def _table(cost: dict[str, Any]) -> str:
    lines = [
        "",
        "| workload | plain step | collect | its mean | run | its mean | rules "
        "| bytes a step, collect | run | seconds to infer |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, found in cost["workloads"].items():
        sizes = found["trace_bytes_per_step"]
        later = f", later {found['trace_bytes_later']:,}" if "trace_bytes_later" in found else ""
        lines.append(
            f"| {name} | {found['plain_step_ms']:.1f} ms | {_ratio(found['collect_ratio'])} | "
            f"{_ratio(found['collect_mean_ratio'])} | {_ratio(found['run_ratio'])} | "
            f"{_ratio(found['run_mean_ratio'])} | {found['invariants']} | "
            f"{sizes['collect']:,} | {sizes['run']:,}{later} | {found['infer_seconds']} |"
        )
    rows = [
        f"| {name} | {_ratio(found['unwatched_ratio'])} | {_ratio(found['every_10_ratio'])} |\n"
        for name, found in cost["workloads"].items()
        if "unwatched_ratio" in found
    ]
    return "\n".join(lines) + "\n" + (SAMPLED + "".join(rows) if rows else "") + _where(cost)


def _replays(found: dict[str, Any]) -> str:
    return "".join(
        f"| {name} | {told['plain_step_ms']:.1f} ms | {_steps(told['steps_each'])} | {_ratio(told['other_steps'])} "
        f"| {told['ratio_at_100']:.3f}x |\n"
        for name, told in found["workloads"].items()
    )


def _where(cost: dict[str, Any]) -> str:
    rows = []
    for name, found in cost["workloads"].items():
        for mode, told in found.get("where", {}).items():
            sources = [f"{source} {ms:.2f}" for source, ms in told["sources_ms"].items() if ms >= 0.01][:MOST_SOURCES]
            beside, each = sum(told["background_ms"].values()), told["ns_per_event"] / 1e3
            speed = "-" if told["gb_per_second"] is None else f"{told['gb_per_second']:.1f}"
            rows.append(
                f"| {name} | {mode} | {sum(told['sources_ms'].values()):.2f} | {', '.join(sources)} | "
                f"{beside:.2f} | {told['events']:.0f} | {each:.1f} | {told['hashed_mb']:.2f} | {speed} |\n"
            )
    return WHERE + "".join(rows) if rows else ""


def _start_up(found: dict[str, Any] | None) -> str:
    if not found:
        return ""
    rows = [
        f"| {mode} | {_more(found[mode], '')} | {_more(found[mode], 'processor_')} |" for mode in ("collect", "run")
    ]
    return START_UP.format(plain_seconds=found["plain_seconds"], rounds=found["rounds"], rows="\n".join(rows))


def _more(found: dict[str, Any], of: str) -> str:
    told = found[f"{of}seconds_more"]
    return f"{told['median']:.2f} ({told['least']:.2f}-{told['most']:.2f})"


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


def _inference(found: dict[str, Any]) -> str:
    def told(one: dict[str, float]) -> str:
        return f"{one['seconds']:.2f} s ({one['processor_seconds']:.2f} s, {one['megabytes']:.0f} MB)"

    rows = [
        f"| {row['name']} | {row['steps']} | {row['events']:,} | {row['rules']} | "
        f"{told(row['infer'])} | {told(row['check'])} |"
        for row in found["rows"]
    ]
    counts = [name for name in found["rows"][0] if name.startswith("check_")]
    grown = [
        f"| {row['name']} | {told(row['infer_once'])} | {told(row['infer_ten_times'])} | "
        f"{row['infer_ten_times']['megabytes'] / row['infer_once']['megabytes']:.2f} | "
        + " | ".join(told(row[name]) for name in counts)
        + " |"
        for row in found["rows"]
    ]
    return INFERENCE.format(
        rounds=found["rounds"],
        rows="\n".join(rows),
        counts=" | ".join(f"check, {int(name.removeprefix('check_')):,} rules" for name in counts),
        lines="|".join("---" for _ in counts),
        grown="\n".join(grown),
    )


def _scale(found: dict[str, Any]) -> str:
    local = found["local"]
    rows = [
        f"| {row['workers']} | {row['seconds']} | {row['events_per_second']:,} | {row['start_seconds']} |"
        for row in found["ray"]
    ]
    return SCALE.format(
        events=found["events"],
        source=found["source"],
        folders=found["folders"],
        jobs=local["jobs"],
        seconds=local["seconds"],
        processor=local["processor_seconds"],
        megabytes=local["megabytes"],
        rate=local["events_per_second"],
        rows="\n".join(rows),
    )


def _ratio(found: dict[str, float]) -> str:
    return f"{found['median']:.2f}x ({found['least']:.2f}-{found['most']:.2f})"


def _steps(found: dict[str, float]) -> str:
    return f"{found['median']:.2f} ({found['least']:.2f} to {found['most']:.2f})"


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


def _versions(found: dict[str, Any]) -> str:
    first, second = (f"torch {torch}, Python {python}" for torch, python in found["versions"])
    lines = [
        "",
        f"| first | second | examples | hold under {found['versions'][0][0]} | and under the second | share "
        "| fail under the second |",
        "|---|---|---|---|---|---|---|",
        f"| {first} | {second} | {found['examples']} | {found['pass_here']:,} | {found['pass_there_too']:,} | "
        f"{found['share']:.1%} | {found['failed_there']:,} of {found['triggered_there']:,} |",
    ]
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
