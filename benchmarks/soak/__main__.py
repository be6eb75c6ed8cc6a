"""python -m benchmarks.soak [--steps 50000] [--workload steady]: memory, bytes and cost of long runs.

All modes of a workload run at once and take turns block by block. A slow phase of the machine then affects all modes,
and none runs in parallel to another. A ratio compares a block with the same block of the plain program.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.machine import machine
from benchmarks.page import write_page
from benchmarks.soak import table
from benchmarks.soak.table import PLAIN

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results" / "soak.json"
TRAINCHECK = [sys.executable, "-m", "traincheck"]
LEARNED_FROM = 300
"""Steps of the two runs from which the book is learned."""
WARM_UP = 0.05
"""Share of the steps after which memory is taken to be as it will be."""

MODES = {
    "run --record all --keep-recording 20MB": ["run", "--record", "all", "--keep-recording", "20MB"],
    "run --budget 1/10": ["run", "--budget", "1/10"],
    "run --budget 1%": ["run", "--budget", "1%"],
    "collect --keep-recording 20MB": ["collect", "--keep-recording", "20MB"],
}
WORKLOADS = {"steady": (PLAIN, *MODES), "restless": (PLAIN, *(mode for mode in MODES if "keep" in mode))}
SAMPLED = ("run --budget 1/10", "run --budget 1%")
"""Modes whose figure is the mean step time, because their median step is not watched."""


class Turns:
    """A run under way that waits after each block of steps."""

    def __init__(self, process: subprocess.Popen[str], folder: Path | None) -> None:
        self.process = process
        self.folder = folder
        self.blocks: list[dict[str, float]] = []

    def take(self) -> None:
        """Run a block of steps, and store its sample and the size of its folder."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"it ended early: {self.process.args}")
        self.blocks.append(
            {
                **json.loads(line),
                "command_kb": _resident(self.process.pid),
                "bytes": sum(file.stat().st_size for file in _files(self.folder)),
            }
        )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--steps", type=int, default=50_000)
    options.add_argument("--block", type=int, default=250)
    options.add_argument("--workload", action="append", choices=list(WORKLOADS))
    chosen = options.parse_args()
    workloads = json.loads(RESULTS.read_text())["workloads"] if RESULTS.exists() else {}
    with tempfile.TemporaryDirectory() as scratch:
        for name in chosen.workload or WORKLOADS:
            workloads[name] = measure(name, chosen.steps, chosen.block, Path(scratch))
            RESULTS.write_text(json.dumps({"machine": machine(), "workloads": workloads}, indent=2) + "\n")
            print(json.dumps(workloads[name]))
    print(table.text({"workloads": workloads}))
    write_page()


def measure(name: str, steps: int, block: int, scratch: Path) -> dict[str, Any]:
    """The figures of each mode of a workload."""
    book = learn(name, scratch)
    with ExitStack() as stack:
        runs = {mode: stack.enter_context(started(mode, name, book, steps, block, scratch)) for mode in WORKLOADS[name]}
        for number in range(steps // block):
            for run in runs.values():
                run.take()
            if (number + 1) * block % 2500 == 0:
                memory = {mode: round(run.blocks[-1]["rss_kb"] / 1e3) for mode, run in runs.items()}
                print(f"{name} step {(number + 1) * block:,}: {memory} MB", file=sys.stderr, flush=True)
    plain = runs[PLAIN].blocks
    return {"steps": steps, "modes": {mode: figures(mode, run.blocks, plain) for mode, run in runs.items()}}


def figures(mode: str, blocks: list[dict[str, float]], plain: list[dict[str, float]]) -> dict[str, Any]:
    """Return the result of a run: memory after the warm-up and at the end, written bytes, cost early and late."""
    warm = blocks[int(len(blocks) * WARM_UP) :]
    third = len(warm) // 3
    figure = "mean_ms" if mode in SAMPLED else "median_ms"
    ratios = [sample[figure] / other[figure] for sample, other in zip(blocks, plain, strict=True)][-len(warm) :]
    return {
        "step_ms": {"early": _median(warm[:third], figure), "late": _median(warm[-third:], figure)},
        "ratio": {"early": round(_middle(ratios[:third]), 3), "late": round(_middle(ratios[-third:]), 3)},
        "memory_mb": {
            "warm": round(warm[0]["rss_kb"] / 1e3, 1),
            "end": round(warm[-1]["rss_kb"] / 1e3, 1),
            "most": round(max(sample["rss_kb"] for sample in warm) / 1e3, 1),
        },
        "command_mb": {"warm": round(warm[0]["command_kb"] / 1e3, 1), "end": round(warm[-1]["command_kb"] / 1e3, 1)},
        "bytes_at": {
            str(int(sample["step"])): int(sample["bytes"]) for sample in blocks[9 :: max(1, len(blocks) // 10)]
        },
        "most_bytes": int(max(sample["bytes"] for sample in blocks)),
    }


def learn(name: str, scratch: Path) -> Path:
    """A book of two runs of the workload."""
    book, folders = scratch / f"{name}.jsonl", [scratch / f"{name}-{number}" for number in range(2)]
    environ = {**os.environ, "SOAK_STEPS": str(LEARNED_FROM)}
    for folder in folders:
        _done([*TRAINCHECK, "collect", "-o", str(folder), _script(name)], environ)
    _done([*TRAINCHECK, "infer", *map(str, folders), "-o", str(book)], environ)
    return book


@contextmanager
def started(mode: str, name: str, book: Path, steps: int, block: int, scratch: Path) -> Iterator[Turns]:
    """A run that waits for its turn; ended at the end, by itself or not."""
    folder = scratch / f"{name}-{list(MODES).index(mode)}-long" if mode != PLAIN else None
    command = [sys.executable, _script(name)]
    if folder is not None:
        words = MODES[mode] + (["--book", str(book), "--fail-on", "never"] if MODES[mode][0] == "run" else [])
        command = [*TRAINCHECK, *words, "-o", str(folder), _script(name)]
    environ = {**os.environ, "SOAK_STEPS": str(steps), "SOAK_BLOCK": str(block), "SOAK_TURNS": "yes"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, text=True, env=environ, **pipes) as process:  # type: ignore[call-overload]
        try:
            yield Turns(process, folder)
            process.stdin.close()
            if process.wait(300) != 0:
                raise SystemExit(f"{mode} of {name} ended with {process.returncode}")
        finally:
            process.kill()


def _done(command: list[str], environ: dict[str, str]) -> None:
    subprocess.run(command, check=True, env=environ, capture_output=True)


def _script(name: str) -> str:
    return str(HERE / "workloads" / f"{name}.py")


def _files(folder: Path | None) -> list[Path]:
    return [] if folder is None else [file for file in folder.rglob("*") if file.is_file()]


def _resident(process: int) -> int:
    """Kilobytes of memory that a process holds."""
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


def _middle(values: list[float]) -> float:
    return statistics.median(values) if values else 0.0


def _median(blocks: list[dict[str, float]], figure: str) -> float:
    return round(_middle([sample[figure] for sample in blocks]), 3)


if __name__ == "__main__":
    main()
