"""python -m benchmarks.scale [--events N] [--folders N] [--workers 1,2] [--runs FOLDER] [--source gpt]

Repeats a real recording with other values until the run folders hold ten million events; later runs reuse them. Learns
from all folders with one local process per core, and then on a local Ray cluster with each number of workers.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.command_cost import TRAINCHECK, best_of, measure_command
from benchmarks.inference.__main__ import recordings
from benchmarks.long_recordings import LongRecording, events_in, write_recording
from benchmarks.machine import machine
from benchmarks.page import write_page
from benchmarks.recorded_runs import ROOT
from traincheck.inference.ray_cluster import RayCluster
from traincheck.inference.tally_runs import gather
from traincheck.inference.worker_pool import run_in_workers
from traincheck.trace.folder import RunFolder

RESULTS = ROOT / "benchmarks" / "results" / "scale.json"


def main() -> None:
    """Write what is missing, measure, keep and print the result."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--events", type=int, default=10_000_000)
    options.add_argument("--folders", type=int, default=18)
    options.add_argument("--workers", default="1,2")
    options.add_argument("--source", choices=["cnn", "gpt"], default="gpt")
    options.add_argument("--runs", type=Path, default=ROOT / "traincheck-runs" / "scale")
    options.add_argument("--keep", action=argparse.BooleanOptionalAction, default=True, help="keep the result")
    chosen = options.parse_args()
    source = recordings(chosen.runs)[chosen.source]
    home = chosen.runs / f"{chosen.source}-{chosen.events}-{chosen.folders}"
    written = write_all(source, home, chosen.events, chosen.folders)
    with tempfile.TemporaryDirectory() as scratch:
        local = locally(list(written), Path(scratch))
    events = sum(written.values())
    figures = {
        "source": chosen.source,
        "events": events,
        "folders": len(written),
        "local": {"jobs": os.cpu_count(), **local, "events_per_second": round(events / local["seconds"])},
        "ray": [on_ray(list(written), int(workers), events) for workers in chosen.workers.split(",") if workers],
    }
    print(json.dumps(figures, indent=2))
    if chosen.keep:
        RESULTS.write_text(json.dumps({"machine": machine(), **figures}, indent=2) + "\n")
        write_page()


def write_all(source: Path, home: Path, events: int, folders: int) -> dict[Path, int]:
    """The run folders with the events in each."""
    windows = (window for _, windows in RunFolder.open(source).windows() for window in windows)
    steps = (window for window in windows if window.step and window.stage != "end")  # what is repeated
    times = math.ceil(events / folders / sum(map(events_in, steps)))
    longs = [LongRecording(home / f"run{number}", source, times, number) for number in range(folders)]
    counts = dict(run_in_workers(write_recording, longs, os.cpu_count() or 1))
    return {long.folder: counts[index] for index, long in enumerate(longs)}


def locally(folders: list[Path], home: Path) -> dict[str, float]:
    """The command with a process for each core."""
    words = [*TRAINCHECK, "infer", "-o", "book.jsonl", "--jobs", str(os.cpu_count())]
    return best_of([measure_command([*words, *map(str, folders)], home)])


def on_ray(folders: list[Path], workers: int, events: int) -> dict[str, Any]:
    """Tally all folders on a local Ray cluster with `workers` workers, without the time to start it."""
    began = time.perf_counter()
    with RayCluster(workers=workers) as cluster:
        started = time.perf_counter()
        gather(folders[:1], cluster=cluster)  # the workers have imported all they need
        warm = time.perf_counter()
        gather(folders, cluster=cluster)
        seconds = time.perf_counter() - warm
    return {
        "workers": workers,
        "start_seconds": round(started - began, 1),
        "seconds": round(seconds, 1),
        "events_per_second": round(events / seconds),
    }


if __name__ == "__main__":
    main()
