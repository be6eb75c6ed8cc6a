"""Writes the tables of docs/frameworks.md from the results."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.stacks.lists import Package, SilentError, read_packages

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "stacks.json"
PAGE = ROOT / "docs" / "frameworks.md"
BEGIN, END = "<!-- stacks: begin; `make stacks` writes this part -->\n", "<!-- stacks: end -->\n"
BOOKS = ("packs", "own")
ERROR, NOTICE, MISSED = "error", "notice", "missed"

SILENTLY_OFF, POST_TRAINING = "silently off", "post-training"
"""Families of errors that have a table of their own."""

TEMPLATE = Path(__file__).parent / "tested-packages.md"


def write_page() -> None:
    """Replace the part of docs/frameworks.md between the marks."""
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    head, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, tail = rest.partition(END)
    PAGE.write_text(head + BEGIN + text(read_packages(), results) + END + tail, encoding="utf-8")


def written() -> str:
    """The part of the page between the marks."""
    return PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]


def text(packages: Sequence[Package], results: Mapping[str, Any]) -> str:
    """The part of the page that the results decide."""
    by_name = results["packages"]
    listed = [package for package in packages if package.package in by_name]
    rows = [row(package, by_name[package.package]) for package in listed]
    rows_of: dict[str, list[str]] = {"": [], SILENTLY_OFF: [], POST_TRAINING: []}
    for package in listed:
        for error in package.errors:
            if error.id in by_name.get(package.package, {}).get("errors", {}):
                rows_of[error.family].append(error_row(error, by_name[package.package]["errors"][error.id]))
    machine = results["machine"]
    about = (
        f"\nMeasured on {machine['cores']} cores ({machine['processor']}), Python {machine['python']}, "
        f"torch {machine['torch']}."
    )
    older = [name for name, figures in by_name.items() if not figures.get("verified")]
    if older:
        about += f" Figures measured with the packs alone, without built-in rules and experiments: {', '.join(older)}."
    return TEMPLATE.read_text(encoding="utf-8").format(
        rows="\n".join(rows),
        observed="\n".join(map(observed_row, listed)),
        clean="\n".join(_clean_findings(by_name)) or "No clean program has a finding.",
        errors="\n".join(rows_of[""]),
        off="\n".join(rows_of[SILENTLY_OFF]) + _post_training(rows_of[POST_TRAINING]),
        machine=about,
    )


def _post_training(rows: Sequence[str]) -> str:
    """The table of errors in the program of reinforcement learning; empty without results."""
    if not rows:
        return ""
    about = "\n\nErrors of a program of [reinforcement learning](reinforcement-learning.md) with a rollout worker:\n\n"
    return "\n".join((f"{about}| error | packs | own |", "|---|---|---|", *rows))


def _clean_findings(by_name: Mapping[str, Any]) -> list[str]:
    """The findings of programs without an error, which are false."""
    lines = [
        f"* `{name}`, {book}: {finding['severity']} in step {finding['step']}, {finding['title']}"
        for figures in by_name.values()
        for name, program in figures["programs"].items()
        for book in BOOKS
        for finding in program["findings"][book]
    ]
    return ["False findings on clean programs:", "", *lines] if lines else []


def row(package: Package, figures: Mapping[str, Any]) -> str:
    """The line of a package. A program or an error without figures is new in the list, and left out."""
    ran = [program for program in package.programs if program.id in figures["programs"]]
    programs = [figures["programs"][program.id] for program in ran]
    equal = sum(program["equal"] for program in programs)
    clean = [str(sum(len(program["findings"][book]) for program in programs)) for book in BOOKS]
    listed = [error.id for error in package.errors if not error.family]
    errors = [figures["errors"][name] for name in listed if name in figures["errors"]]
    detected = [f"{sum(verdict(error[book]) == ERROR for error in errors)} of {len(errors)}" for book in BOOKS]
    times = "; ".join(_times(program) for program in programs)
    about = "; ".join(program.about for program in ran)
    return (
        f"| {package.package} | {figures['version']} | {about} | {equal} of {len(programs)} | "
        f"{' | '.join(clean)} | {' | '.join(detected)} | {times} |"
    )


def observed_row(package: Package) -> str:
    """The line of a package about its observation."""
    several = any(program.ranks for program in package.programs)
    start = "traincheck run -- torchrun ... train.py" if several else "traincheck run train.py"
    return f"| {package.package} | `{start}` | {package.observed} | {package.unseen} |"


def _times(program: Mapping[str, Any]) -> str:
    plain, observed = program["step_ms"], program["observed_step_ms"]
    return f"{plain:.1f} ms, {observed / plain:.2f}x" if plain and observed else "too few steps"


def error_row(error: SilentError, figures: Mapping[str, Any]) -> str:
    """The line of an error: its source, and the first finding under each book."""
    _, _, _, _, repository, _, number = error.source.split("/") if error.source else [""] * 7
    source = f" ([{repository} {number}]({error.source}))" if error.source else ""
    return f"| {error.about}{source} | {' | '.join(_cell(figures[book]) for book in BOOKS)} |"


def _cell(findings: Sequence[Mapping[str, Any]]) -> str:
    name = verdict(findings)
    if name == MISSED:
        return name
    first = next(finding for finding in findings if finding["severity"] == name)
    return f"{name}, step {first['step']}: {first['title']}"


def verdict(findings: Sequence[Mapping[str, Any]]) -> str:
    """Return `error` if the error is detected, `notice` if only notices hint at it, otherwise `missed`."""
    severities = {finding["severity"] for finding in findings}
    return next((name for name in (ERROR, NOTICE) if name in severities), MISSED)
