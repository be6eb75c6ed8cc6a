"""python -m benchmarks.ranks [--only simulated|measured] [--ranks 2,8,64,256,1024] [--parameters 10000] [--rounds 3]

*simulated*: the cost of comparison for the first rank in a job of up to a thousand ranks with ten thousand parameters
each. Digests, messages and comparison are real; there is no training. *measured*: real jobs of 2, 4 and 8 gloo ranks on
this machine, alternating with and without comparison.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.machine import machine
from benchmarks.overhead.step_times import ratio
from benchmarks.page import write_page
from benchmarks.ranks.simulated import LAYOUTS, Job, rules
from traincheck.checking.digests import full, lean
from traincheck.checking.rank_engine import RankEngine
from traincheck.runtime.ranks.rank_protocol import WindowDigest
from traincheck.vocab.demand import EVERYTHING
from traincheck.vocab.events import Window
from traincheck.vocab.invariant import Invariant

RESULTS = Path(__file__).parents[1] / "results" / "ranks.json"
WORKLOAD = Path(__file__).parent / "workload.py"
STEPS, SINCE = 8, 7
"""Steps that are simulated, and the one in which one rank of the job goes wrong."""
TRAINED = 40
PROCESSES = (2, 4, 8)
TRAINCHECK = [sys.executable, "-m", "traincheck"]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--only", choices=["simulated", "measured"])
    options.add_argument("--ranks", default="2,8,64,256,1024")
    options.add_argument("--parameters", type=int, default=10_000)
    options.add_argument("--rounds", type=int, default=3)
    chosen = options.parse_args()
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    results["machine"] = machine()
    if chosen.only != "measured":
        learned = rules()
        sizes = [int(size) for size in chosen.ranks.split(",")]
        results["parameters"] = chosen.parameters
        results["simulated"] = [
            simulate(Job(layout, size, chosen.parameters, wrong=size - 1, since=SINCE), learned)
            for layout in LAYOUTS
            for size in sizes
        ]
        results["one_rank"] = of_one_rank(Job("ddp", 2, chosen.parameters))
    if chosen.only != "simulated":
        with tempfile.TemporaryDirectory() as scratch:
            results["measured"] = measure(Path(scratch), chosen.rounds)
    RESULTS.write_text(json.dumps(results, indent=2) + "\n")
    write_page()


def simulate(job: Job, learned: list[Invariant]) -> dict[str, Any]:
    """Seconds and bytes at the rank that compares, in the first step, a later one, and the one that goes wrong."""
    simulated = _TimedAnswers(job)
    engine = RankEngine([learned], simulated)
    encoder, decoder = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(WindowDigest)
    decoding, judging, requested, failing = [], [], [], []
    size = 0
    for step in range(1, STEPS + 1):
        messages = [encoder.encode(WindowDigest(window)) for window in job.digests_of(step)]
        size = max(map(len, messages))
        began = time.perf_counter()
        windows = [decoder.decode(message).window for message in messages]
        decoding.append(time.perf_counter() - began)
        before, simulated.seconds = engine.classes.looked_at, 0.0
        began = time.perf_counter()
        (violations,) = engine.feed(windows)
        judging.append(time.perf_counter() - began - simulated.seconds)
        requested.append(engine.classes.looked_at - before)
        failing += violations
    first = min((violation.step for violation in failing), default=0)
    row = {
        "layout": job.layout,
        "ranks": job.ranks,
        "message_bytes": size,
        "decode_seconds": round(statistics.median(decoding), 4),
        "judge_seconds": {
            "first": round(judging[0], 3),
            "steady": round(judging[SINCE - 2], 3),
            "wrong": round(judging[SINCE - 1], 3),
        },
        "asked_in_full": {"first": requested[0], "steady": requested[SINCE - 2], "wrong": requested[SINCE - 1]},
        "found_in_step": first,
        "named": sorted({rank for violation in failing for rank in violation.differing.ranks}) if failing else [],
    }
    print(json.dumps(row), file=sys.stderr, flush=True)
    return row


class _TimedAnswers:
    """Windows in full, and the seconds that it took to make them up: real ranks have them."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self.seconds = 0.0

    def __call__(self, windows: Sequence[Window]) -> list[Window]:
        began = time.perf_counter()
        answers = self._job.in_full(windows)
        self.seconds += time.perf_counter() - began
        return answers


def of_one_rank(job: Job) -> dict[str, Any]:
    """Return the time and bytes of a rank per step, and the bytes without digests."""
    window = job.window(0, 1)
    encoder = msgspec.msgpack.Encoder()
    taken = []
    for _ in range(5):
        began = time.perf_counter()
        digest = lean(window, EVERYTHING)
        message = encoder.encode(WindowDigest(digest))
        taken.append(time.perf_counter() - began)
    return {
        "digest_seconds": round(statistics.median(taken), 4),
        "message_bytes": len(message),
        "in_full_bytes": len(encoder.encode(WindowDigest(full(window, EVERYTHING)))),
    }


def measure(scratch: Path, rounds: int) -> list[dict[str, Any]]:
    """Step times with the exchange over those without a comparison, and what each rank sent."""
    for seed in range(3):
        launch([*TRAINCHECK, "collect", "-o", str(scratch / f"good{seed}"), "--"], 2, scratch, seed)
    book = scratch / "book.jsonl"
    good = [str(scratch / f"good{seed}") for seed in range(3)]
    subprocess.run([*TRAINCHECK, "infer", *good, "-o", str(book)], check=True, capture_output=True)
    rows = []
    for ranks in PROCESSES:
        steps: dict[str, list[float]] = {"off": [], "exchange": []}
        sent: list[dict[str, int]] = []
        for number in range(rounds):
            for how in steps:
                folder = scratch / f"{how}-{ranks}-{number}"
                ours = ["run", "--fail-on", "never", "--compare-ranks", how, "--book", str(book), "-o", str(folder)]
                steps[how].append(launch([*TRAINCHECK, *ours, "--"], ranks, scratch, 7))
                print(f"{ranks} ranks, {how}: {steps[how][-1] * 1e3:.1f} ms a step", file=sys.stderr, flush=True)
                notes = [json.loads(path.read_text()) for path in folder.glob("process-*.json")]
                sent += [note["sent"] for note in notes if note["sent"]]
                shutil.rmtree(folder)
        rows.append(
            {
                "ranks": ranks,
                "step_ms": round(statistics.median(steps["off"]) * 1e3, 2),
                "ratio": ratio(steps["exchange"], steps["off"]),
                "messages_per_step": round(statistics.median(counts["messages"] for counts in sent) / TRAINED, 2),
                "bytes_per_step": round(statistics.median(counts["bytes"] for counts in sent) / TRAINED),
            }
        )
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    return rows


def launch(command: list[str], ranks: int, scratch: Path, seed: int) -> float:
    """Run the workload on `ranks` ranks, and return its median step time."""
    out = scratch / "timing.json"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    subprocess.run(
        [*command, *torchrun, str(WORKLOAD), str(seed), str(TRAINED)],
        check=True,
        env={**os.environ, "BENCH_OUT": str(out), "OMP_NUM_THREADS": "1"},
        capture_output=True,
    )
    return float(json.loads(out.read_text())["median_step"])


if __name__ == "__main__":
    main()
