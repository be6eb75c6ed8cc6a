"""python -m benchmarks.detection [--cases A,deepspeed-1801] [--jobs 3] [--runs FOLDER] [--reuse] [--cold]
                               [--ours] [--examples-only] [--live]

Learns a book from the examples, and for each case a book from three earlier configurations of its clean program.
Records the clean and the buggy program of each case, and checks both with both books. Reports the detected errors with
their step, and whether the leading finding names the cause. Every book also checks every clean run: each finding there
is a false alarm. A run of all cases writes benchmarks/results/detection.json and docs/benchmarks.md.

With --live, cases of several ranks are run under `traincheck run`, as users do, and the reports of these runs are
judged. Results go to benchmarks/results/live.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.detection.books import EXAMPLES, TWIN, WHOLE, alarms, example_programs, leave_one_out
from benchmarks.detection.cases import BadCase, Case, read_cases
from benchmarks.detection.live import run_live
from benchmarks.detection.live_table import detected_in, shortfalls
from benchmarks.detection.recordings import ROOT, ProgramFailed
from benchmarks.detection.runs import Learned, RecordingOptions, Run, recorded_example, run_case
from benchmarks.detection.warm import warm_pool
from benchmarks.machine import machine
from benchmarks.page import write_page
from traincheck.inference.candidate_selection import select_rules
from traincheck.invariants.book import Book, write_book

RESULTS = ROOT / "benchmarks" / "results" / "detection.json"
LIVE_RESULTS = RESULTS.with_name("live.json")

T = TypeVar("T")


def main() -> int:
    """Run the chosen cases, print a line for each, keep the result of a whole run."""
    chosen = options().parse_args()
    try:
        cases = read_cases(chosen.cases)
    except BadCase as error:
        options().error(str(error))
    began = time.perf_counter()
    recording_options = RecordingOptions(chosen.runs.resolve(), chosen.reuse, chosen.cold, not chosen.examples_only)
    book_file = recording_options.runs / f"{EXAMPLES}.jsonl"
    try:
        with warm_pool(chosen.jobs) as pool:
            learned = spread(
                pool,
                recorded_example,
                [(program, recording_options) for program in example_programs(recording_options.runs)],
            )
            book, _ = select_rules([example.tally for example in learned])
            write_book(book, book_file)
            print(
                f"{len(learned)} examples, {len(book.invariants)} rules, {time.perf_counter() - began:.0f} s",
                flush=True,
            )
            if chosen.live:
                return live(pool, cases, recording_options, book_file, keep=not chosen.cases)
            runs = spread(pool, run_case, [(case, recording_options, book_file, not chosen.ours) for case in cases])
    except ProgramFailed as error:
        print(error, file=sys.stderr)
        return 1
    result = {
        "machine": machine(),
        "rules": len(book.invariants),
        "examples": {example.name: round(example.seconds, 1) for example in learned},
        "cases": [run.row for run in runs],
        "alarms": false_alarms(book, runs, learned, chosen.jobs, others=not chosen.cases or chosen.examples_only),
        "seconds": None if chosen.reuse else round(time.perf_counter() - began),
    }
    (recording_options.runs / "result.json").write_text(json.dumps(result, indent=2) + "\n")
    if not (chosen.cases or chosen.ours or chosen.examples_only):
        RESULTS.write_text(json.dumps(result, indent=2) + "\n")
        write_page()
    summarise(result)
    return 0


def live(
    pool: ProcessPoolExecutor, cases: list[Case], recording_options: RecordingOptions, book_file: Path, *, keep: bool
) -> int:
    """Run the cases of several ranks live, print what falls short; `keep` the result of all of them."""
    began = time.perf_counter()
    rows = spread(pool, run_live, [(case, recording_options, book_file) for case in cases if case.ranks > 1])
    result = {"machine": machine(), "rows": rows, "seconds": round(time.perf_counter() - began)}
    (recording_options.runs / "live.json").write_text(json.dumps(result, indent=2) + "\n")
    if keep:
        LIVE_RESULTS.write_text(json.dumps(result, indent=2) + "\n")
        write_page()
    reached = sum(not shortfalls(row) for row in rows)
    print(f"{reached} of {len(rows)} cases reach all that is wanted; {result['seconds']} s")
    return 0


def false_alarms(book: Book, runs: list[Run], learned: list[Learned], jobs: int, *, others: bool) -> dict[str, Any]:
    """Return the outcomes of all books on all clean runs; `others` adds the books of all examples but one."""
    cases = {run.row["id"]: run.clean for run in runs}
    twins = [run.twin for run in runs if run.twin is not None]
    examples = {example.name: example.tally for example in learned}
    everything = {**cases, **examples}
    one_less = leave_one_out(examples, jobs) if others else {}
    return {
        f"{EXAMPLES} book on the clean cases": alarms([book], cases).as_data(),
        f"{TWIN} books on all clean runs": alarms(twins, everything).as_data() if twins else {},
        "book of the other examples on each example": one_less[WHOLE].as_data() if others else {},
        **{
            f"pack {name}, made without the example": example.as_data()
            for name, example in sorted(one_less.items())
            if name
        },
    }


def options() -> argparse.ArgumentParser:
    """The options of the command."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.detection", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", default="", help="ids or parts (A, B, C), comma-separated; all by default")
    parser.add_argument(
        "--jobs",
        type=positive,
        default=3,
        help="programs that run at a time (3, for two cores: one of them mostly waits)",
    )
    parser.add_argument("--runs", type=Path, default=ROOT / "traincheck-runs" / "detection", help="where recordings go")
    parser.add_argument("--reuse", action="store_true", help="take recordings of an earlier version of TrainCheck, too")
    parser.add_argument("--cold", action="store_true", help="start each program by its command line, as users do")
    parser.add_argument("--ours", action="store_true", help="leave out the simple detectors; no result is kept")
    parser.add_argument("--live", action="store_true", help="run the cases of several ranks under traincheck run")
    parser.add_argument("--examples-only", action="store_true", help="leave out the books of twins; no result is kept")
    return parser


