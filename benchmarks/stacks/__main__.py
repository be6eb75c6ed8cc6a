"""python -m benchmarks.stacks [--only NAME,...] [--rounds N] [--scratch DIR] [--list] [--page]

Runs programs with the packages that people train with, on CPU: plain, under `traincheck run` with the packs, and with
their own good runs; then with documented silent errors brought back into the package. Results go to
benchmarks/results/stacks.json and docs/frameworks.md after each package; those of others stay. Exit code 1 if a clean
program has a finding or another result than without TrainCheck.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from benchmarks.machine import machine
from benchmarks.stacks.lists import BadList, Package, read_packages
from benchmarks.stacks.page import BOOKS, RESULTS, verdict, write_page
from benchmarks.stacks.running import Failed, measure

SCRATCH = Path(tempfile.gettempdir()) / "traincheck-stacks"


def main() -> None:
    chosen = _options()
    try:
        packages = read_packages(only=chosen.only)
    except BadList as error:
        raise SystemExit(str(error)) from None
    if chosen.list:
        for package in packages:
            for entry in (*package.programs, *package.errors):
                print(f"{package.package:14} {entry.id:40} {entry.about}")
        return
    if chosen.page:
        _keep({})
        return
    faults = 0
    for package in packages:
        figures = _figures(package, chosen)
        faults += _report(package, figures)
        _keep({package.package: figures})
    sys.exit(faults > 0)


def _options() -> argparse.Namespace:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--only", default="", help="names of packages, separated by commas")
    options.add_argument("--rounds", type=int, default=2, help="times that each program runs plain and observed")
    options.add_argument("--scratch", type=Path, default=SCRATCH, help="folder for copies, run folders and logs")
    options.add_argument("--page", action="store_true", help="only write the page again from the kept results")
    options.add_argument("--list", action="store_true", help="print the programs and errors")
    chosen = options.parse_args()
    if chosen.rounds < 1:
        options.error("--rounds must be at least 1")
    return chosen


def _figures(package: Package, chosen: argparse.Namespace) -> dict[str, Any]:
    own = Path(sys.prefix, package.package)  # of a package that needs other versions than the rest
    installed = next((found.version for found in distributions(name=package.package, path=[str(own), *sys.path])), "")
    if not installed:
        raise SystemExit(f"{package.package} is not installed: `make stacks` installs it")
    try:
        return {"version": installed, **measure(package, chosen.scratch.resolve(), chosen.rounds)}
    except Failed as error:
        raise SystemExit(str(error)) from None


def _report(package: Package, figures: dict[str, Any]) -> int:
    """Print the figures of a package, and return the number of programs that TrainCheck judged or changed wrongly."""
    faults = 0
    for name, program in figures["programs"].items():
        wrong = [(book, finding) for book in BOOKS for finding in program["findings"][book]]
        faults += bool(wrong) or not program["equal"]
        results = "equal" if program["equal"] else "DIFFER"
        print(f"{name}: {program['steps']} steps, results {results}, {len(wrong)} findings")
        for book, finding in wrong:
            about = f"{finding['title']} {finding['variables']}"
            print(f"    {book}: {finding['severity']} at step {finding['step']}: {about}")
    for name, error in figures["errors"].items():
        changes = "" if error["changes"] else ", but it changes no result"
        print(f"{name}: {', '.join(f'{book} {verdict(error[book])}' for book in BOOKS)}{changes}")
        for book in BOOKS:
            for finding in error[book][:2]:
                print(f"    {book}: {finding['severity']} at step {finding['step']}: {finding['title']}")
    sys.stdout.flush()
    return faults


def _keep(results: dict[str, Any]) -> None:
    """Write the results and the page; those of packages that did not run now stay, unless the list dropped them."""
    before = json.loads(RESULTS.read_text(encoding="utf-8"))["packages"] if RESULTS.exists() else {}
    kept = {**before, **results}
    ordered = {package.package: kept[package.package] for package in read_packages() if package.package in kept}
    RESULTS.write_text(json.dumps({"machine": machine(), "packages": ordered}, indent=1) + "\n", encoding="utf-8")
    write_page()


if __name__ == "__main__":
    main()
