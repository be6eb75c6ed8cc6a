"""Ports of a small GPT: right ones have to be equal up to rounding, and the error in a wrong one has to be named."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.comparisons.pairs import kilobytes_a_step
from traincheck.comparison.difference import DIFFERENT
from traincheck.comparison.run_comparison import compare_runs
from traincheck.vocab.operations import ACCUMULATED, BACKWARD, FORWARD, GRADIENT, UPDATE

PROGRAM = Path(__file__).parent / "programs" / "gpt.py"
REFERENCE = "none"


class Port(NamedTuple):
    """A port, and what an origin of its error is: a phase, and a part of its module or name."""

    name: str
    phases: tuple[str, ...]
    place: str
    ranks: int = 1
    reference: str = REFERENCE


PORTS = (
    Port(REFERENCE, (FORWARD,), "attention"),
    Port("library-attention", (FORWARD,), "attention"),
    Port("formula", (FORWARD,), "mlp"),
    Port("split-weights", (FORWARD,), "attention"),
    Port("transposed-weights", (FORWARD,), "mlp"),
    Port("renamed", (FORWARD,), ""),
    Port("checkpointing", (BACKWARD, GRADIENT), ""),
    Port("compile", (FORWARD, BACKWARD, GRADIENT), ""),
    Port("bfloat16", (FORWARD,), "attention"),
    Port("autocast", (FORWARD,), "attention"),
    Port("fused-optimizer", (UPDATE,), ""),
    Port("micro-batches", (BACKWARD, GRADIENT), ACCUMULATED),
    Port("ddp", (BACKWARD, GRADIENT), "gradient", ranks=2),
    Port("fsdp", (FORWARD, BACKWARD), "", ranks=2),
    Port("pipeline", (FORWARD,), "nll_loss", ranks=2),
    Port("pipeline-numbers", (FORWARD,), "mul", ranks=2),
    Port("pipeline-schedule", (BACKWARD, GRADIENT), "gradient", ranks=2),
    Port("tensor-parallel", (FORWARD,), "attention", ranks=2, reference="split-weights"),
)


class PortResult(NamedTuple):
    """Whether the right port is equal, whether the error of the wrong one is named, and what was found in both."""

    port: str
    equal: bool
    named: bool
    right: str
    wrong: str
    seconds: float
    """Of the comparison of the wrong port."""
    kilobytes_a_step: float


def compare_ports(folder: Path, only: Sequence[str] = ()) -> Iterator[PortResult]:
    """Record and compare the ports, into a folder for their recordings."""
    for port in PORTS:
        if only and port.name not in only:
            continue
        reference = _record(folder, port.reference, ranks=1)
        right = reference if port.name == REFERENCE else _record(folder, port.name, ranks=port.ranks)
        wrong = _record(folder, port.name, ranks=port.ranks, error=True)
        equal, found_right, _ = _compared(reference, right, port)
        began = time.perf_counter()
        _, found_wrong, named = _compared(reference, wrong, port)
        seconds = round(time.perf_counter() - began, 2)
        yield PortResult(port.name, equal, named, found_right, found_wrong, seconds, kilobytes_a_step(right))


def _record(folder: Path, port: str, *, ranks: int, error: bool = False) -> Path:
    run = folder / f"{port}{'-wrong' if error else ''}"
    if run.exists():
        return run
    program = [str(PROGRAM), "--port", port, *(["--error"] if error else [])]
    if ranks > 1:
        program = ["--", "torchrun", "--nproc-per-node", str(ranks), *program]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-m", "traincheck", "collect", "--record", "operations", "-o", str(run), *program]
    done = subprocess.run(words, env=environ, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{port} failed: {done.stderr[-2000:]}")
    return run


def _compared(reference: Path, run: Path, port: Port) -> tuple[bool, str, bool]:
    """Whether both runs are equal, the result in words, and whether it names the error."""
    comparison = compare_runs(reference, run)
    if comparison.result != DIFFERENT:
        return True, comparison.result, False
    first = comparison.origins[0]
    place = f"{first.operation.module} {first.operation.name}"
    found = f"{first.kind} in step {first.step}: {first.operation.phase} {place}"
    return False, found, first.step == 1 and first.operation.phase in port.phases and port.place in place
