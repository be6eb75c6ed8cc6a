"""python -m benchmarks.corpus write|check|learn [--seeds 0:1000] [--only task=gpt] [--jobs 2] [--folder FOLDER]

write   write the programs of these seeds as readable files
check   run them without TrainCheck: each has to end well, in time, and to learn something
learn   record and tally them, and count their event skeletons; goes on where it was interrupted
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, TypeVar

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from benchmarks.corpus.running import CorpusProgram, Learned, lay_out, learn_from, run_plain
from benchmarks.detection.recordings import ROOT
from benchmarks.detection.warm import warm_pool

FOLDER = ROOT / "traincheck-runs" / "corpus"

Result = TypeVar("Result")


def main() -> int:
    """Do what was asked; 1 where a program is not as it should be."""
    chosen = options().parse_args()
    only = dict(entry.split("=", 1) for entry in chosen.only.split(",") if entry)
    programs = lay_out(list(chosen.seeds), chosen.folder.resolve(), only=only)
    if chosen.command == "write":
        for program in programs:
            print(program.program.home / program.program.script)
        return 0
    work = check if chosen.command == "check" else learn
    with warm_pool(chosen.jobs) as pool:
        return work(pool, programs, chosen.folder.resolve())


def check(pool: ProcessPoolExecutor, programs: list[CorpusProgram], folder: Path) -> int:
    """Run all plain and print those that do not train."""
    seconds, bad = [], 0
    for program, run in results(pool, run_plain, [(entry.program,) for entry in programs], programs, "running"):
        seconds.append(run.seconds)
        problem = run.problem
        if problem:
            bad += 1
            print(f"{program.program.script}: {problem}", flush=True)
        elif run.seconds > 8 * program.program.ranks:
            print(f"{program.program.script}: took {run.seconds:.1f} s", flush=True)
    seconds.sort()
    middle = f"median {seconds[len(seconds) // 2]:.1f} s, longest {seconds[-1]:.1f} s" if seconds else ""
    print(f"{len(programs)} programs, {bad} do not train; {middle}")
    return int(bad > 0)


def learn(pool: ProcessPoolExecutor, programs: list[CorpusProgram], folder: Path) -> int:
    """Record and tally all, and print how many event skeletons they have."""
    began = time.perf_counter()
    learned = learn_from_all(pool, programs, folder)
    print(json.dumps(summary(learned, time.perf_counter() - began), indent=2))
    return int(any(entry.problem for entry in learned))


def learn_from_all(pool: ProcessPoolExecutor, programs: list[CorpusProgram], folder: Path) -> list[Learned]:
    """Record and tally programs into `folder/tallies`; what was done before is taken as it is."""
    tallies = folder / "tallies"
    tallies.mkdir(parents=True, exist_ok=True)
    learned = []
    for _, entry in results(pool, learn_from, [(program, tallies) for program in programs], programs, "recording"):
        learned.append(entry)
        if entry.problem:
            print(f"{entry.name}: {entry.problem}", flush=True)
    return sorted(learned, key=lambda entry: entry.name)


def summary(learned: list[Learned], seconds: float) -> dict[str, Any]:
    """The figures of a corpus that was recorded."""
    skeletons = Counter(entry.skeleton for entry in learned if not entry.problem)
    return {
        "programs": len(learned),
        "failed": sum(bool(entry.problem) for entry in learned),
        "skeletons": len(skeletons),
        "programs of the most frequent skeleton": max(skeletons.values(), default=0),
        "seconds": round(seconds),
    }


def results(
    pool: ProcessPoolExecutor,
    work: Callable[..., Result],
    arguments: list[tuple[Any, ...]],
    programs: list[CorpusProgram],
    activity: str,
) -> Iterator[tuple[CorpusProgram, Result]]:
    """Each program with the result of `work`, as they come; a bar shows the progress on a terminal."""
    columns = (TextColumn(activity), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    futures = {pool.submit(work, *words): program for words, program in zip(arguments, programs, strict=True)}
    try:
        with Progress(*columns, transient=True, disable=not sys.stderr.isatty()) as bar:
            task = bar.add_task(activity, total=len(futures))
            for future in as_completed(futures):
                yield futures[future], future.result()
                bar.advance(task)
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise


def options() -> argparse.ArgumentParser:
    """The options of the command."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.corpus", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=("write", "check", "learn"))
    parser.add_argument("--seeds", type=seeds, default=range(1000), help="FIRST:END, or one number; 0:1000 by default")
    parser.add_argument("--only", default="", help="task=, loop= or program=NAME, comma-separated")
    parser.add_argument("--jobs", type=int, default=2, help="programs that run at a time")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where programs and tallies go")
    return parser


def seeds(text: str) -> range:
    """`3` or `0:1000`."""
    first, colon, end = text.partition(":")
    try:
        return range(int(first), int(end) if colon else int(first) + 1)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a seed nor FIRST:END") from None


if __name__ == "__main__":
    raise SystemExit(main())
