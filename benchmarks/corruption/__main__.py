"""python -m benchmarks.corruption [--quick] [--only alarms,screening,ranks,study] [--kind KIND] [--go-on] [--jobs 2]

Injects faults into trainings: flipped bits (bit position x site x rate), intermittent defects (site x rate) and stuck
bits (site), with several seeds each. Reports which detectors find them, the delay after the first stroke, and false
alarms in as many trainings without a fault.

*alarms*: usual alarms on loss and gradient norm. *screening*: `traincheck sdc screen` on a device with the fault.
*ranks*: two ranks, checked like `traincheck run`. *study*: the effect of a fault on training (`traincheck sdc study`).
A complete run writes benchmarks/results/corruption.json and docs/sdc-detection.md. Ctrl-C stores the finished part, and
--go-on continues from there. --quick uses a small grid and stores no result. --kind measures one kind of fault with
screenings and ranks, without clean runs, such as `--only screening,ranks --kind intermittent`; it stores no result.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.corruption import studies, two_ranks
from benchmarks.corruption.alarms import LOSS, NORM, first_alarm, threshold
from benchmarks.corruption.grid import DECODER, HALF, IMAGES, NAMES, QUICK, WHOLE, Point
from benchmarks.corruption.page import summary, write_page
from benchmarks.corruption.rank_checks import QUICK as QUICK_CHECKS
from benchmarks.corruption.rank_checks import RANK_CHECKS
from benchmarks.corruption.result_store import ResultStore
from benchmarks.corruption.tally import tallies
from benchmarks.corruption.worker_pool import ALARMS, SCREENING, spread
from benchmarks.machine import machine
from traincheck.sdc.faults.fault import KINDS

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "corruption.json"
RANKS, STUDY = "ranks", "study"
PARTS = (ALARMS, SCREENING, RANKS, STUDY)
TRAININGS = {ALARMS: {DECODER: WHOLE, IMAGES: HALF}, SCREENING: {DECODER: WHOLE}}
"""The workloads of each part and their grids; screening uses the built-in workload."""


def main(words: Sequence[str] | None = None) -> int:
    """Run the selected parts, and store the result of a complete run."""
    chosen = options().parse_args(words)
    parts = chosen.only.split(",") if chosen.only else list(PARTS)
    unknown = [part for part in parts if part not in PARTS]
    if unknown:
        options().error(f"--only {chosen.only}: expected some of {', '.join(PARTS)}, separated by commas")
    if chosen.kind and not set(parts) <= {SCREENING, RANKS}:
        options().error(
            f"--kind {chosen.kind}: expected --only with {SCREENING} or {RANKS}; other parts need clean runs"
        )
    store = ResultStore(chosen.runs / ("quick.jsonl" if chosen.quick else "rows.jsonl"), go_on=chosen.go_on)
    began, interrupted = time.monotonic(), False
    try:
        for part in parts:
            execute(part, store, tasks_of(part, chosen.quick, chosen.kind), chosen.jobs)
    except KeyboardInterrupt:
        interrupted = True
    seconds = None if chosen.go_on else round(time.monotonic() - began)
    result = {"machine": machine(), "seconds": seconds, **results_so_far(parts, store, chosen.quick, chosen.kind)}
    print(summary(result))
    if interrupted:
        print("Interrupted: the results above are partial. --go-on continues from here.", file=sys.stderr)
        return 130
    if not chosen.quick and not chosen.only:
        RESULTS.write_text(as_text(result))
        write_page(result)
    return 0


def options() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.corruption",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="a small grid; no result is stored")
    parser.add_argument("--only", default="", help=f"some of {','.join(PARTS)}; no result is stored")
    parser.add_argument("--kind", choices=KINDS, help="only faults of this kind, without clean runs")
    parser.add_argument("--go-on", action="store_true", help="continue an interrupted run of this version")
    parser.add_argument("--jobs", type=int, default=2, help="processes that train in parallel (1: this process)")
    parser.add_argument(
        "--runs", type=Path, default=ROOT / "traincheck-runs" / "corruption", help="folder of stored runs"
    )
    return parser


def tasks_of(part: str, quick: bool, kind: str | None = None) -> list[tuple[str, Any]]:
    """Return the tasks of a part: the group, and a point or the name of a study.

    With `kind`, only points with a fault of this kind.
    """
    if kind:
        return [(group, point) for group, point in tasks_of(part, quick) if point.site and point.kind == kind]
    if part in TRAININGS:
        grids = {workload: QUICK if quick else grid for workload, grid in TRAININGS[part].items()}
        return [(part, point) for workload, grid in grids.items() for point in grid.all(workload)]
    if part == RANKS:
        names = QUICK_CHECKS if quick else tuple(RANK_CHECKS)
        return [(name, point) for name in names for point in (QUICK if quick else RANK_CHECKS[name].grid).all(DECODER)]
    return [(part, name) for name in (studies.QUICK if quick else studies.STUDIES)]


def execute(part: str, store: ResultStore, tasks: Sequence[tuple[str, Any]], jobs: int) -> None:
    """Execute the missing tasks of a part, and print the progress."""
    missing = [(group, task) for group, task in tasks if store.get(group, _of(task)) is None]
    done = len(tasks) - len(missing)
    _progress(f"{part}: {done} of {len(tasks)}", last=True)

    def add(group: str, task: Any, outcome: dict[str, Any]) -> None:
        nonlocal done
        done += 1
        store.add(group, _of(task), outcome)
        _progress(f"{part}: {done} of {len(tasks)}", last=done == len(tasks))

    if part in TRAININGS:
        for group, task, outcome in spread(missing, jobs):
            add(group, task, outcome)
    elif part == RANKS:
        if missing:
            two_ranks.train_all(missing, add)
    else:
        for group, task in missing:
            add(group, task, studies.study(task))


def results_so_far(parts: Sequence[str], store: ResultStore, quick: bool, kind: str | None = None) -> dict[str, Any]:
    """Return the results of the selected parts so far."""
    result: dict[str, Any] = {"runs": [], "clean": {}, "thresholds": {}, "studies": {}}
    rows: list[dict[str, Any]] = []
    for part in parts:
        tasks = tasks_of(part, quick, kind)
        finished = [
            (group, tally, outcome) for group, tally in tasks if (outcome := store.get(group, _of(tally))) is not None
        ]
        if part == STUDY:
            result["studies"] = {name: studies.condensed(outcome) for _, name, outcome in finished}
            continue
        limits = _limits(finished) if part == ALARMS else {}
        result["thresholds"] |= limits
        for group, point, outcome in finished:
            first_alarms = _alarms(part, group, point, outcome, limits)
            rows.append(
                {
                    "group": group,
                    "clean": point.fault is None,
                    **row_of(group, point),
                    **{name: outcome[name] for name in ("strokes", "first", "apart") if name in outcome},
                    "alarms": first_alarms,
                }
            )
    # Clean runs are listed only if they have an alarm.
    result["runs"] = [row for row in rows if not row["clean"] or any(row["alarms"].values())]
    result["detectors"] = {name: tally.data() for (name, _), tally in tallies(rows).items()}
    return result


def row_of(group: str, point: Point) -> dict[str, object]:
    fault = RANK_CHECKS[group].fault(point) if group in RANK_CHECKS else point.fault
    return {**point.data(), **({"fault": fault.text} if fault is not None else {})}


def _limits(finished: Sequence[tuple[str, Point, dict[str, Any]]]) -> dict[str, dict[str, float]]:
    """Return the thresholds of the alarms for each workload, tuned on its clean runs."""
    limits: dict[str, dict[str, float]] = {}
    for workload in TRAININGS[ALARMS]:
        clean = [training for _, point, training in finished if point.workload == workload and point.fault is None]
        limits[NAMES[workload]] = {
            LOSS: threshold(training["losses"] for training in clean),
            NORM: threshold(training["norms"] for training in clean),
        }
    return limits


def _alarms(
    part: str, group: str, point: Point, outcome: dict[str, Any], limits: dict[str, dict[str, float]]
) -> dict[str, int | None]:
    if part == ALARMS:
        own = limits[NAMES[point.workload]]
        return {LOSS: first_alarm(outcome["losses"], own[LOSS]), NORM: first_alarm(outcome["norms"], own[NORM])}
    alarms: dict[str, int | None] = outcome["alarms"] if part == SCREENING else two_ranks.alarms(group, outcome)
    return alarms


def as_text(result: dict[str, Any]) -> str:
    """Return JSON with a line for each run, and for each step of a study."""
    lists: list[list[Any]] = [result["runs"], *(study["series"] for study in result["studies"].values())]
    studies = {name: {**study, "series": f"LIST{at}"} for at, (name, study) in enumerate(result["studies"].items(), 1)}
    text = json.dumps({**result, "runs": "LIST0", "studies": studies}, indent=2)
    for at, rows in enumerate(lists):
        lines = ",\n    ".join(json.dumps(row) for row in rows)
        text = text.replace(f'"LIST{at}"', f"[\n    {lines}\n  ]")
    return text + "\n"


def _of(task: Any) -> dict[str, Any]:
    return {"study": task} if isinstance(task, str) else vars(task)


def _progress(text: str, *, last: bool) -> None:
    if sys.stderr.isatty():
        print(f"\r{text}", end="\n" if last else "", file=sys.stderr, flush=True)
    elif last or int(text.split(": ")[1].split()[0]) % 20 == 0:
        print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
