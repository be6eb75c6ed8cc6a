"""Runs a command and measures wall-clock time, processor time, and the memory of its largest process."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

TRAINCHECK = (sys.executable, "-m", "traincheck")


class CommandCost(NamedTuple):
    """The cost of a command with its child processes; `megabytes` is the peak memory of the largest process."""

    seconds: float
    processor: float
    megabytes: float


def measure_command(words: Sequence[str], home: Path, without: Collection[str] = ()) -> CommandCost:
    """Run a command in `home` without the environment variables `without`. Raises SystemExit with its output."""
    log = home / "measured.log"
    environ = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    for name in without:
        environ.pop(name, None)
    with log.open("wb") as out:
        began = time.perf_counter()
        process = subprocess.Popen(words, cwd=home, stdout=out, stderr=out, env=environ)
        _, status, used = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)  # or Popen would wait for it again
    if process.returncode not in (0, 3):
        raise SystemExit(f"{' '.join(words)} failed:\n{log.read_text()[-4000:]}")
    return CommandCost(seconds, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)


def best_of(of: Sequence[CommandCost]) -> dict[str, float]:
    """Return the minimum times of several rounds, because other load only adds, and the maximum memory."""
    return {
        "seconds": round(min(measurement.seconds for measurement in of), 2),
        "processor_seconds": round(min(measurement.processor for measurement in of), 2),
        "megabytes": round(max(measurement.megabytes for measurement in of)),
    }
