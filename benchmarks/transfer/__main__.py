"""python -m benchmarks.transfer [--k 1,2,3,6] [--most 84] [--runs FOLDER] [--learn a,b,c]

Learns from k of the good examples and checks the others, for all choices of k examples, or for a sample of --most
choices. Every example is clean, so each violated rule is a false alarm. The examples are recorded once into FOLDER and
reused.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import statistics
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.machine import machine
from benchmarks.page import write_page
from benchmarks.recorded_runs import EXAMPLES, ROOT, record
from benchmarks.tally_verdicts import outcomes_on
from traincheck.checking.offline import check_folder
from traincheck.inference.candidate_selection import select_rules
from traincheck.inference.learn import tally_folder
from traincheck.inference.tally import Tally
from traincheck.invariants.book import Book
from traincheck.vocab.finding import VIOLATED
from traincheck.vocab.invariant import ERROR

RESULTS = ROOT / "benchmarks" / "results" / "transfer.json"
COMPARED = 3
"""Checks of each k whose verdicts are compared with those of the offline checker."""


def main() -> None:
    """Record what is missing, check all choices, keep and print the result."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--k", default="1,2,3,6", help="sizes of the choices, comma-separated")
    options.add_argument("--most", type=int, default=84, help="choices of each size at most")
    options.add_argument("--runs", type=Path, default=ROOT / "traincheck-runs" / "transfer")
    options.add_argument("--learn", help="comma-separated names: learn from exactly these, and keep no result")
    chosen = options.parse_args()
    folders = {script.stem: record(script, chosen.runs / script.stem) for script in EXAMPLES}
    tallies = {name: tally_folder(folder) for name, folder in folders.items()}
    if chosen.learn:
        print(json.dumps(summarise(check_all([tuple(chosen.learn.split(","))], tallies, folders)), indent=2))
        return
    by_k = {}
    for k in map(int, chosen.k.split(",")):
        by_k[str(k)] = summarise(check_all(choices(list(tallies), k, chosen.most), tallies, folders))
        print(f"k = {k}: {json.dumps(by_k[str(k)], indent=2)}", flush=True)
    RESULTS.write_text(json.dumps({"machine": machine(), "by_k": by_k}, indent=2) + "\n")
    write_page()


def choices(names: Sequence[str], k: int, most: int) -> list[tuple[str, ...]]:
    """All choices of `k` names, or a fixed sample of `most` of them."""
    subsets = list(itertools.combinations(names, k))
    random.Random(0).shuffle(subsets)
    return subsets[:most]


def check_all(subsets: Sequence[tuple[str, ...]], tallies: dict[str, Tally], folders: dict[str, Path]) -> list[Any]:
    """One row for each choice and each other example."""
    rows = []
    for number, subset in enumerate(subsets):
        book, _ = select_rules([tallies[name] for name in subset])
        rows.extend(row(subset, name, book, tallies[name]) for name in tallies if name not in subset)
        if number < COMPARED and rows:
            compare(rows[-1], book, folders[rows[-1]["checked"]])
    return rows


def row(subset: Sequence[str], name: str, book: Book, tally: Tally) -> dict[str, Any]:
    """The result of one book on one clean script."""
    outcome = outcomes_on(book, tally)
    return {
        "learned_from": list(subset),
        "checked": name,
        "rules": len(book.invariants),
        "triggered": len(outcome.triggered),
        "failed": [f"{rule.severity}: {rule.sentence} ({rule.precondition})" for rule in outcome.failed],
        "ids": sorted(rule.id for rule in outcome.failed),
        "errors": sum(rule.severity == ERROR for rule in outcome.failed),
    }


def compare(checked: dict[str, Any], book: Book, folder: Path) -> None:
    """Stop when the offline checker says otherwise than the tally."""
    verdicts = check_folder(folder, book).verdicts
    violated = sorted(rule.id for rule, verdict in verdicts if verdict == VIOLATED)
    if violated != checked["ids"]:
        raise SystemExit(f"{checked['checked']}: the checker says {violated} failed, the tally {checked['ids']}")


def summarise(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The figures of one k. An alarm of a script is a failing rule, whatever findings would group them into."""
    triggered = sum(checked["triggered"] for checked in rows)
    failed = sum(len(checked["failed"]) for checked in rows)
    subsets = {tuple(checked["learned_from"]) for checked in rows}
    noisy = {tuple(checked["learned_from"]) for checked in rows if checked["failed"]}
    return {
        "choices": len(subsets),
        "choices_without_alarm": len(subsets - noisy),
        "checks": len(rows),
        "checks_with_error": sum(checked["errors"] > 0 for checked in rows),
        "checks_with_notice": sum(len(checked["failed"]) > checked["errors"] for checked in rows),
        "rules_median": statistics.median(checked["rules"] for checked in rows),
        "triggered_share": round(triggered / max(1, sum(checked["rules"] for checked in rows)), 4),
        "failed_share_of_triggered": round(failed / max(1, triggered), 6),
        "failing_rules": Counter(rule for checked in rows for rule in checked["failed"]).most_common(25),
    }


if __name__ == "__main__":
    main()
