"""Writes a comparison of two runs as one HTML page, with the operations of both next to each other."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import jinja2

from traincheck.comparison import report
from traincheck.comparison.aligned_operations import UNMATCHED, AlignedOperation, aligned_operations
from traincheck.comparison.alignment import is_of_variable
from traincheck.comparison.configuration import SWITCH, ConfigurationDifference
from traincheck.comparison.difference import DIFFERENT, ORIGIN, ROUNDED, ROUNDING, SAME, VICTIM
from traincheck.comparison.mark_report import mark_lines
from traincheck.comparison.run_comparison import Comparison
from traincheck.comparison.spread import Loss, ModuleReached, Spread, StepDistances
from traincheck.reporting import html
from traincheck.reporting.comparison.sections import EqualGroups, Fold, sections_of, verdict_text
from traincheck.reporting.html import charts
from traincheck.reporting.html.document import assets_of, environment, policy
from traincheck.version import __version__
from traincheck.vocab.finding import Site
from traincheck.vocab.finding_details import CodeExcerpt
from traincheck.vocab.operations import Operation, Sketch

MAX_MODULES, MAX_ORIGINS, MAX_DIFFERENCES, MAX_STEPS = 24, 40, 80, 24
"""Rows of the tables of a page; what is beyond is counted."""

FIRST_DIFFERENCES = 8
"""Differences of the configuration above the others, which are folded."""

SHADES = (1e-6, 1e-4, 1e-2)
"""Distances from which on a cell of the table of modules and steps has the next shade."""


_TILES = (
    (SAME, "equal bits"),
    (ROUNDING, "rounding"),
    (VICTIM, "victims"),
    (ORIGIN, "origins"),
    (UNMATCHED, "in one run only"),
)


@dataclass(frozen=True, slots=True)
class Code:
    """The line of code of an origin in one run, and the lines around it."""

    site: Site
    excerpt: CodeExcerpt


@dataclass(frozen=True, slots=True)
class StepRow:
    """The bar of a step: for each verdict its count, and its begin and its width in percent."""

    distances: StepDistances
    loss: Loss | None
    parts: tuple[tuple[str, int, float, float], ...]
    is_first: bool


@dataclass(frozen=True, slots=True)
class HeatCell:
    """The distance of a module in a step: a shade from 0 (equal) to 3, and words."""

    shade: int
    words: str


def page_of(
    comparison: Comparison,
    a: str,
    b: str,
    spread: Spread,
    configuration: Sequence[ConfigurationDifference] = (),
    code: tuple[Code | None, Code | None] = (None, None),
) -> str:
    """Return one HTML document that loads nothing. All text of the runs is escaped; only TrainCheck's style and script
    are admitted.

    `a` and `b` are the names of the runs, and `code` is the code of the first origin in each of them.
    """
    shared = assets_of(html.__name__)
    style, script = shared("report.css") + assets_of(__package__)("comparison.css"), shared("report.js")
    first = comparison.first
    rows = aligned_operations(first, comparison.origins) if first is not None else []
    steps, reached = spread.steps, spread.modules
    return template().render(
        names=(a, b),
        comparison=comparison,
        common=spread.common,
        is_different=comparison.result == DIFFERENT,
        is_same=comparison.result == SAME,
        headline=report.headline(comparison).partition(": "),
        marks=[line.strip() for line in mark_lines(comparison.marks, a, b, is_alone=not comparison.origins)],
        origin=comparison.origins[0] if comparison.origins else None,
        origins=comparison.origins[1 : 1 + MAX_ORIGINS],
        origins_beyond=max(len(comparison.origins) - 1 - MAX_ORIGINS, 0),
        code=code,
        configuration=configuration[:MAX_DIFFERENCES],
        first_differences=FIRST_DIFFERENCES,
        configuration_beyond=max(len(configuration) - MAX_DIFFERENCES, 0),
        modules=reached[:MAX_MODULES],
        modules_beyond=max(len(reached) - MAX_MODULES, 0),
        step_rows=_step_rows(steps, spread.losses, comparison),
        heat_steps=[step.step for step in _some(steps)],
        heat=_heat(_some(steps), reached),
        loss=report.loss_text(spread.losses),
        rounded=ROUNDED,
        sections=sections_of(rows),
        step=first.step if first is not None else None,
        tiles=_tiles(comparison, rows),
        version=__version__,
        policy=policy(style, script),
        style=style,
        script=script,
    )


@functools.cache
def template() -> jinja2.Template:
    """Return the page, compiled at first use."""
    own, shared = assets_of(__package__), assets_of(html.__name__)

    def asset(name: str) -> str:
        return shared(name) if name == "pieces.html.j2" else own(name)

    names = {
        "charts": charts,
        "text": report,
        "operation_text": operation_text,
        "numbers_of": numbers_of,
        "line_of": line_of,
        "verdict_text": verdict_text,
        "is_fold": lambda row: isinstance(row, Fold),
        "is_equal": lambda group: isinstance(group, EqualGroups),
        "share": share,
        "switch": SWITCH,
    }
    return environment(asset, **names).get_template("comparison.html.j2")


def operation_text(operation: Operation) -> str:
    """The name of an operation; of a variable its path as well."""
    return f"{operation.module} ({operation.name})" if is_of_variable(operation) else operation.name


def numbers_of(sketch: Sketch | None) -> str:
    """Type, shape and norm of a tensor."""
    if sketch is None:
        return ""
    shape = "x".join(map(str, sketch.shape)) or "a number"
    return f"{sketch.dtype}, {shape}, norm {sketch.norm:.6g}"


def line_of(operation: Operation) -> str:
    """The file and the line of a call."""
    return operation.site.rpartition(":")[0]


def share(distance: float) -> str:
    """A relative distance as a short text."""
    if distance == 0:
        return "equal"
    return report.percent(distance) if math.isfinite(distance) else "shape"


def _tiles(comparison: Comparison, rows: Sequence[AlignedOperation]) -> list[tuple[str, str, int, float, float]]:
    """Verdict, word and count of the operations of the step with the origins, with the place in a bar."""
    if rows:
        found = Counter(row.verdict for row in rows)
        counts = [(verdict, word, found[verdict]) for verdict, word in _TILES]
    else:
        same = sum(step.same for step in comparison.steps)
        other = sum(step.rounding + step.different for step in comparison.steps)
        counts = [(SAME, "equal bits", same), (ROUNDING, "rounding", other)]
    return [(*named, *place) for named, place in zip(counts, _places([count for *_, count in counts]), strict=True)]


def _places(counts: Sequence[int]) -> list[tuple[float, float]]:
    """The begin and the width of each part of a bar, in percent."""
    total, left, places = max(sum(counts), 1), 0.0, []
    for count in counts:
        width = 100 * count / total
        places.append((round(left, 2), round(width, 2)))
        left += width
    return places


def _some(steps: Sequence[StepDistances]) -> list[StepDistances]:
    """Steps at equal intervals, with the first and the last."""
    if len(steps) <= MAX_STEPS:
        return list(steps)
    return [steps[number * (len(steps) - 1) // (MAX_STEPS - 1)] for number in range(MAX_STEPS)]


def _step_rows(steps: Sequence[StepDistances], rows: Sequence[Loss], comparison: Comparison) -> list[StepRow]:
    by_step = {loss.step: loss for loss in rows}
    first = comparison.first.step if comparison.first is not None else None
    shown = [step for step in steps if step.step == first or step in _some(steps)]
    return [_step_row(step, by_step.get(step.step), step.step == first) for step in shown]


def _step_row(step: StepDistances, loss: Loss | None, is_first: bool) -> StepRow:
    counts = [step.same, step.rounding, step.different]
    verdicts = (SAME, ROUNDING, VICTIM)
    parts = [(*named, *place) for named, place in zip(zip(verdicts, counts, strict=True), _places(counts), strict=True)]
    return StepRow(step, loss, tuple(parts), is_first)


def _heat(steps: Sequence[StepDistances], reached: Sequence[ModuleReached]) -> list[tuple[str, list[HeatCell]]]:
    """For each module a row: the largest distance of its forward results in each step."""
    order = [module.module for module in reached]
    order += [module for step in steps for module in step.modules if module not in order]
    modules = [each for each in dict.fromkeys(order) if any(each in step.modules for step in steps)]
    return [
        (module, [_cell(module, step.step, step.modules.get(module, 0.0)) for step in steps])
        for module in modules[:MAX_MODULES]
    ]


def _cell(module: str, step: int, distance: float) -> HeatCell:
    shade = sum(distance >= bound for bound in SHADES) if distance > 0 else 0
    return HeatCell(shade, f"{module}, step {step}: {share(distance)}")
