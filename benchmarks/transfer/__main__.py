"""python -m benchmarks.transfer [--k 3] [--subsets 20] [--runs FOLDER]: learn from k good examples, check the others.

Every example is clean, so each violated rule is a false alarm. The examples are recorded once into FOLDER and reused.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

from benchmarks.machine import machine
from benchmarks.page import write_page
from traincheck.checking.offline import check_folder
from traincheck.inference.learn import tally_folder, weigh
from traincheck.vocab.finding import NOT_OBSERVED, NOT_TRIGGERED, VIOLATED

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "transfer.json"
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--k", type=int, default=3)
    options.add_argument("--subsets", type=int, default=20)
    options.add_argument("--runs", type=Path, default=ROOT / "traincheck-runs" / "transfer")
    options.add_argument("--learn", help="comma-separated names: learn from exactly these")
    chosen = options.parse_args()
    folders = {script.stem: record(script, chosen.runs / script.stem) for script in EXAMPLES}
    tallies = {name: tally_folder(folder) for name, folder in folders.items()}
    subsets = list(itertools.combinations(folders, chosen.k))
    random.Random(0).shuffle(subsets)
    if chosen.learn:
        subsets = [tuple(chosen.learn.split(","))]
    rows = []
    for subset in subsets[: chosen.subsets]:
        book, _ = weigh([tallies[name] for name in subset])
        for name, folder in folders.items():
            if name not in subset:
                rows.append(row(subset, name, check_folder(folder, book)))
                print(told(rows[-1]), flush=True)
    summary = summarise(rows)
    kept = {"machine": machine(), "k": chosen.k, "subsets": len(subsets[: chosen.subsets]), **summary, "rows": rows}
    RESULTS.write_text(json.dumps(kept, indent=2) + "\n")
    print(json.dumps(summary, indent=2))
    write_page()


def record(script: Path, folder: Path) -> Path:
    """The run folder of an example, recorded where it is missing."""
    if not (folder / "run.json").exists():
        print(f"recording {script.name}", file=sys.stderr, flush=True)
        command = [sys.executable, "-m", "traincheck", "collect", "-o", str(folder), str(script)]
        subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
    return folder


def row(subset, name, checked):
    """What one book said of one clean script."""
    counts = checked.report.counts
    violated = [rule for rule, verdict in checked.verdicts if verdict == VIOLATED]
    return {
        "learned_from": list(subset),
        "checked": name,
        "errors": counts.errors,
        "notices": counts.notices,
        "triggered": sum(verdict not in (NOT_TRIGGERED, NOT_OBSERVED) for _, verdict in checked.verdicts),
        "failed": [f"{rule.severity}: {rule.sentence} ({rule.precondition})" for rule in violated],
    }


def told(found) -> str:
    return (
        f"{'+'.join(found['learned_from'])} -> {found['checked']}: {found['errors']} errors, "
        f"{found['notices']} notices, {len(found['failed'])} of {found['triggered']} rules failed"
    )


def summarise(rows):
    triggered = sum(found["triggered"] for found in rows)
    failed = sum(len(found["failed"]) for found in rows)
    return {
        "checks": len(rows),
        "checks_with_error": sum(found["errors"] > 0 for found in rows),
        "checks_with_notice": sum(found["notices"] > 0 for found in rows),
        "failed_share_of_triggered": round(failed / max(1, triggered), 5),
        "failing_rules": Counter(rule for found in rows for rule in found["failed"]).most_common(20),
    }


if __name__ == "__main__":
    main()
