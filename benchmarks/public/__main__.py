"""python -m benchmarks.public --src DIR [--only ID,...] [--rounds N] [--scratch DIR] [--plain] [--page] [--list]

Runs public training programs plain and under `traincheck run` with the packs alone: each at a pinned commit, from the
checkout DIR/OWNER/NAME (cloned if missing), in a copy below the scratch folder. Results go to
benchmarks/results/public.json and docs/public-programs.md after each program; those of others stay. Exit code 1
if a program crashed, printed other output, or got a finding that the list does not explain.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.machine import machine
from benchmarks.public.checkout import Missing, checkout
from benchmarks.public.page import write_page
from benchmarks.public.programs import BadList, Program, read_programs
from benchmarks.public.running import measure, observed_words
from benchmarks.public.verdicts import CLEAN, FALSE, SKIPPED, TRUE, unexplained, verdict
from benchmarks.recorded_findings import diagnosis_of

RESULTS = Path(__file__).resolve().parents[1] / "results" / "public.json"
SCRATCH = Path(tempfile.gettempdir()) / "traincheck-public"


def main() -> None:
    chosen = _options()
    try:
        programs = read_programs(only=chosen.only)
    except BadList as error:
        raise SystemExit(str(error)) from None
    if chosen.list:
        for program in programs:
            about = f"not run: {program.skipped}" if program.skipped else " ".join(program.command)
            print(f"{program.id:40} {program.repository:45} {','.join(program.tags):24} {about}")
        return
    if chosen.page:
        _keep({})
        return
    if not chosen.src:
        raise SystemExit("name the folder of checkouts: --src DIR, with a clone of each repository at DIR/OWNER/NAME")
    results: dict[str, Any] = {}
    for program in programs:
        results[program.id] = _result(program, chosen)
        if not chosen.plain:
            _keep(results)
    counts = Counter(result["verdict"] for result in results.values())
    print(", ".join(f"{name}: {count}" for name, count in counts.items()))
    sys.exit(any(name not in (CLEAN, TRUE, SKIPPED) for name in counts))


def _options() -> argparse.Namespace:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--src", default="", help="folder with a clone of each repository at OWNER/NAME")
    options.add_argument("--only", default="", help="ids, tags or repositories, separated by commas")
    options.add_argument("--rounds", type=int, default=1, help="times that each program runs observed")
    options.add_argument("--scratch", type=Path, default=SCRATCH, help="folder for copies and logs")
    options.add_argument("--plain", action="store_true", help="only run the programs plain, and keep no results")
    options.add_argument("--page", action="store_true", help="only judge the kept results again, and write the page")
    options.add_argument("--list", action="store_true", help="print the list of programs")
    chosen = options.parse_args()
    if chosen.rounds < 1:
        options.error("--rounds must be at least 1")
    return chosen


def _result(program: Program, chosen: argparse.Namespace) -> dict[str, Any]:
    """The figures and the verdict of a program, which are printed as well."""
    figures: dict[str, Any] = {}
    if not program.skipped:
        try:
            _require_packages(program)
            home = checkout(Path(chosen.src), program)
            figures = measure(program, home.resolve(), chosen.scratch.resolve(), chosen.rounds, chosen.plain)
        except Missing as error:
            figures = {"missing": str(error)}
    name = verdict(program, figures)
    print(f"{program.id}: {name}", _line(figures), flush=True)
    if name == FALSE:
        for finding in unexplained(program, figures):
            title = f"{finding['title']} [{diagnosis_of(finding)}]"
            print(f"    {finding['severity']} at step {finding['step']}: {title} ({finding['site']})")
        print(f"    {' '.join(observed_words(program, chosen.scratch / program.id / 'run'))}")
    return {"verdict": name, **figures}


def _require_packages(program: Program) -> None:
    """Raises Missing where a package of the program is not installed."""
    for package in sorted(program.packages):
        try:
            version(package)
        except PackageNotFoundError:
            raise Missing(
                f"{program.id} needs the package {package}: pip install -r benchmarks/public/requirements.txt"
            ) from None


def _line(figures: dict[str, Any]) -> str:
    if "missing" in figures:
        return str(figures["missing"])
    if "exit_observed" not in figures:
        last = figures.get("last_lines", [""])[-1:] if figures.get("exit_plain") else []
        return " ".join([f"{figures.get('seconds_plain', 0)} s,", f"exit {figures.get('exit_plain')}", *last])
    comparison = figures["output"]
    text = (
        f"{figures['seconds_plain']} s plain, {figures['seconds_observed']} s observed, {figures['steps']} steps, "
        f"{comparison['compared']} of {comparison['lines']} lines compared"
    )
    if not comparison["equal"]:
        text += f"\n    expected {comparison['expected']!r}\n    got      {comparison['got']!r}"
    for line in (*comparison["lost_stderr"], *comparison["new_stderr"], *figures.get("last_lines", ())):
        text += f"\n    stderr: {line}"
    return text


def _keep(results: dict[str, Any]) -> None:
    """Write the results and the page; those of programs that did not run now stay, unless the list dropped them."""
    before = json.loads(RESULTS.read_text())["programs"] if RESULTS.exists() else {}
    kept = {**before, **results}
    ordered = {
        program.id: {**kept[program.id], "verdict": verdict(program, kept[program.id])}
        for program in read_programs()
        if program.id in kept and not program.skipped
    }
    RESULTS.write_text(json.dumps({"machine": machine(), "programs": ordered}, indent=1) + "\n")
    write_page()


if __name__ == "__main__":
    main()
