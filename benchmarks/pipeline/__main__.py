"""python -m benchmarks.pipeline [--runs FOLDER] [--only NAMES]

For each example: learn from two of its runs (another seed, another length) and check a third clean run, which must
show nothing at any level. Then check runs with a changed batch size, learning rate, width and class of optimizer: no
error, and the notices should say what changed.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.machine import machine
from benchmarks.page import write_page
from benchmarks.pipeline.variations import FIRST, SECOND, VARIATIONS, Variation
from benchmarks.recorded_runs import ROOT, record
from traincheck.checking.offline import check_folder
from traincheck.inference.candidate_selection import select_rules
from traincheck.inference.learn import tally_folder
from traincheck.vocab.finding import VIOLATED
from traincheck.vocab.invariant import ERROR

RESULTS = ROOT / "benchmarks" / "results" / "pipeline.json"


def main() -> None:
    """Record what is missing, check all variations, keep and print the result."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--runs", type=Path, default=ROOT / "traincheck-runs" / "pipeline")
    options.add_argument("--only", help="comma-separated examples; no result is kept")
    chosen = options.parse_args()
    names = chosen.only.split(",") if chosen.only else list(VARIATIONS)
    rows = [row for name in names for row in check(name, chosen.runs)]
    if not chosen.only:
        RESULTS.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=2) + "\n")
        write_page()


def check(name: str, runs: Path) -> list[dict[str, Any]]:
    """One row for each variation of the example that was not learned from."""
    book, _ = select_rules([tally_folder(recorded(name, which, runs)) for which in (FIRST, SECOND)])
    rows = []
    for which in VARIATIONS[name]:
        if which not in (FIRST, SECOND):
            checked = check_folder(recorded(name, which, runs), book)
            failed = [rule for rule, verdict in checked.verdicts if verdict == VIOLATED]
            rows.append(
                {
                    "example": name,
                    "changed": which,
                    "rules": len(book.invariants),
                    "errors": sum(rule.severity == ERROR for rule in failed),
                    "notices": sum(rule.severity != ERROR for rule in failed),
                    "settings": [rule.sentence for rule in failed if rule.program],
                    "others": [f"{rule.sentence} ({rule.precondition})" for rule in failed if not rule.program],
                }
            )
            print(json.dumps(rows[-1], indent=2), flush=True)
    return rows


def recorded(name: str, which: str, runs: Path) -> Path:
    """The run folder of one variation."""
    variation: Variation = VARIATIONS[name][which]
    folder = runs / name / which.replace(" ", "-")
    return record(ROOT / "examples" / f"{name}.py", folder, variation.args, dict(variation.edits))


if __name__ == "__main__":
    main()
