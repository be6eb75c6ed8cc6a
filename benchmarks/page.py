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

Written by the benchmarks from the data in `benchmarks/results/`; do not edit by hand. `make bench` runs all of
them but the soak, which takes an hour and a half. What is found of hardware that computes wrongly has
[a page of its own](sdc-detection.md), by `make corruption`.
"""

COST = """
## What observing costs

`python -m benchmarks.overhead`: runs of the plain program, of `traincheck collect` and of `traincheck run` take turns.
The figure is the median over the rounds of step time divided by that of the plain program in the same round, with the
least and the most: of the median step, and of the mean one, as where steps are short some bear what is done for
several. The book of `run` is learned from two runs of the same program, and every step is checked. Bytes a
step are the recording's by all steps; a checked run is recorded in part, so the second figure (later) is what a step of
a long one adds.
"""

REPLAYS = """
## What executing steps again costs

`python -m benchmarks.replays`: of the workloads above, with nothing else checked (`--packs none --replay-every
{every}`), by how many steps one execution prolongs the run: the step with it and the next beside the other steps of the
same run, after the first ones; medians, with the least and the most of the rounds. Other steps are beside those of the
plain program. With one step in a hundred executed again a run takes so much longer.

| workload | plain step | an execution takes, in steps | other steps | with `--replay-every 100` |
|---|---|---|---|---|
"""

SAMPLED = """
Where not every step is watched (`--sample-every 10`): a step between those that are, and the mean of all steps.

| workload | a step that is not watched | all steps |
|---|---|---|
"""

MOST_SOURCES = 5

WHERE = """
Where the time goes, in milliseconds a step, start-up included: on the thread that trains (of that the costliest
sources), and in the background, which shares cores and Python's lock with it. An event is a call, a change or a
reading; the time for each is that of the thread that trains. Hashed is what was fingerprinted, by as many threads as
torch takes.

| workload | mode | on the thread | of that | beside it | events | µs an event | MB hashed | GB/s |
|---|---|---|---|---|---|---|---|---|
"""

START_UP = """
Before the first step and after the last one: how much longer a command takes than the plain program, from its start to
its end, for one that imports torch and takes three steps (plain {plain_seconds:.2f} s; the median of {rounds} rounds by
turns, with the least and the most). The seconds of the processors are those of all processes together, with what is
done beside the program.

| command | seconds more | seconds of the processors more |
|---|---|---|
{rows}
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

SOAK = """
## What a long run comes to

`python -m benchmarks.soak`: all modes of a program are under way at once and take turns, 250 steps each. *steady* is a
small network with epochs, evaluation, a schedule, clipping, a log of the loss and checkpoints, its data loader made
anew in each epoch; *restless* makes new models, optimizers and loaders all the time, with shapes and rates that vary.
The books are learned from two runs of 300 steps of the same program. Memory is what the operating system counts for
the process that trains (resident), after 5% of the steps and at the end. The last column is step time divided by that
of the plain program in the same turn, as the median over the first third and over the last (of the mean step where not
all are watched). What matters is that the two are the same: a plain step takes a millisecond or two here, so watching
it costs many times that.

"""

TRANSFER = """
## Whether rules carry over

`python -m benchmarks.transfer`: a book is learned from k of the good examples and checks the others, all clean, so that
each violated rule is a false alarm. All choices of k, or a fixed sample of them.
"""

VERSIONS = """
## Whether the packs hold under another torch

`make transfer OTHER=/path/to/python`: each example under two versions of torch. Of the rules of the packs that are
triggered and hold under the first, the share that is triggered and holds under the second.
"""

PIPELINE = """
## Whether a pipeline's own rules keep quiet

`python -m benchmarks.pipeline`: for each example a book is learned from two of its runs (another seed, another length).
It checks a third clean run, and runs with something changed, whose settings it should name. A cell tells rules that
failed as errors, as notices about settings, and as other notices.
"""


INFERENCE = """
## What learning and checking cost

`python -m benchmarks.inference`: the commands `infer` (one process) and `check` from start to end, on recordings of two
of the examples: the best of {rounds} rounds, wall clock, with the seconds of the processor and the memory of the
largest process. To start Python and to import what is needed is in all of them.

| recording | steps | events | rules | infer | check |
|---|---|---|---|---|---|
{rows}

*Ten times the steps* (the same recording, repeated with other numbers), and the check of the longer one against *more
rules*, about other calls and circumstances.

| recording | infer, once | ten times | ratio of memory | {counts} |
|---|---|---|---|{lines}|
{grown}
"""

SCALE = """
## Ten million events

`python -m benchmarks.scale`: {events:,} events (calls, changes and readings; a recorded {source} run, repeated with
other numbers) in {folders} run folders. `infer --jobs {jobs}` took {seconds:.0f} s from start to end
({processor:.0f} s of the processors, {megabytes} MB in the largest process), {rate:,} events a second. On a local Ray,
without its start:

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
