"""Writes docs/sdc-detection.md and the summary for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.corruption import effect_tables
from benchmarks.corruption.alarms import LOSS, NORM, WARM, WINDOW
from benchmarks.corruption.effect_tables import table
from benchmarks.corruption.grid import DECODER, IMAGES, NAMES, WORDS_OF_BITS, WORDS_OF_RATES
from benchmarks.corruption.rank_checks import REPLICAS, SAMPLED, TWINS
from benchmarks.corruption.tally import Tally, tallies
from benchmarks.corruption.worker_pool import SCREENING
from traincheck.sdc.faults.fault import BITFLIP, INTERMITTENT, SITES, STUCK

PAGE = Path(__file__).resolve().parents[2] / "docs" / "sdc-detection.md"
TEMPLATE = Path(__file__).parent / "sdc-detection.md"
"""The text of the page around its tables."""
NOTHING = "-"
"""A cell without runs."""


def summary(result: Mapping[str, Any]) -> str:
    """Return lines about each detector for a terminal."""
    lines = []
    for name, entry in result["detectors"].items():
        delay = entry["delay"]
        soon = f", {delay['median']:g} steps after the first stroke (most {delay['most']})" if delay else ""
        lines += [
            f"{name}: {entry['found']} of {entry['struck']} found{soon}",
            f"  {entry['false_alarms']} false alarms in {entry['clean']} clean runs "
            f"and {entry['never_struck']} never struck",
        ]
    for name, entry in result["studies"].items():
        lines.append(f"study {name}: {entry['steps']} steps")
    return "\n".join(lines)


def write_page(result: Mapping[str, Any]) -> None:
    """Write docs/sdc-detection.md."""
    PAGE.write_text(text(result))


def text(result: Mapping[str, Any]) -> str:
    """Return the page."""
    faulty = [row for row in result["runs"] if not row["clean"]]
    decoder = [row for row in faulty if row["workload"] == NAMES[DECODER]]
    flips = [row for row in decoder if row["kind"] == BITFLIP]
    stuck = [row for row in decoder if row["kind"] == STUCK]
    intermittent = [row for row in decoder if row["kind"] == INTERMITTENT]
    images = [row for row in faulty if row["workload"] == NAMES[IMAGES] and row["kind"] == BITFLIP]
    sites = {site: f"`{site}`" for site in SITES}
    studies = result["studies"]
    return TEMPLATE.read_text().format(
        glance=glance(result),
        by_site=matrix(flips, "site", sites),
        by_bit=matrix(flips, "bit", WORDS_OF_BITS),
        by_rate=matrix(flips, "rate", WORDS_OF_RATES, delays=True),
        intermittent_by_site=matrix(intermittent, "site", sites),
        intermittent_by_rate=matrix(intermittent, "rate", WORDS_OF_RATES, delays=True),
        stuck=matrix(stuck, "site", sites),
        images=matrix(images, "bit", WORDS_OF_BITS),
        screening=_never_struck(flips),
        **_agreeing(faulty),
        window=WINDOW,
        warm=WARM + 1,
        thresholds=_thresholds(result["thresholds"]),
        last=effect_tables.LAST,
        period=effect_tables.period(studies),
        single_steps=effect_tables.single_steps(studies),
        submodules=effect_tables.submodules(studies),
        machine=_machine_text(result["machine"]),
        **_counts(result),
    )


def glance(result: Mapping[str, Any]) -> str:
    """Return a table with a row for each detector."""
    lines = []
    for name, detector in result["detectors"].items():
        share = f" ({detector['found'] / detector['struck']:.0%})" if detector["struck"] else ""
        delay = f"{detector['delay']['median']:g} ({detector['delay']['most']})" if detector["delay"] else NOTHING
        quiet = detector["clean"] + detector["never_struck"]
        lines.append(
            [
                name,
                f"{detector['found']} of {detector['struck']}{share}",
                delay,
                f"{detector['false_alarms']} in {quiet}",
            ]
        )
    head = "detector", "found, of runs that were struck", "steps until then, median (most)", "false alarms"
    return table(head, lines)


def matrix(rows: Sequence[Mapping[str, Any]], by: str, order: Mapping[Any, str], *, delays: bool = False) -> str:
    """Return a table of detected and struck runs for each detector, by the field `by` of the rows."""
    by_name = tallies(rows, by)
    names = list(dict.fromkeys(name for name, _ in by_name))
    lines = [
        [label, *(_cell(by_name.get((name, value)), delays) for name in names)]
        for value, label in order.items()
        if any((name, value) in by_name for name in names)
    ]
    return table([by, *names], lines) if lines else "No runs in these results.\n"


def _cell(tally: Tally | None, delays: bool) -> str:
    if tally is None or not tally.struck:
        return NOTHING
    soon = tally.data()["delay"] if delays else None
    return f"{tally.detected}/{tally.struck}" + (f", {soon['median']:g}" if soon else "")


def _counts(result: Mapping[str, Any]) -> dict[str, int]:
    detectors = result["detectors"].values()
    return {name: sum(detector[name] for detector in detectors) for name in ("clean", "never_struck", "false_alarms")}


def _never_struck(flips: Sequence[Mapping[str, Any]]) -> str:
    """Return how many screenings at the lowest rate had no stroke."""
    seldom = [row for row in flips if row["group"] == SCREENING and row["rate"] == min(WORDS_OF_RATES)]
    return f"{sum(row['first'] is None for row in seldom)} of {len(seldom)}"


def _agreeing(faulty: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Return the faults that the comparison of ranks missed, and how many of them left equal parameters."""
    rows = [row for row in faulty if row["group"] in (REPLICAS, SAMPLED, TWINS) and row["first"] is not None]
    missed = [row for row in rows if not any(row["alarms"].values())]
    return {"missed": len(missed), "agree": sum(not row["apart"] for row in missed)}


def _thresholds(limits: Mapping[str, Mapping[str, float]]) -> str:
    return ", ".join(
        f"{thresholds[LOSS]:g} and {thresholds[NORM]:g} ({workload})" for workload, thresholds in limits.items()
    )


def _machine_text(machine: Mapping[str, Any]) -> str:
    return f"Measured with Python {machine['python']} and torch {machine['torch']} on CPUs ({machine['processor']})."
