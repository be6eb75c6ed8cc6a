"""python -m benchmarks.versions --other PYTHON [--runs FOLDER] [--only a,b,c]

Checks whether the shipped packs hold under another torch version. Records each example with this Python and with
PYTHON, from an environment with another torch (`pip install '.[torch,examples]'`). Reports how many rules that hold
under this torch also trigger and hold under the other one. Rules that fail there are false alarms, because the examples
are correct. Recordings are made once and reused.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.machine import machine
from benchmarks.page import write_page
from benchmarks.recorded_runs import EXAMPLES, ROOT, record
from benchmarks.tally_verdicts import outcomes_on
from traincheck.inference.learn import tally_folder
from traincheck.invariants.book import Book
from traincheck.invariants.packs import SHIPPED, book_of_packs, read_packs

RESULTS = ROOT / "benchmarks" / "results" / "versions.json"
ASK = "import torch, platform; print(torch.__version__, platform.python_version())"


def main() -> int:
    """Record what is missing, compare, keep and print the result."""
    options = argparse.ArgumentParser(
        prog="python -m benchmarks.versions", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--other", required=True, help="Python of the environment with another torch")
    options.add_argument("--runs", type=Path, default=ROOT / "traincheck-runs" / "versions")
    options.add_argument("--only", default="", help="comma-separated names of examples: only these, and keep no result")
    chosen = options.parse_args()
    try:
        versions = [_versions(python) for python in (sys.executable, chosen.other)]
    except (OSError, subprocess.CalledProcessError) as error:
        options.error(
            f"--other {chosen.other} cannot import torch ({error}); expected the Python of an environment with it"
        )
    names = {*chosen.only.split(",")} if chosen.only else {script.stem for script in EXAMPLES}
    book = book_of_packs([read_packs(str(SHIPPED))])
    rows = []
    for script in EXAMPLES:
        if script.stem in names:
            folders = [
                record(script, chosen.runs / f"torch-{torch}-python-{python}" / script.stem, python=executable)
                for executable, (torch, python) in zip((sys.executable, chosen.other), versions, strict=True)
            ]
            rows.append(row(script.stem, book, *folders))
            print(json.dumps(rows[-1]), flush=True)
    result = {"machine": machine(), "versions": versions, **summed(rows), "rows": rows}
    print(json.dumps({name: value for name, value in result.items() if name != "rows"}, indent=2))
    if not chosen.only:
        RESULTS.write_text(json.dumps(result, indent=2) + "\n")
        write_page()
    return 0


def _versions(python: str) -> tuple[str, str]:
    """The versions of torch and of Python. Raises OSError and CalledProcessError."""
    output = subprocess.run([python, "-c", ASK], capture_output=True, text=True, check=True).stdout.split()
    return output[-2], output[-1]


def row(name: str, book: Book, here: Path, there: Path) -> dict[str, Any]:
    """The outcomes of the packs on one example under both versions."""
    ours, others = (outcomes_on(book, tally_folder(folder)) for folder in (here, there))
    passed, triggered, failed = (
        {rule.id for rule in ours.triggered} - {rule.id for rule in ours.failed},
        {rule.id for rule in others.triggered},
        {rule.id for rule in others.failed},
    )
    sentences = {rule.id: f"{rule.severity}: {rule.sentence}" for rule in book.invariants}
    return {
        "example": name,
        "pass_here": len(passed),
        "pass_there_too": len(passed & (triggered - failed)),
        "triggered_there": len(triggered),
        "not_triggered": sorted(sentences[id] for id in passed - triggered),
        "failed": sorted(sentences[id] for id in failed),
    }


def summed(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The figures of all examples."""
    here, both = (sum(result[name] for result in rows) for name in ("pass_here", "pass_there_too"))
    return {
        "examples": len(rows),
        "pass_here": here,
        "pass_there_too": both,
        "share": round(both / max(1, here), 4),
        "triggered_there": sum(result["triggered_there"] for result in rows),
        "failed_there": sum(len(result["failed"]) for result in rows),
        "not_triggered": Counter(rule for result in rows for rule in result["not_triggered"]).most_common(25),
    }


if __name__ == "__main__":
    raise SystemExit(main())
