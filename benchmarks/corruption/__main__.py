"""python -m benchmarks.corruption [--quick] [--only alarms,screening,ranks,study] [--go-on] [--jobs 2] [--runs FOLDER]

Puts faults (bit position x site x rate, several seeds each) into trainings, and tells which detectors find them, and
how many steps after the first stroke; and that they say nothing of as many trainings without a fault.

*alarms*: the usual ones on loss and gradient norm. *screening*: what `traincheck sdc screen` does, on a device that has
the fault. *ranks*: two ranks that are checked as `traincheck run` checks them. *study*: what a fault does to a training
(`traincheck sdc study`). Results go to benchmarks/results/corruption.json and docs/sdc-detection.md when all of it was
run. Ctrl-C keeps what was done, and --go-on goes on from there. --quick is a small grid, of which nothing is kept.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.corruption import studied, two_ranks
from benchmarks.corruption.alarms import LOSS, NORM, first_alarm, threshold
from benchmarks.corruption.grid import DECODER, HALF, IMAGES, NAMES, QUICK, WHOLE, Point
from benchmarks.corruption.kept import Kept
from benchmarks.corruption.one_process import ALARMS, SCREENING, spread
from benchmarks.corruption.page import summary, write_page
from benchmarks.corruption.tally import tallies
from benchmarks.corruption.watches import QUICK as QUICK_WATCHES
from benchmarks.corruption.watches import WATCHES
from benchmarks.machine import machine

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "corruption.json"
RANKS, STUDY = "ranks", "study"
PARTS = (ALARMS, SCREENING, RANKS, STUDY)
TRAININGS = {ALARMS: {DECODER: WHOLE, IMAGES: HALF}, SCREENING: {DECODER: WHOLE}}
"""Which workloads are trained, over which grid; a screening is made with the built-in one."""


def main(words: Sequence[str] | None = None) -> int:
    """Run what was chosen; keep the result of a whole run."""
    chosen = options().parse_args(words)
    parts = chosen.only.split(",") if chosen.only else list(PARTS)
    unknown = [part for part in parts if part not in PARTS]
    if unknown:
        options().error(f"--only {chosen.only}: expected some of {', '.join(PARTS)}, separated by commas")
    kept = Kept(chosen.runs / ("quick.jsonl" if chosen.quick else "rows.jsonl"), go_on=chosen.go_on)
    began, interrupted = time.monotonic(), False
    try:
        for part in parts:
            execute(part, kept, chosen.quick, chosen.jobs)
    except KeyboardInterrupt:
        interrupted = True
    seconds = None if chosen.go_on else round(time.monotonic() - began)
    result = {"machine": machine(), "seconds": seconds, **results_so_far(parts, kept, chosen.quick)}
    print(summary(result))
    if interrupted:
        print("It was interrupted; this is what was done. --go-on goes on from here.", file=sys.stderr)
        return 130
    if not chosen.quick and not chosen.only:
        RESULTS.write_text(as_text(result))
        write_page(result)
    return 0


def options() -> argparse.ArgumentParser:
    """The options of the command."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.corruption",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="a small grid; no result is kept")
    parser.add_argument("--only", default="", help=f"some of {','.join(PARTS)}; no result is kept")
    parser.add_argument("--go-on", action="store_true", help="with what an interrupted run (of this version) has kept")
    parser.add_argument("--jobs", type=int, default=2, help="processes that train at a time (1: this one)")
    parser.add_argument("--runs", type=Path, default=ROOT / "traincheck-runs" / "corruption", help="where it is kept")
    return parser


def tasks_of(part: str, quick: bool) -> list[tuple[str, Any]]:
    """What a part executes: the group, and a point or the name of a study."""
    if part in TRAININGS:
        grids = {workload: QUICK if quick else grid for workload, grid in TRAININGS[part].items()}
        return [(part, point) for workload, grid in grids.items() for point in grid.all(workload)]
    if part == RANKS:
        names = QUICK_WATCHES if quick else tuple(WATCHES)
        return [(name, point) for name in names for point in (QUICK if quick else WATCHES[name].grid).all(DECODER)]
    return [(part, name) for name in (studied.QUICK if quick else studied.STUDIES)]


def execute(part: str, kept: Kept, quick: bool, jobs: int) -> None:
    """Execute what is not kept yet, telling how far it is."""
    tasks = tasks_of(part, quick)
    missing = [(group, task) for group, task in tasks if kept.get(group, _of(task)) is None]
    done = len(tasks) - len(missing)
    _progress(f"{part}: {done} of {len(tasks)}", last=True)

    def add(group: str, task: Any, outcome: dict[str, Any]) -> None:
        nonlocal done
        done += 1
        kept.add(group, _of(task), outcome)
        _progress(f"{part}: {done} of {len(tasks)}", last=done == len(tasks))

    if part in TRAININGS:
        for group, task, outcome in spread(missing, jobs):
            add(group, task, outcome)
    elif part == RANKS:
        if missing:
            two_ranks.train_all(missing, add)
    else:
        for group, task in missing:
            add(group, task, studied.study(task))


def results_so_far(parts: Sequence[str], kept: Kept, quick: bool) -> dict[str, Any]:
    """What the chosen parts have shown so far."""
    result: dict[str, Any] = {"runs": [], "clean": {}, "thresholds": {}, "studies": {}}
    rows: list[dict[str, Any]] = []
    for part in parts:
        tasks = tasks_of(part, quick)
        there = [
            (group, tally, outcome) for group, tally in tasks if (outcome := kept.get(group, _of(tally))) is not None
        ]
        if part == STUDY:
            result["studies"] = {name: studied.condensed(outcome) for _, name, outcome in there}
            continue
        limits = _limits(there) if part == ALARMS else {}
        result["thresholds"] |= limits
        for group, point, outcome in there:
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
    # Of runs without a fault only those with an alarm are of interest one by one.
    result["runs"] = [row for row in rows if not row["clean"] or any(row["alarms"].values())]
    result["detectors"] = {name: tally.data() for (name, _), tally in tallies(rows).items()}
    return result


def row_of(group: str, point: Point) -> dict[str, object]:
    fault = WATCHES[group].fault(point) if group in WATCHES else point.fault
    return {**point.data(), **({"fault": fault.text} if fault is not None else {})}


def _limits(there: Sequence[tuple[str, Point, dict[str, Any]]]) -> dict[str, dict[str, float]]:
    """The thresholds of the alarms for each workload, tuned on its clean runs."""
    limits: dict[str, dict[str, float]] = {}
    for workload in TRAININGS[ALARMS]:
        clean = [training for _, point, training in there if point.workload == workload and point.fault is None]
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
    """JSON with a line for each run, and for each step of a study."""
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
