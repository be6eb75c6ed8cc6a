"""The page of the results: docs/sdc-detection.md, and the summary in a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.corruption import effect_tables
from benchmarks.corruption.alarms import LOSS, NORM, WARM, WINDOW
from benchmarks.corruption.effect_tables import table
from benchmarks.corruption.grid import DECODER, IMAGES, NAMES, WORDS_OF_BITS, WORDS_OF_RATES
from benchmarks.corruption.one_process import SCREENING
from benchmarks.corruption.tally import Tally, tallies
from benchmarks.corruption.watches import REPLICAS, SAMPLED, TWINS
from traincheck.sdc.faults.fault import BITFLIP, SITES, STUCK

PAGE = Path(__file__).resolve().parents[2] / "docs" / "sdc-detection.md"
TEMPLATE = Path(__file__).parent / "sdc-detection.md"
"""What the page says around its tables."""
NOTHING = "-"
"""In a cell: no such run was made."""


def summary(result: Mapping[str, Any]) -> str:
    """A line for each detector, for a terminal."""
    lines = []
    for name, one in result["detectors"].items():
        delay = one["delay"]
        soon = f", {delay['median']:g} steps after the first stroke (most {delay['most']})" if delay else ""
        lines += [
            f"{name}: {one['found']} of {one['struck']} found{soon}",
            f"  {one['false_alarms']} false alarms in {one['clean']} clean runs and {one['never_struck']} never struck",
        ]
    for name, one in result["studies"].items():
        lines.append(f"study {name}: {one['steps']} steps")
    return "\n".join(lines)


def write_page(result: Mapping[str, Any]) -> None:
    """Write docs/sdc-detection.md anew."""
    PAGE.write_text(text(result))


def text(result: Mapping[str, Any]) -> str:
    """The page."""
    faulty = [row for row in result["runs"] if not row["clean"]]
    decoder = [row for row in faulty if row["workload"] == NAMES[DECODER]]
    flips = [row for row in decoder if row["kind"] == BITFLIP]
    stuck = [row for row in decoder if row["kind"] == STUCK]
    images = [row for row in faulty if row["workload"] == NAMES[IMAGES] and row["kind"] == BITFLIP]
    sites = {site: f"`{site}`" for site in SITES}
    studies = result["studies"]
    return TEMPLATE.read_text().format(
        glance=glance(result),
        by_site=matrix(flips, "site", sites),
        by_bit=matrix(flips, "bit", WORDS_OF_BITS),
        by_rate=matrix(flips, "rate", WORDS_OF_RATES, delays=True),
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
        machine=_told_machine(result["machine"]),
        **_counts(result),
    )


def glance(result: Mapping[str, Any]) -> str:
    """A row for each detector."""
    lines = []
    for name, one in result["detectors"].items():
        share = f" ({one['found'] / one['struck']:.0%})" if one["struck"] else ""
        delay = f"{one['delay']['median']:g} ({one['delay']['most']})" if one["delay"] else NOTHING
        quiet = one["clean"] + one["never_struck"]
        lines.append([name, f"{one['found']} of {one['struck']}{share}", delay, f"{one['false_alarms']} in {quiet}"])
    head = "detector", "found, of runs that were struck", "steps until then, median (most)", "false alarms"
    return table(head, lines)


def matrix(rows: Sequence[Mapping[str, Any]], by: str, order: Mapping[Any, str], *, delays: bool = False) -> str:
    """Of each detector what it found of the runs that were struck, by what the rows say under `by`."""
    found = tallies(rows, by)
    names = list(dict.fromkeys(name for name, _ in found))
    lines = [
        [told, *(_cell(found.get((name, value)), delays) for name in names)]
        for value, told in order.items()
        if any((name, value) in found for name in names)
    ]
    return table([by, *names], lines)


def _cell(one: Tally | None, delays: bool) -> str:
    if one is None or not one.struck:
        return NOTHING
    soon = one.data()["delay"] if delays else None
    return f"{one.found}/{one.struck}" + (f", {soon['median']:g}" if soon else "")


def _counts(result: Mapping[str, Any]) -> dict[str, int]:
    told = result["detectors"].values()
    return {name: sum(one[name] for one in told) for name in ("clean", "never_struck", "false_alarms")}


def _never_struck(flips: Sequence[Mapping[str, Any]]) -> str:
    """Of the screenings, in how many at the lowest rate nothing was there to be found."""
    seldom = [row for row in flips if row["group"] == SCREENING and row["rate"] == min(WORDS_OF_RATES)]
    return f"{sum(row['first'] is None for row in seldom)} of {len(seldom)}"


def _agreeing(faulty: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """How many faults the comparison of ranks missed, and after how many of them these were the same in the end."""
    rows = [row for row in faulty if row["group"] in (REPLICAS, SAMPLED, TWINS) and row["first"] is not None]
    missed = [row for row in rows if not any(row["alarms"].values())]
    return {"missed": len(missed), "agree": sum(not row["apart"] for row in missed)}


def _thresholds(found: Mapping[str, Mapping[str, float]]) -> str:
    return ", ".join(f"{one[LOSS]:g} and {one[NORM]:g} ({workload})" for workload, one in found.items())


def _told_machine(machine: Mapping[str, Any]) -> str:
    return f"Measured with Python {machine['python']} and torch {machine['torch']} on CPUs ({machine['processor']})."
