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
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.machine import machine
from benchmarks.overhead.step_times import ratio
from benchmarks.page import write_page
from benchmarks.ranks.simulated import LAYOUTS, Job, rules
from traincheck.checking.digests import VALUES_PER_STEP, RecordedValues, Selection, ValueDigests, lean
from traincheck.checking.rank_engine import RankEngine
from traincheck.runtime.ranks.rank_protocol import WindowDigest, WindowValueDigests, WindowValues
from traincheck.trace.alignment import aligned
from traincheck.vocab.demand import EVERYTHING
from traincheck.vocab.events import Window
from traincheck.vocab.invariant import Invariant

RESULTS = Path(__file__).parents[1] / "results" / "ranks.json"
WORKLOAD = Path(__file__).parent / "workload.py"
STEPS, SINCE = 16, 10
"""Steps that are simulated, and the one in which one rank of the job goes wrong."""
SETTLED, STEADY = 4, slice(4, 9)
"""The first steps, in which equal values are requested, and those behind them."""
LONG = 1000
"""Steps of the run over which costs are averaged."""
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
        results.update(parameters=chosen.parameters, since=SINCE, long=LONG)
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
    """Processor seconds of the comparing rank in each step, and what it finds."""
    answers = _Answers(job)
    engine = RankEngine([learned], answers)
    encoder, decoder = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(WindowDigest)
    received: list[deque[Window]] = [deque() for _ in range(job.ranks)]
    in_step = aligned([_taken(windows) for windows in received])
    decoding, aligning, judging, failing = [], [], [], []
    size = 0
    for step in range(1, STEPS + 1):
        messages = [encoder.encode(WindowDigest(window)) for window in job.digests_of(step)]
        size = max(map(len, messages))
        began = time.process_time()
        for windows, message in zip(received, messages, strict=True):
            windows.append(decoder.decode(message).window)
        decoding.append(time.process_time() - began)
        began = time.process_time()
        together = next(in_step)
        aligning.append(time.process_time() - began)
        answers.seconds = 0.0
        began = time.process_time()
        (violations,) = engine.feed(together)
        judging.append(time.process_time() - began - answers.seconds)
        failing += violations
    total = [sum(parts) for parts in zip(decoding, aligning, judging, strict=True)]
    steady, after = statistics.median(total[STEADY]), statistics.median(total[SINCE:])
    full = total[1]  # all values of sections in which ranks agree, if there are any
    in_full = LONG * VALUES_PER_STEP // (3 * job.parameters)
    first = min((violation.step for violation in failing), default=0)
    row = {
        "layout": job.layout,
        "ranks": job.ranks,
        "message_bytes": size,
        "seconds": {
            "decode": round(statistics.median(decoding), 5),
            "align": round(statistics.median(aligning), 5),
            "judge": round(statistics.median(judging[STEADY]), 5),
            "steady": round(steady, 5),
            "wrong": round(total[SINCE - 1], 4),
            "after": round(after, 5),
            "worst": round(max(total), 4),
            "average": round((sum(total[:SETTLED]) + in_full * full + (LONG - SETTLED - in_full) * steady) / LONG, 5),
        },
        "found_in_step": first,
        "named": sorted({rank for violation in failing for rank in violation.differing.ranks}) if failing else [],
    }
    print(json.dumps(row), file=sys.stderr, flush=True)
    return row


def _taken(windows: deque[Window]) -> Iterator[Window]:
    while windows:
        yield windows.popleft()


class _Answers(RecordedValues):
    """What ranks answer, and the seconds that other ranks need for it. The first rank compares, and is none of them."""

    def __init__(self, job: Job) -> None:
        super().__init__(self._window)
        self._job = job
        self._windows: dict[tuple[int, int], Window] = {}
        self.seconds = 0.0

    def _window(self, lean_window: Window) -> Window:
        key = lean_window.rank, lean_window.step
        if key not in self._windows:
            began = time.process_time()
            self._windows = {other: window for other, window in self._windows.items() if other[1] == key[1]}
            self._windows[key] = self._job.window(*key)
            self.seconds += time.process_time() - began
        return self._windows[key]

    def value_digests(self, windows: Sequence[Window], sections: frozenset[str]) -> list[ValueDigests | None]:
        answers: list[ValueDigests | None] = []
        for window in windows:
            (answer,) = self._timed(
                window, lambda window=window: RecordedValues.value_digests(self, [window], sections)
            )
            sent = WindowValueDigests(0, None if answer is None else {name: [*of] for name, of in answer.items()})
            answers.append(self._received(window, sent).digests)
        return answers

    def selected(self, windows: Sequence[Window], selection: Selection) -> list[Window | None]:
        answers: list[Window | None] = []
        for window in windows:
            (answer,) = self._timed(window, lambda window=window: RecordedValues.selected(self, [window], selection))
            answers.append(self._received(window, WindowValues(0, answer)).window)
        return answers

    def _timed(self, window: Window, answer: Callable[[], Any]) -> Any:
        self._window(window)
        began = time.process_time()
        result = answer()
        if window.rank:
            self.seconds += time.process_time() - began
        return result

    def _received(self, window: Window, answer: Any) -> Any:
        """The answer as it is received: it is encoded by the rank that sends it."""
        if not window.rank:
            return answer
        began = time.process_time()
        message = msgspec.msgpack.encode(answer)
        self.seconds += time.process_time() - began
        return msgspec.msgpack.decode(message, type=type(answer))


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
        "in_full_bytes": len(encoder.encode(WindowDigest(window))),
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
