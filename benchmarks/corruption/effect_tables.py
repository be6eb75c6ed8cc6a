"""Format tables of the effect of injected faults on training."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from benchmarks.corruption.studies import PERIOD, STEPS, SUBMODULES

AT = (25, 50, 100, 200)
"""Steps of a period with a distance in the table."""
LAST = 20
"""Last steps whose losses are averaged, because the loss of a single batch is noisy."""


def period(studies: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the table of training periods: losses, and the distance of the parameters."""
    head = ["fault", "seed", "strokes", "loss, trusted", "suspect", "difference", "evaluation, trusted", "suspect"]
    lines = [_of_period(fault, study) for fault, study in _named(studies, PERIOD)]
    return table([*head, *(f"distance at {step}" for step in AT)], lines)


def _named(studies: Mapping[str, Mapping[str, Any]], kind: str) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the studies of a kind, with the fault."""
    return [(name.split(", ")[1], study) for name, study in studies.items() if name.startswith(f"{kind}, ")]


def _of_period(fault: str, study: Mapping[str, Any]) -> list[object]:
    series, evaluation = study["series"], study["evaluation"]
    trusted, suspect = _mean(series, "loss"), _mean(series, "suspect_loss")
    difference = None if trusted is None or suspect is None else (suspect - trusted) / trusted
    return [
        fault,
        study["seed"],
        _strokes(study),
        _number(trusted),
        _number(suspect),
        "not finite" if difference is None else f"{difference:+.2%}",
        _number(evaluation["trusted"]),
        _number(evaluation["suspect"]),
        *(_number(series[step - 1]["relative_distance"]) for step in AT),
    ]


def _mean(series: Sequence[Mapping[str, Any]], name: str) -> float | None:
    values = [entry[name] for entry in series[-LAST:]]
    return None if None in values else fmean(values)


def single_steps(studies: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the table of single steps: the noise-to-signal ratio of the gradients."""
    lines = [
        [
            fault,
            _strokes(study),
            f"{len(study['series'])} of {study['steps']}",
            _number(study["worst_noise_to_signal"]),
            _number(study["worst_noise_to_signal_of_a_parameter"]),
        ]
        for fault, study in _named(studies, STEPS)
    ]
    head = "worst, of all gradients", "worst, of the gradient of a parameter"
    return table(["fault", "strokes", "steps with a difference", *head], lines)


def submodules(studies: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the table of synchronised submodules: frequency and severity of errors by kind."""
    lines = [
        [
            row["kind"],
            row["direction"],
            f"{row['elements']:,}",
            f"{row['different']:,}",
            f"{row['frequency']:.1e}" if row["different"] else "0",
            _number(row["severity"]),
            _number(row["worst"]),
        ]
        for row in studies.get(SUBMODULES, {"by_kind": ()})["by_kind"]
        if row["direction"] != "update"  # parameters are overwritten before an update can be compared
    ]
    return table(["submodule", "direction", "elements", "wrong", "frequency", "severity", "worst"], lines)


def table(head: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table."""
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in rows) + "\n"


def _strokes(study: Mapping[str, Any]) -> int:
    return sum(fault["times"] for fault in study["injected"])


def _number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.3g}"