def positive(text: str) -> int:
    """A whole number of at least 1."""
    number = int(text) if text.isdigit() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return number


def spread(pool: ProcessPoolExecutor, work: Callable[..., T], items: Iterable[tuple[Any, ...]]) -> list[T]:
    """Return the results of `work` on each item, in order, and print each as it ends.

    All items run before ProgramFailed is raised for failed ones.
    """
    futures = [pool.submit(work, *item) for item in items]
    failed = []
    try:
        for future in as_completed(futures):
            error = future.exception()
            if isinstance(error, ProgramFailed):
                failed.append(str(error))
            else:
                print_progress(future.result())
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    if failed:
        raise ProgramFailed(f"{len(failed)} of {len(futures)}", "\n".join(failed))
    return [future.result() for future in futures]


def print_progress(done: Learned | Run | dict[str, Any]) -> None:
    """A line for what is done."""
    if isinstance(done, dict):
        short = shortfalls(done)
        outcome = f"NOT {', '.join(short)}" if short else "all as wanted"
        print(f"{done['part']} {done['id']}: {detected_in(done)} live; {outcome}", flush=True)
        return
    if isinstance(done, Learned):
        print(f"  recorded {done.name} in {done.seconds:.1f} s", flush=True)
        return
    row = done.row
    words = [f"{name}: {in_words(verdict)}" for name, verdict in row["books"].items()]
    print(f"{row['part']} {row['id']}: {'; '.join(words)}", flush=True)


def in_words(verdict: dict[str, Any]) -> str:
    """Return a verdict as a short phrase."""
    if not verdict["detected"]:
        return f"MISSED ({verdict['errors']} errors, {verdict['notices']} notices)"
    named = "cause named" if verdict["diagnosed"] else "cause NOT named"
    return f"detected {'in the same step' if verdict['same_step'] else 'late'}, {named}"


def summarise(result: dict[str, Any]) -> None:
    """The counts by part and book, and the false alarms."""
    for name in (EXAMPLES, TWIN):
        for part in sorted({row["part"] for row in result["cases"]}):
            rows = [row["books"][name] for row in result["cases"] if row["part"] == part and name in row["books"]]
            if not rows:
                continue
            counts = [sum(row[key] for row in rows) for key in ("detected", "same_step", "diagnosed")]
            print(
                f"{name} book, part {part}: {counts[0]} of {len(rows)} detected, {counts[1]} in the same step, "
                f"{counts[2]} with the cause named"
            )
    for name, alarm in result["alarms"].items():
        if alarm:
            print(
                f"{name}: {alarm['runs']} checks, {len(alarm['with_error'])} with an error, "
                f"{len(alarm['with_notice'])} with a notice, {alarm['failed_share_of_triggered']:.3%} failed"
            )
    if result["seconds"] is not None:
        print(f"{result['seconds']} s")


if __name__ == "__main__":
    raise SystemExit(main())
