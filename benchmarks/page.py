"""Writes docs/benchmarks.md from the data in `results/`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.detection import live_table, tables
from benchmarks.overhead import budget_runs, device_table
from benchmarks.overhead.step_times import ratio_text
from benchmarks.ranks.simulated import LAYOUTS
from benchmarks.soak import table as soak_table
from traincheck.sources.verification.verified_steps import Turn

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "benchmarks.md"

HEAD = """# Benchmarks

The benchmarks write this page from the data in `benchmarks/results/`; do not edit it by hand. `make bench` runs all of
them except the soak, which takes an hour and a half. The detection of faulty hardware has
[a page of its own](sdc-detection.md), from `make corruption`.
"""

COST = """
## Cost of observing

`python -m benchmarks.overhead` runs the plain program, `traincheck collect` and `traincheck run --budget 1/1` in turns. A
ratio is the step time divided by the plain step time of the same round, as the median over the rounds, with minimum and
maximum. The table has the ratio of the median step and of the mean step. They differ for short steps, because
TrainCheck handles several short steps together. The book of `run` comes from two runs of the same program, and every
step is checked. Bytes a step are the size of the recording divided by the number of steps. A checked run records only a
part of its steps, so the figure after *later* is the size that a step of a long run adds.
"""

VERIFICATION = """
## Cost of verification

`python -m benchmarks.verification` measures verification without other rules (`--packs none --verify-every {every}`) on the
workloads above. From this interval on, the experiments take turns. The columns of the turns compare a verified step and its
successor with the other steps of the same run. They give the extra time in steps, as the median with minimum and maximum
over the rounds. *Replay* executes the step again and compares the bits, *derivative* verifies the gradients, and *others*
are the experiments about updates, inputs, recomputation, accumulation and checkpoints. The next column compares steps that are
not verified with those of the plain program. The last column is the time of a run that verifies one of {target} steps.

| workload | plain step | replay, in steps | derivative | others | other steps | with `--verify-every {target}` |
|---|---|---|---|---|---|---|
"""

SAMPLED = """
Ratios when TrainCheck watches one of ten steps (`--budget 1/10`):

| workload | an unwatched step | mean of all steps |
|---|---|---|
"""

OPERATIONS = """
`traincheck collect --record operations` sketches the results of all operations of a step, for `traincheck compare`. Its
cost depends on the number of operations more than on the size of the model:

