"""Runs workloads that time their own steps, and compares the modes round by round."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from traincheck.trace.reader import read_windows
from traincheck.vocab.events import TRAIN

TRAINCHECK = [sys.executable, "-m", "traincheck"]


def timed(command: list[str], scratch: Path, environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Median and mean step time (`median_step`, `mean_step`) and that of each step (`times`), in seconds, as the
    workload itself measured them."""
    out = scratch / "timing.json"
    subprocess.run(command, check=True, env={**environ, "BENCH_OUT": str(out)}, capture_output=True)
    result: dict[str, Any] = json.loads(out.read_text())
    return result


def ratio(measured: Sequence[float], plain: Sequence[float]) -> dict[str, float]:
    """Median and range of the ratios round by round."""
    ratios = [seconds / other for seconds, other in zip(measured, plain, strict=True)]
    return {
        "median": round(statistics.median(ratios), 3),
        "least": round(min(ratios), 3),
        "most": round(max(ratios), 3),
    }


def ratio_text(ratio: Mapping[str, float]) -> str:
    """The median of ratios, with their range."""
    return f"{ratio['median']:.2f}x ({ratio['least']:.2f}-{ratio['most']:.2f})"


def where(folder: Path) -> dict[str, object]:
    """Return the costs of a run, with start-up: milliseconds per step by source and background stage, events, hashed
    MB.
    """
    notes = [json.loads(path.read_text()) for path in folder.glob("process-*.json")]
    steps = max(1, sum(note["steps"] for note in notes))
    windows = [window for path in folder.glob("events-*") for window in read_windows(path) if window.stage == TRAIN]
    recorded = sum(len(window.calls) + len(window.changes) + len(window.readings) for window in windows)
    events = steps * recorded / max(1, len(windows))  # of a checked run not all steps are recorded
    on_thread = sum(sum(note["cost"].values()) for note in notes)
    hashed, hashing = sum(note["hashed"] for note in notes), sum(note["hashing"] for note in notes)
    return {
        "sources_ms": _each_ms([note["cost"] for note in notes], steps),
        "background_ms": _each_ms([note["background"] for note in notes], steps),
        "events": round(events / steps, 1),
        "ns_per_event": round(on_thread / max(1, events) * 1e9),
        "hashed_mb": round(hashed / steps / 1e6, 3),
        "gb_per_second": round(hashed / hashing / 1e9, 1) if hashing else None,
    }


def _each_ms(measurements: list[dict[str, float]], steps: int) -> dict[str, float]:
    names = sorted({name for measurement in measurements for name in measurement})
    milliseconds = {
        name: round(sum(measurement.get(name, 0.0) for measurement in measurements) / steps * 1e3, 3) for name in names
    }
    return dict(sorted(milliseconds.items(), key=lambda entry: -entry[1]))
