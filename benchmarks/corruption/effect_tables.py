"""Effect tables: what injected faults did to a training, from the studies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from benchmarks.corruption.studied import PERIOD, STEPS, SUBMODULES

AT = (25, 50, 100, 200)
"""Steps of a period whose distances are told."""
LAST = 20
"""Steps at the end over which losses are averaged: that of a single batch says little."""


def period(studies: Mapping[str, Mapping[str, Any]]) -> str:
    """A period of training: losses and the distance of the parameters."""
    head = ["bits", "seed", "strokes", "loss, trusted", "suspect", "difference", "evaluation, trusted", "suspect"]
    lines = [_of_period(bits, one) for bits, one in _named(studies, PERIOD)]
    return table([*head, *(f"distance at {step}" for step in AT)], lines)


def _named(studies: Mapping[str, Mapping[str, Any]], kind: str) -> list[tuple[str, Mapping[str, Any]]]:
    """The studies of a kind, with the bits that are hit."""
    return [(name.split(", ")[1], one) for name, one in studies.items() if name.startswith(f"{kind}, ")]


def _of_period(bits: str, one: Mapping[str, Any]) -> list[object]:
    series, told = one["series"], one["evaluation"]
    trusted, suspect = _mean(series, "loss"), _mean(series, "suspect_loss")
    apart = None if trusted is None or suspect is None else (suspect - trusted) / trusted
    return [
        bits,
        one["seed"],
        _strokes(one),
        _number(trusted),
        _number(suspect),
        "not finite" if apart is None else f"{apart:+.2%}",
        _number(told["trusted"]),
        _number(told["suspect"]),
        *(_number(series[step - 1]["relative_distance"]) for step in AT),
    ]


def _mean(series: Sequence[Mapping[str, Any]], name: str) -> float | None:
    values = [one[name] for one in series[-LAST:]]
    return None if None in values else fmean(values)


def single_steps(studies: Mapping[str, Mapping[str, Any]]) -> str:
    """Single steps: the noise to signal of the gradients."""
    lines = [
        [
            bits,
            _strokes(one),
            f"{len(one['series'])} of {one['steps']}",
            _number(one["worst_noise_to_signal"]),
            _number(one["worst_noise_to_signal_of_a_parameter"]),
        ]
        for bits, one in _named(studies, STEPS)
    ]
    head = "worst, of all gradients", "worst, of the gradient of a parameter"
    return table(["bits", "strokes", "steps with a difference", *head], lines)


def submodules(studies: Mapping[str, Mapping[str, Any]]) -> str:
    """Submodules in lock step: frequency and severity by their kind."""
    lines = [
        [
            one["kind"],
            one["direction"],
            f"{one['elements']:,}",
            f"{one['different']:,}",
            f"{one['frequency']:.1e}" if one["different"] else "0",
            _number(one["severity"]),
            _number(one["worst"]),
        ]
        for one in studies.get(SUBMODULES, {"by_kind": ()})["by_kind"]
        if one["direction"] != "update"  # of what is overwritten before nothing can be told
    ]
    return table(["submodule", "direction", "elements", "wrong", "frequency", "severity", "worst"], lines)


def table(head: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    """A table in Markdown."""
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in rows) + "\n"


def _strokes(one: Mapping[str, Any]) -> int:
    return sum(fault["times"] for fault in one["injected"])


def _number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.3g}"
