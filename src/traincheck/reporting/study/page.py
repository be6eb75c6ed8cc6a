"""Write the result of a study as one HTML page: tables by submodule, and the divergence of the two workers."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jinja2

from traincheck.files import PathLike, write_whole
from traincheck.reporting import html
from traincheck.reporting.html.document import assets_of, environment, policy
from traincheck.reporting.study import plots
from traincheck.reporting.study.plots import Plot, plot
from traincheck.version import __version__

MAX_MODULES = 200
"""Submodules with a difference that the page lists; the file has all."""

DIRECTIONS = ("forward", "backward", "gradient", "update")

TITLES = {
    "submodule": ("1", "Each submodule, synchronised"),
    "step": ("2", "One optimizer step, then parameters are copied"),
    "period": ("3", "A period of training, nothing copied"),
}
MEANINGS = {
    "submodule": "After each submodule, in the forward and the backward, the suspect worker continues with the "
    "trusted worker's result. Errors do not add up: each belongs to the submodule of its row.",
    "step": "Errors add up within one step. The table compares their noise with the signal of the gradients.",
    "period": "Errors add up from step to step. Losses may stay close while parameters drift apart.",
}


@dataclass(frozen=True, slots=True)
class RankRow:
    """The result of one rank of the suspect host on a level."""

    rank: int
    elements: int
    different: int
    first: int | None


@dataclass(frozen=True, slots=True)
class Part:
    """A level of the study for the template. `beyond` counts submodules that are not listed."""

    name: str
    number: str
    title: str
    meaning: str
    data: Mapping[str, Any]
    of_ranks: bool
    modules: Sequence[Mapping[str, Any]]
    beyond: int
    ranks: Sequence[RankRow]
    plots: Sequence[Plot]


def render_study(study: Mapping[str, Any], differs: bool, path: PathLike) -> None:
    """Write the page of a study, whole or not at all. Raises OutputError."""
    write_whole(path, study_page(study, differs).encode("utf-8", "backslashreplace"))


def study_page(study: Mapping[str, Any], differs: bool) -> str:
    """Return one HTML document that loads nothing. All text is escaped; only TrainCheck's style and script run."""
    own = assets_of(__package__)
    style, script = assets_of(html.__name__)("report.css") + own("study.css"), own("study.js")
    parts = [part(name, level) for name, level in study["levels"].items()]
    return template().render(
        study=study,
        differs=differs,
        parts=parts,
        places=places(study["levels"].get("submodule")),
        version=__version__,
        policy=policy(style, script),
        style=style,
        script=script,
    )


@functools.cache
def template() -> jinja2.Template:
    """Return the page, compiled at first use."""
    return environment(assets_of(__package__), number=plots.number).get_template("study.html.j2")


def places(level: Mapping[str, Any] | None) -> list[str]:
    """Return the origins of errors from the first level: kinds of submodules, with their directions."""
    rows = level["by_kind"] if level is not None else ()
    directions: dict[str, list[str]] = {}
    for row in rows:
        if row["different"]:
            directions.setdefault(row["kind"], []).append(row["direction"])
    return [f"{kind} ({', '.join(ways)})" for kind, ways in directions.items()]


def part(name: str, level: Mapping[str, Any]) -> Part:
    """Return a level in the form that the template uses."""
    modules = [module for module in level["by_module"] if module["different"]]
    modules.sort(key=lambda module: -module["different"])
    ranks = level.get("by_rank", ())
    return Part(
        name=name,
        number=TITLES[name][0],
        title=TITLES[name][1],
        meaning=MEANINGS[name],
        data=level,
        of_ranks=bool(ranks),
        modules=modules[:MAX_MODULES],
        beyond=max(len(modules) - MAX_MODULES, 0),
        ranks=[_rank(rank) for rank in ranks],
        plots=_PLOTS[name](level["series"]),
    )


def _rank(level: Mapping[str, Any]) -> RankRow:
    elements, different = (sum(row[name] for row in level["by_kind"]) for name in ("elements", "different"))
    first = next(filter(None, map(_step_of_difference, level["series"])), None)
    return RankRow(level["rank"], elements, different, first)


def _step_of_difference(row: Mapping[str, Any]) -> int | None:
    """Return the first step with a difference in a row, or None."""
    shares = any(row.get(way, 0) != 0 for way in DIRECTIONS)
    losses = row["loss"] != row["suspect_loss"] or row.get("relative_distance", 0) != 0
    return row["step"] if shares or losses else None


Series = Sequence[Mapping[str, Any]]


def _of_submodules(series: Series) -> list[Plot]:
    ways = [way for way in DIRECTIONS if any(way in row for row in series)]
    lines = [(way, 2 + DIRECTIONS.index(way), [row.get(way, 0.0) for row in series]) for way in ways]
    return [plot("Share of elements that differ", _steps(series), lines, logarithmic=True)] if series and ways else []


def _of_steps(series: Series) -> list[Plot]:
    if not series:
        return []
    lines = [
        ("all gradients", 1, [row["noise_to_signal"] for row in series]),
        ("the loudest gradient", 4, [row["worst_noise_to_signal"] for row in series]),
    ]
    return [plot("Noise to signal of the gradients", _steps(series), lines, logarithmic=True), *_losses(series)]


def _of_period(series: Series) -> list[Plot]:
    if not series:
        return []
    steps = _steps(series)
    relative = [("distance", 1, [row["relative_distance"] for row in series])]
    title = "Distance of the parameters, relative to their norm"
    return [*_losses(series), plot(title, steps, relative, logarithmic=True)]


def _losses(series: Series) -> list[Plot]:
    steps = _steps(series)
    both = [
        ("trusted", 0, [row["loss"] for row in series]),
        ("suspect", 1, [row["suspect_loss"] for row in series]),
    ]
    differences = [("suspect - trusted", 1, [_difference(row["suspect_loss"], row["loss"]) for row in series])]
    return [
        plot("Loss", steps, both),
        plot("Difference of the losses", steps, differences),
    ]


def _difference(value: float | None, other: float | None) -> float | None:
    return None if value is None or other is None else value - other


def _steps(series: Series) -> list[int]:
    return [row["step"] for row in series]


_PLOTS = {"submodule": _of_submodules, "step": _of_steps, "period": _of_period}
