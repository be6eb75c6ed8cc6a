"""Measures the start-up cost of a command on a program that ends at once.

The modes take turns, and the figure is the median over the rounds of the difference to the plain program in the same
round. Beside it stand the seconds of the processors, in which what is done while the program waits counts, too; they
vary less where others use the machine.
"""

from __future__ import annotations

import shutil
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.command_cost import TRAINCHECK, CommandCost, measure_command

SCRIPT = Path(__file__).parent / "workloads" / "short.py"
MODES = ("plain", "collect", "run")
NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"
"""If this variable is set without compiled files, each process compiles TrainCheck, which takes another half second."""


def start_up(rounds: int, scratch: Path) -> dict[str, object]:
    """Seconds that the modes take, and what they add to the plain program."""
    home = scratch / "start-up"
    home.mkdir()
    folder, book = home / "run", home / "book.jsonl"
    commands = {
        "plain": [sys.executable, str(SCRIPT)],
        "collect": [*TRAINCHECK, "collect", "-o", str(folder), str(SCRIPT)],
        "run": [*TRAINCHECK, "run", "--fail-on", "never", "-b", str(book), "-o", str(folder), str(SCRIPT)],
    }

    def timed(mode: str) -> CommandCost:
        shutil.rmtree(folder, ignore_errors=True)
        return measure_command(commands[mode], home, without=(NO_BYTECODE,))

    timed("collect")
    measure_command([*TRAINCHECK, "infer", str(folder), "-o", str(book)], home)
    timed("run")  # all is compiled from here on
    taken: dict[str, list[CommandCost]] = {mode: [] for mode in MODES}
    for number in range(rounds):
        for mode in MODES:
            taken[mode].append(timed(mode))
        seconds = ", ".join(f"{mode} {taken[mode][-1].seconds:.2f} s" for mode in MODES)
        print(f"start-up round {number}: {seconds}", file=sys.stderr, flush=True)
    plain = taken.pop("plain")
    return {
        "rounds": rounds,
        "plain_seconds": round(statistics.median(measurement.seconds for measurement in plain), 2),
        "plain_processor_seconds": round(statistics.median(measurement.processor for measurement in plain), 2),
        **{
            mode: {
                "seconds_more": _more(measurements, plain, lambda measurement: measurement.seconds),
                "processor_seconds_more": _more(measurements, plain, lambda measurement: measurement.processor),
            }
            for mode, measurements in taken.items()
        },
    }


def _more(
    measurements: list[CommandCost], plain: list[CommandCost], of: Callable[[CommandCost], float]
) -> dict[str, float]:
    """Median and range of the differences round by round."""
    more = [of(measurement) - of(other) for measurement, other in zip(measurements, plain, strict=True)]
    return {
        "median": round(statistics.median(more), 2),
        "least": round(min(more), 2),
        "most": round(max(more), 2),
    }
