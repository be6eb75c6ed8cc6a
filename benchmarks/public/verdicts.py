"""Judges a program: did TrainCheck leave its output unchanged, and is each finding true?"""

from __future__ import annotations

from typing import Any

from benchmarks.public.programs import Program
from benchmarks.recorded_findings import diagnosis_of

SKIPPED = "not run"
MISSING = "cannot run"
FAILS_PLAIN = "fails without TrainCheck"
CRASHED = "crashed"
DIFFERS = "output differs"
FALSE = "FALSE finding"
NOTHING = "steps not recognised"
MISSED = "expected finding missed"
TRUE = "true finding"
CLEAN = "clean"
GOOD = (CLEAN, TRUE)
VERDICTS = (CLEAN, TRUE, FALSE, MISSED, NOTHING, DIFFERS, CRASHED, FAILS_PLAIN, MISSING, SKIPPED)

MAX_RATIO, MAX_SECONDS = 1.5, 3.0
"""Limits of an observed run: the ratio to the plain run, and additional seconds."""


def verdict(program: Program, figures: dict[str, Any]) -> str:
    """The worst that is so of a run: whatever harms the program comes before what is said of it."""
    if program.skipped:
        return SKIPPED
    if "missing" in figures:
        return MISSING
    if figures["exit_plain"]:
        return FAILS_PLAIN
    if "exit_observed" not in figures:
        return SKIPPED
    if figures["exit_observed"] or not figures["reported"]:
        return CRASHED
    if not figures["output"]["equal"] or figures["output"]["lost_stderr"]:
        return DIFFERS
    if unexplained(program, figures):
        return FALSE
    if figures["steps"] < program.steps:
        return NOTHING
    diagnoses = {diagnosis_of(finding) for finding in figures["findings"]}
    if any(finding.always and finding.diagnosis not in diagnoses for finding in program.expected):
        return MISSED
    return TRUE if figures["findings"] else CLEAN


def unexplained(program: Program, figures: dict[str, Any]) -> list[dict[str, Any]]:
    """The findings that the list does not explain: they count as false."""
    explained = {finding.diagnosis for finding in program.expected}
    return [finding for finding in figures["findings"] if diagnosis_of(finding) not in explained]


def too_slow(figures: dict[str, Any]) -> bool:
    """Return whether the observed run exceeded the limits."""
    return bool(figures["seconds_observed"] > MAX_RATIO * figures["seconds_plain"] + MAX_SECONDS)
