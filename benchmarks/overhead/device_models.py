"""Measures the cost of observation on an accelerator: step time, memory, kernels, and waits of the host.

Each mode trains in a process of its own, and the modes take turns. In the first round each process also counts what
the device is asked to do in some steps that are not timed. A mode that fails is reported, and the others go on.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from benchmarks.machine import machine
from benchmarks.overhead.device_table import VERIFY_EVERY, VERIFY_TARGET
from benchmarks.overhead.step_times import TRAINCHECK, ratio, timed, where
from benchmarks.page import write_page

SCRIPT = Path(__file__).parent / "workloads" / "device_gpt.py"
RESULTS = Path(__file__).resolve().parents[1] / "results"
MODELS = ("124m", "1b", "tiny")
COMPILED = "_compiled"
DEVICE_WORKLOADS = tuple(f"gpt_{model}{compiled}" for model in MODELS for compiled in ("", COMPILED))
DEFAULT = DEVICE_WORKLOADS[:4]
MODES = {
    "run": ["run", "--budget", "1/1"],
    "budget": ["run", "--budget", "1%,first=10"],
    "collect": ["collect"],
    "verify": ["run", "--verify-every", str(VERIFY_EVERY)],
}
"""Words of the command by mode, apart from `plain`. All `run` modes check against the shipped packs."""
PROFILED = ("plain", "run", "collect")
LAST_LINES = 12


class Extent(NamedTuple):
    """How much a measurement runs: rounds, timed steps of a process, and modes other than `plain`."""

    rounds: int
    steps: int
    modes: Sequence[str]


def measure_device(device: str, names: Sequence[str], extent: Extent, out: Path | None) -> None:
    """Measure the workloads, print a summary, and write the result file; results of other workloads stay."""
    path = out or RESULTS / f"overhead-{device}.json"
    results = json.loads(path.read_text()) if path.exists() else {"workloads": {}}
    for name in names:
        began = time.perf_counter()
        with TemporaryDirectory() as scratch, _caches_in(Path(scratch)):
            measured = _measure(name, device, extent, Path(scratch))
        measured["seconds"] = round(time.perf_counter() - began, 1)
        results["workloads"][name] = measured
        results["machine"] = {**machine(), "device": _device_name(device)}
        path.write_text(json.dumps(results, indent=2) + "\n")  # after each: a limit may end this process
        print(f"{name}: {json.dumps(measured)}", flush=True)
    if path.parent == RESULTS:
        write_page()


def _measure(name: str, device: str, extent: Extent, scratch: Path) -> dict[str, Any]:
    """The figures of one workload."""
    model = name.removeprefix("gpt_").removesuffix(COMPILED)
    words = [str(SCRIPT), "--model", model, "--device", device, "--steps", str(extent.steps)]
    if name.endswith(COMPILED):
        words.append("--compile")
        _run("plain", [*words, "--steps", "1"], scratch, scratch)  # fills the cache of compiled kernels
    runs: dict[str, list[dict[str, Any]]] = {mode: [] for mode in ("plain", *extent.modes)}
    failed: dict[str, str] = {}
    notes: dict[str, dict[str, Any]] = {}
    for number in range(extent.rounds):
        for mode, done in runs.items():
            if mode in failed or (mode == "verify" and number):
                continue
            folder = scratch / f"{mode}-{number}"
            profile = ["--profile"] if mode in PROFILED and not number else []
            try:
                done.append(_run(mode, [*words, *profile], folder, scratch))
            except subprocess.CalledProcessError as error:
                failed[mode] = "\n".join(error.stderr.decode(errors="replace").splitlines()[-LAST_LINES:])
                print(f"{name} {mode} failed:\n{failed[mode]}", file=sys.stderr, flush=True)
                continue
            milliseconds = done[-1]["median_step"] * 1e3
            print(f"{name} {mode} round {number}: {milliseconds:.2f} ms a step", file=sys.stderr, flush=True)
            if mode != "plain" and not number:
                notes[mode] = {"where": where(folder), "findings": _findings(folder)}
    if "plain" in failed:
        return {"failed": failed}
    plain = runs["plain"]
    return {
        "rounds": extent.rounds,
        "steps": extent.steps,
        "parameters": plain[0]["parameters"],
        "plain_step_ms": round(statistics.median(run["median_step"] for run in plain) * 1e3, 3),
        "plain_peak_mb": round(plain[0]["peak_bytes"] / 1e6),
        "plain_counts": plain[0]["counts"],
        "modes": {
            mode: {**_compared(mode, runs[mode], plain), **notes[mode]} for mode in extent.modes if mode not in failed
        },
        "failed": failed,
    }


def _run(mode: str, words: list[str], folder: Path, scratch: Path) -> dict[str, Any]:
    """Train once in a mode, and return what the workload measured."""
    if mode == "plain":
        return timed([sys.executable, *words], scratch)
    failing = ["--fail-on", "never"] if "run" in MODES[mode] else []
    return timed([*TRAINCHECK, *MODES[mode], *failing, "--runs", str(scratch), "-o", str(folder), *words], scratch)


def _compared(mode: str, runs: list[dict[str, Any]], plain: list[dict[str, Any]]) -> dict[str, Any]:
    """What a mode adds to the plain program."""
    others = plain[: len(runs)]
    figures: dict[str, Any] = {
        name: ratio([run[step] for run in runs], [run[step] for run in others])
        for name, step in (("ratio", "median_step"), ("mean_ratio", "mean_step"))
    }
    figures["first_steps_ms"] = [round(seconds * 1e3) for seconds in runs[0]["times"][:3]]
    figures["added_peak_mb"] = round((max(run["peak_bytes"] for run in runs) - plain[0]["peak_bytes"]) / 1e6)
    counts, before = runs[0]["counts"], plain[0]["counts"]
    if counts:
        figures["added"] = {
            **{name: round(counts[name] - before[name], 2) for name in ("kernels", "copies_to_host", "kernel_ms")},
            "waits": round(sum(counts["waits"].values()) - sum(before["waits"].values()), 2),
        }
        figures["counts"] = counts
    if mode == "verify":
        figures["times_ms"] = [round(seconds * 1e3, 1) for seconds in runs[0]["times"]]
        figures["at_target"] = _at_target(runs[0]["times"])
    return figures


def _at_target(times: list[float]) -> float:
    """The ratio to unverified steps of a run that verifies one of `VERIFY_TARGET` steps.

    A verification may end in the next step.
    """
    steps = range(VERIFY_EVERY, len(times), VERIFY_EVERY)
    verified = {step + later for step in steps for later in (0, 1)}
    other = statistics.median(seconds for step, seconds in enumerate(times, 1) if step > 10 and step not in verified)
    excess = [sum(times[step - 1 : step + 1]) - 2 * other for step in steps]
    return round(1 + statistics.mean(excess) / other / VERIFY_TARGET, 4) if excess else 1.0


def _findings(folder: Path) -> list[str]:
    """The titles of the findings of a run."""
    report = folder / "report.json"
    if not report.exists():
        return []
    return [finding.get("title", "") for finding in json.loads(report.read_text())["findings"]]


def _device_name(device: str) -> str:
    import torch

    return torch.cuda.get_device_name() if device.startswith("cuda") else device


@contextmanager
def _caches_in(folder: Path) -> Iterator[None]:
    """Keep compiled kernels of earlier measurements out of this one."""
    before = dict(os.environ)
    os.environ.update(TORCHINDUCTOR_CACHE_DIR=str(folder / "inductor"), TRITON_CACHE_DIR=str(folder / "triton"))
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