| workload | plain step | with sketches | bytes a step |
|---|---|---|---|
"""

MAX_SOURCES = 5

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
parameters ({what}). Messages, digests and the comparison are real, but the training is not. In step {since}
the last rank has a different value of one parameter. The table shows processor time of the comparing rank or command in a
step: in a *steady* step, to decode the messages of all ranks, to align their windows, and to judge them; in the *wrong* step
and in steps *after* it; and in the *worst* step, which is one of the first. The *average* is that of a sound run of {long:,}
steps, with all requests. Reading from sockets is not included. Garbage collection is, and the machine was busy. A shard that no other rank holds cannot be compared.

| layout | ranks | bytes per rank | decode | align | judge | steady | wrong | after | worst | average | found in step | named |
|---|---|---|---|---|---|---|---|---|---|---|---|---|
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
        parts += [tables.text(detection), _machine_text(detection)]
    if live:
        parts += [live_table.text(live), _machine_text(live)]
    if cost:
        parts += [COST, _table(cost), _start_up(cost.get("start_up")), _machine_text(cost)]
    if on_device := _data("overhead-cuda"):
        parts += [device_table.text(on_device), _machine_text(on_device)]
    verification = _data("verification")
    if verification:
        head = VERIFICATION.format(every=verification["every"], target=verification["target"])
        parts += [head, _verification(verification), _machine_text(verification)]
    if soak:
        parts += [SOAK, soak_table.text(soak), _machine_text(soak)]
    if ranks:
        parts += [_ranks(ranks), _machine_text(ranks)]
    inference, scale = _data("inference"), _data("scale")
    if inference:
        parts += [_inference(inference), _machine_text(inference)]
    if scale:
        parts += [_scale(scale), _machine_text(scale)]
    if transfer:
        parts += [TRANSFER, _summary(transfer), _machine_text(transfer)]
    versions = _data("versions")
    if versions:
        parts += [VERSIONS, _versions(versions), _machine_text(versions)]
    if pipeline:
        parts += [PIPELINE, _variations(pipeline), _machine_text(pipeline)]
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
    for name, workload in cost["workloads"].items():
        sizes = workload["trace_bytes_per_step"]
        later = f", later {workload['trace_bytes_later']:,}" if "trace_bytes_later" in workload else ""
        lines.append(
            f"| {name} | {workload['plain_step_ms']:.1f} ms | {ratio_text(workload['collect_ratio'])} | "
            f"{ratio_text(workload['collect_mean_ratio'])} | {ratio_text(workload['run_ratio'])} | "
            f"{ratio_text(workload['run_mean_ratio'])} | {workload['invariants']} | "
            f"{sizes['collect']:,} | {sizes['run']:,}{later} | {workload['infer_seconds']} |"
        )
    rows = [
        f"| {name} | {ratio_text(workload['unwatched_ratio'])} | {ratio_text(workload['every_10_ratio'])} |\n"
        for name, workload in cost["workloads"].items()
        if "unwatched_ratio" in workload
    ]
    sampled = SAMPLED + "".join(rows) if rows else ""
    budget = budget_runs.text(cost["workloads"])
    return "\n".join(lines) + "\n" + sampled + budget + _operations(cost) + _where(cost)


def _operations(cost: dict[str, Any]) -> str:
    rows = [
        f"| {name} | {workload['plain_step_ms']:.1f} ms | {ratio_text(workload['operations_ratio'])} | "
        f"{workload['operations_bytes_per_step']:,} |\n"
        for name, workload in cost["workloads"].items()
        if "operations_ratio" in workload
    ]
    return OPERATIONS + "".join(rows) if rows else ""


def _verification(results: dict[str, Any]) -> str:
    return "".join(
        f"| {name} | {workload['plain_step_ms']:.1f} ms | "
        f"{' | '.join(_steps(workload['steps_each'][turn.name.lower()]) for turn in Turn)} | "
        f"{ratio_text(workload['other_steps'])} | {workload['ratio']:.3f}x |\n"
        for name, workload in results["workloads"].items()
    )


def _where(cost: dict[str, Any]) -> str:
    rows = []
    for name, workload in cost["workloads"].items():
        for mode, costs in workload.get("where", {}).items():
            sources = [f"{source} {ms:.2f}" for source, ms in costs["sources_ms"].items() if ms >= 0.01][:MAX_SOURCES]
            background, microseconds = sum(costs["background_ms"].values()), costs["ns_per_event"] / 1e3
            speed = "-" if costs["gb_per_second"] is None else f"{costs['gb_per_second']:.1f}"
            rows.append(
                f"| {name} | {mode} | {sum(costs['sources_ms'].values()):.2f} | {', '.join(sources)} | "
                f"{background:.2f} | {costs['events']:.0f} | {microseconds:.1f} | {costs['hashed_mb']:.2f} | {speed} |\n"
            )
    return WHERE + "".join(rows) if rows else ""


def _start_up(results: dict[str, Any] | None) -> str:
    if not results:
        return ""
    rows = [
        f"| {mode} | {_more(results[mode], '')} | {_more(results[mode], 'processor_')} |" for mode in ("collect", "run")
    ]
    return START_UP.format(plain_seconds=results["plain_seconds"], rounds=results["rounds"], rows="\n".join(rows))


def _more(result: dict[str, Any], of: str) -> str:
    seconds = result[f"{of}seconds_more"]
    return f"{seconds['median']:.2f} ({seconds['least']:.2f}-{seconds['most']:.2f})"


TIMES = ("decode", "align", "judge", "steady", "wrong", "after", "worst", "average")


def _ranks(results: dict[str, Any]) -> str:
    rows = [
        f"| {row['layout']} | {row['ranks']:,} | {row['message_bytes']} | "
        + " | ".join(f"{row['seconds'][when] * 1e3:,.1f} ms" for when in TIMES)
        + f" | {row['found_in_step'] or '-'} | {', '.join(map(str, row['named'])) or '-'} |"
        for row in results.get("simulated", ())
    ]
    one_rank = results["one_rank"]
    text = RANKS.format(
        parameters=results["parameters"],
        what="; ".join(f"{name}: {words}" for name, words in LAYOUTS.items()),
        since=results["since"],
        long=results["long"],
        simulated="\n".join(rows),
        digest=one_rank["digest_seconds"] * 1e3,
        lean=one_rank["message_bytes"],
        in_full=one_rank["in_full_bytes"],
    )
    measured = [
        f"| {row['ranks']} | {row['step_ms']:.1f} ms | {ratio_text(row['ratio'])} | {row['messages_per_step']:.2f} | "
        f"{row['bytes_per_step']:,} |"
        for row in results.get("measured", ())
    ]
    return text + (MEASURED + "\n".join(measured) + "\n" if measured else "")


def _inference(results: dict[str, Any]) -> str:
    def text_of(result: dict[str, float]) -> str:
        return f"{result['seconds']:.2f} s ({result['processor_seconds']:.2f} s, {result['megabytes']:.0f} MB)"

    rows = [
        f"| {row['name']} | {row['steps']} | {row['events']:,} | {row['rules']} | "
        f"{text_of(row['infer'])} | {text_of(row['check'])} |"
        for row in results["rows"]
    ]
    counts = [name for name in results["rows"][0] if name.startswith("check_")]
    grown = [
        f"| {row['name']} | {text_of(row['infer_once'])} | {text_of(row['infer_ten_times'])} | "
        f"{row['infer_ten_times']['megabytes'] / row['infer_once']['megabytes']:.2f} | "
        + " | ".join(text_of(row[name]) for name in counts)
        + " |"
        for row in results["rows"]
    ]
    return INFERENCE.format(
        rounds=results["rounds"],
        rows="\n".join(rows),
        counts=" | ".join(f"check, {int(name.removeprefix('check_')):,} rules" for name in counts),
        lines="|".join("---" for _ in counts),
        grown="\n".join(grown),
    )


def _scale(results: dict[str, Any]) -> str:
    local = results["local"]
    rows = [
        f"| {row['workers']} | {row['seconds']} | {row['events_per_second']:,} | {row['start_seconds']} |"
        for row in results["ray"]
    ]
    return SCALE.format(
        events=results["events"],
        source=results["source"],
        folders=results["folders"],
        jobs=local["jobs"],
        seconds=local["seconds"],
        processor=local["processor_seconds"],
        megabytes=local["megabytes"],
        rate=local["events_per_second"],
        rows="\n".join(rows),
    )


def _steps(steps: dict[str, float]) -> str:
    return f"{steps['median']:.2f} ({steps['least']:.2f} to {steps['most']:.2f})"


def _summary(transfer: dict[str, Any]) -> str:
    lines = [
        "",
        "| k | choices | without any alarm | checks | with an error | with a notice "
        "| rules (median) | triggered | failed / triggered |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for k, counts in transfer["by_k"].items():
        lines.append(
            f"| {k} | {counts['choices']} | {counts['choices_without_alarm']} | {counts['checks']} | "
            f"{counts['checks_with_error']} | {counts['checks_with_notice']} | {counts['rules_median']:.0f} | "
            f"{counts['triggered_share']:.0%} | {counts['failed_share_of_triggered']:.3%} |"
        )
    return "\n".join(lines) + "\n"


def _versions(results: dict[str, Any]) -> str:
    first, second = (f"torch {torch}, Python {python}" for torch, python in results["versions"])
    lines = [
        "",
        f"| first | second | examples | hold under {results['versions'][0][0]} | and under the second | share "
        "| fail under the second |",
        "|---|---|---|---|---|---|---|",
        f"| {first} | {second} | {results['examples']} | {results['pass_here']:,} | {results['pass_there_too']:,} | "
        f"{results['share']:.1%} | {results['failed_there']:,} of {results['triggered_there']:,} |",
    ]
    return "\n".join(lines) + "\n"


def _variations(pipeline: dict[str, Any]) -> str:
    changes = list(dict.fromkeys(row["changed"] for row in pipeline["rows"]))
    lines = ["", "| example | rules | " + " | ".join(changes) + " |", "|---" * (len(changes) + 2) + "|"]
    cells: dict[str, dict[str, dict[str, Any]]] = {}
    for row in pipeline["rows"]:
        cells.setdefault(row["example"], {})[row["changed"]] = row
    for name, cell in cells.items():
        columns = [
            f"{row['errors']} / {len(row['settings'])} / {row['notices'] - len(row['settings'])}" if row else "-"
            for row in (cell.get(change) for change in changes)
        ]
        lines.append(f"| {name} | {next(iter(cell.values()))['rules']} | " + " | ".join(columns) + " |")
    return "\n".join(lines) + "\n"


def _machine_text(result: dict[str, Any]) -> str:
    machine = result["machine"]
    return (
        f"\nMeasured on {machine['cores']} cores ({machine['processor']}), Python {machine['python']}, "
        f"torch {machine['torch']}, pyarrow {machine['pyarrow']}.\n"
    )


if __name__ == "__main__":
    write_page()
