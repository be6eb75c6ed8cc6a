"""Writes docs/public-programs.md."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.public.programs import Program, read_programs
from benchmarks.public.verdicts import MAX_RATIO, MAX_SECONDS, SKIPPED, VERDICTS, too_slow
from benchmarks.recorded_findings import diagnosis_of, title_of

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "public.json"
PAGE = ROOT / "docs" / "public-programs.md"
SLOWEST = 10
TEMPLATE = Path(__file__).parent / "public-programs.md"


def write_page() -> None:
    """Write docs/public-programs.md from the list and the results."""
    PAGE.write_text(text(read_programs(), json.loads(RESULTS.read_text())), encoding="utf-8")


def text(programs: list[Program], results: dict[str, Any]) -> str:
    """The page."""
    by_id = results["programs"]
    listed = [program for program in programs if program.id in by_id and not program.skipped]
    counts = Counter(by_id[program.id]["verdict"] for program in listed)
    return TEMPLATE.read_text(encoding="utf-8").format(
        programs=len(listed),
        repositories=len({program.repository for program in listed}),
        counts="\n".join(f"| {name} | {counts[name]} |" for name in VERDICTS if name != SKIPPED),
        most_ratio=f"{MAX_RATIO:g}",
        most_seconds=f"{MAX_SECONDS:g}",
        slow=sum("exit_observed" in by_id[program.id] and too_slow(by_id[program.id]) for program in listed),
        rows="\n".join(row(program, by_id[program.id]) for program in listed),
        findings="\n".join(_explanations(listed, by_id)) or "None of the programs has an explained finding.",
        slowest="\n".join(_slowest(listed, by_id)),
        skipped="\n".join(_skipped(programs)),
        machine=_machine(results["machine"]),
    )


def row(program: Program, figures: dict[str, Any]) -> str:
    """The line of a program in the table."""
    name = f"[{program.id}](https://github.com/{program.repository}/tree/{program.commit}/{_path(program)})"
    if "exit_observed" not in figures:
        return f"| {name} | {', '.join(program.tags)} | {figures['verdict']} | | | | | |"
    plain, observed = figures["seconds_plain"], figures["seconds_observed"]
    slow = " (slow)" if too_slow(figures) else ""
    comparison = figures["output"]
    return (
        f"| {name} | {', '.join(program.tags)} | {figures['verdict']} | {figures['steps']:,} | "
        f"{comparison['compared']} of {comparison['lines']} | {plain:.1f} s | {observed / plain:.2f}x{slow} | "
        f"{figures['megabytes_plain']:,} / {figures['megabytes_observed']:,} |"
    )


def _path(program: Program) -> str:
    script = program.command[0] if program.command and program.command[0].endswith(".py") else ""
    return "/".join(part for part in (program.folder, script) if part not in (".", ""))


def _explanations(programs: list[Program], by_id: dict[str, Any]) -> list[str]:
    """Each finding: explained by the list, or counted as false."""
    lines = []
    for program in programs:
        explained = {finding.diagnosis: finding for finding in program.expected}
        for finding in by_id[program.id].get("findings", ()):
            expected = explained.get(diagnosis_of(finding))
            explanation = (
                f"True: {expected.reason} (`{expected.where}`)"
                if expected
                else "Counted as false: the list does not explain it."
            )
            at = f" at `{finding['site']}`" if finding["site"] else ""
            lines.append(
                f"* **{program.id}**, {finding['severity']} in step {finding['step']}: {title_of(finding)}{at}. "
                f"{explanation}"
            )
    return lines


def _slowest(programs: list[Program], by_id: dict[str, Any]) -> list[str]:
    """Return the time by source for the programs with the largest slowdown."""
    measured = [(program, by_id[program.id]) for program in programs if "cost" in by_id[program.id]]
    measured.sort(key=lambda pair: pair[1]["seconds_plain"] / pair[1]["seconds_observed"])
    lines = []
    for program, figures in measured[:SLOWEST]:
        added = figures["seconds_observed"] - figures["seconds_plain"]
        sources = dict(figures["cost"])
        background = sources.pop("background", 0.0)
        most = sorted(sources.items(), key=lambda pair: -pair[1])[:3]
        words = ", ".join(f"{name} {took:.1f}" for name, took in most)
        rest = added - sum(sources.values()) - background
        lines.append(
            f"| {program.id} | {figures['steps']:,} | {figures['seconds_plain']:.1f} s | {added:.1f} s | "
            f"{sum(sources.values()):.1f} s ({words}) | {background:.1f} s | {rest:.1f} s |"
        )
    return lines


def _skipped(programs: list[Program]) -> list[str]:
    return [f"| {program.id} | {program.repository} | {program.skipped} |" for program in programs if program.skipped]


def _machine(machine: dict[str, Any]) -> str:
    return (
        f"Measured on {machine['cores']} cores ({machine['processor']}), Python {machine['python']}, "
        f"torch {machine['torch']}."
    )
