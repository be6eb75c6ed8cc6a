"""Start the two-rank job that trains all points, and collect the outcome of both ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.corruption.grid import Point
from benchmarks.corruption.rank_checks import RANK_CHECKS

PAUSE = 0.3
"""Seconds between two reads of the results."""
TIMEOUT = 300.0
"""Seconds in which a training has to end."""


def train_all(tasks: Sequence[tuple[str, Point]], done: Callable[[str, Point, dict[str, Any]], object]) -> None:
    """Train each point under its check, and call `done` with each outcome as it ends.

    Raises SystemExit if the job fails.
    """
    with tempfile.TemporaryDirectory(prefix="traincheck-corruption-") as made:
        folder = Path(made)
        lines = [json.dumps({"watch": name, "point": vars(point)}) for name, point in tasks]
        (folder / "tasks.jsonl").write_text("\n".join(lines))
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        with (folder / "log").open("wb") as log:
            job = subprocess.Popen(
                [*launcher, "-m", "benchmarks.corruption.job", str(folder)],
                stdout=log,
                stderr=log,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
            try:
                _follow(job, folder, tasks, done)
            finally:
                if job.poll() is None:
                    job.terminate()  # the launcher ends its ranks
                    job.wait()


def _follow(
    job: subprocess.Popen[bytes],
    folder: Path,
    tasks: Sequence[tuple[str, Point]],
    done: Callable[[str, Point, dict[str, Any]], object],
) -> None:
    completed, since = 0, time.monotonic()
    while completed < len(tasks):
        ended = job.poll() is not None
        first, second = (_lines(folder / f"rank-{rank}.jsonl") for rank in range(2))
        for mine, other in list(zip(first, second, strict=False))[completed:]:
            name, point = tasks[completed]
            done(name, point, both(mine, other))
            completed, since = completed + 1, time.monotonic()
        if completed < len(tasks) and (ended or time.monotonic() - since > TIMEOUT):
            raise SystemExit(f"the job of two ranks failed:\n{(folder / 'log').read_text(errors='replace')[-4000:]}")
        time.sleep(PAUSE)
    job.wait()


def _lines(file: Path) -> list[dict[str, Any]]:
    """Return the complete lines of the file so far."""
    text = file.read_text() if file.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def both(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Combine the outcomes: the faulty rank reports the strokes, the comparing rank the findings between ranks.

    `apart` is whether the two ranks end with different parameters.
    """
    return {
        "strokes": first["strokes"] + second["strokes"],
        "first": second["first"] if second["first"] is not None else first["first"],
        "findings": first["findings"] + second["findings"],
        "not_observed": first["not_observed"] + second["not_observed"],
        "apart": first["weights"] != second["weights"],
    }


def alarms(name: str, outcome: dict[str, Any]) -> dict[str, int | None]:
    """Return the first alarm of each detector of this check."""
    return {
        detector: min((finding["step"] for finding in outcome["findings"] if concerns(finding)), default=None)
        for detector, concerns in RANK_CHECKS[name].detectors.items()
    }
