"""python -m benchmarks.inference [--rounds N] [--runs FOLDER]

Records 60 steps of a small CNN and 40 of a small GPT, once. Then the commands `infer` and `check` are timed from start
to end, by turns: on these, on recordings of ten times as many steps, and against books of more and more rules.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.command_cost import TRAINCHECK, CommandCost, best_of, measure_command
from benchmarks.long_recordings import LongRecording, events_in, write_recording
from benchmarks.machine import machine
from benchmarks.page import write_page
from benchmarks.recorded_runs import ROOT, record
from traincheck.inference.learn import learn
from traincheck.invariants.book import Book, write_book
from traincheck.trace.folder import RunFolder
from traincheck.vocab.invariant import Clause, Invariant, Precondition

RESULTS = ROOT / "benchmarks" / "results" / "inference.json"
TEN = 10
RULES = (100, 1_000, 10_000)


def recordings(runs: Path) -> dict[str, Path]:
    """The two recordings that all is about."""
    examples = ROOT / "examples"
    return {
        "cnn": record(examples / "digits_cnn.py", runs / "cnn", ("--epochs", "3", "--batch-size", "72")),
        "gpt": record(examples / "small_gpt.py", runs / "gpt", (), {"max_iters = 60": "max_iters = 40"}),
    }


def main() -> None:
    """Measure all, keep and print the result."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--runs", type=Path, default=ROOT / "traincheck-runs" / "inference")
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch)
        rows = [measure(name, folder, home, chosen.rounds) for name, folder in recordings(chosen.runs).items()]
    RESULTS.write_text(json.dumps({"machine": machine(), "rounds": chosen.rounds, "rows": rows}, indent=2) + "\n")
    print(json.dumps(rows, indent=2))
    write_page()


def measure(name: str, folder: Path, home: Path, rounds: int) -> dict[str, Any]:
    """One row: the recording, ten times its steps, and the books."""
    long = home / f"{name}-long"
    write_recording(LongRecording(long, folder, TEN))
    once = home / f"{name}-once"
    write_recording(LongRecording(once, folder, 1))
    learned = learn([folder]).book
    books = {count: home / f"{name}-{count}.jsonl" for count in (len(learned.invariants), *RULES)}
    for count, book in books.items():
        write_book(grown(learned, count), book)
    infer = [*TRAINCHECK, "infer", "-o", "book.jsonl", "--jobs", "1"]
    check = [*TRAINCHECK, "check", "--fail-on", "never"]
    commands: dict[str, Sequence[str]] = {
        "infer": [*infer, str(folder)],
        "check": [*check, str(folder), "-b", str(books[len(learned.invariants)])],
        "infer_once": [*infer, str(once)],
        "infer_ten_times": [*infer, str(long)],
        **{f"check_{count}": [*check, str(long), "-b", str(books[count])] for count in RULES},
    }
    taken: dict[str, list[CommandCost]] = {command: [] for command in commands}
    for _ in range(rounds):
        for command, words in commands.items():
            taken[command].append(measure_command(words, home))
    recorded_windows = [window for _, windows in RunFolder.open(folder).windows() for window in windows]
    return {
        "name": name,
        "steps": max(window.step for window in recorded_windows),
        "events": sum(map(events_in, recorded_windows)),
        "rules": len(learned.invariants),
        **{command: best_of(of) for command, of in taken.items()},
    }


def grown(book: Book, count: int) -> Book:
    """Return a book of `count` rules: those of `book`, then rules about calls and contexts that the program never
    reaches.

    A book that was learned from many programs has such rules.
    """
    rules = list(book.invariants[:count])
    turn = 0
    while len(rules) < count:
        turn += 1
        further = (_other(rule, turn, index % 2 == 0) for index, rule in enumerate(book.invariants))
        rules += [rule for rule in further if rule is not None][: count - len(rules)]
    return Book(tuple(rules), book.runs)


def _other(rule: Invariant, turn: int, of_circumstances: bool) -> Invariant | None:
    if of_circumstances:
        never = Clause("within", f"elsewhere{turn}", contains=True)
        return replace(rule, precondition=Precondition((*rule.precondition.clauses, never)), id="")
    if rule.relation not in ("EventContain", "APISequence"):
        return None  # the others know their subjects by name
    return replace(rule, subject=rule.subject._replace(api=f"{rule.subject.api}_{turn}"), id="")


if __name__ == "__main__":
    main()
