"""Writes a comparison of two runs, as text and as data."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from traincheck.comparison.mark_report import mark_data, mark_lines, mark_title
from traincheck.comparison.run_comparison import SAME, Comparison
from traincheck.comparison.step_comparison import (
    CODE,
    DATA,
    GRADIENTS,
    INITIALISATION,
    NUMBERS,
    RANDOM,
    Difference,
)
from traincheck.vocab.operations import AFTER, BACKWARD, BEFORE, GRADIENT, UPDATE, Operation, Sketch

MOST_ORIGINS, MOST_ALIKE, MOST_OPERATIONS = 5, 3, 6

_TITLES = {
    DATA: "The runs compute with different data",
    INITIALISATION: "The runs begin with different weights",
    RANDOM: "The runs draw different random numbers",
    CODE: "The runs compute different things",
    GRADIENTS: "An optimizer gets other gradients after equal backwards",
    NUMBERS: "An operation returns other numbers for equal inputs",
}
_ADVICE = {
    DATA: "Compare the data, its order, and the seeds of the loader and of augmentations.",
    INITIALISATION: "Set the same seed before the model is built, or load the same checkpoint.",
    RANDOM: "Set the same seed before the loop. Dropout and noise draw from it in the order of the calls.",
    CODE: "Compare the two lines of code, and the settings in parentheses.",
    GRADIENTS: "Compare clipping, unscaling, accumulation, and the reduction between ranks.",
    NUMBERS: "Compare the kernel, the library version and the precision settings of both runs.",
}
_WHERE = {
    GRADIENT: "between the backward and the update (reduction, unscaling or clipping)",
    UPDATE: "in the update",
    BEFORE: "at the begin of the step",
    AFTER: "at the end of the step",
}


def lines(comparison: Comparison, a: str, b: str) -> Iterator[str]:
    """The comparison for people."""
    steps, marks = comparison.steps, comparison.marks
    if comparison.origins:
        yield from _origins(comparison, a, b)
    elif marks.first is not None:
        yield f"different: {mark_title(marks.first)}"
    else:
        yield _equality(comparison)
    yield from mark_lines(marks, a, b, is_alone=not comparison.origins)
    if not steps:
        yield "  not compared: operations, as the runs have no step in common, or no module"
    for new, old in comparison.renamed.items():
        yield f"  {new} of {b} was compared with {old} of {a}"
    for reason in comparison.incomplete:
        yield f"  not compared: a part of a step, as {reason}"


def _equality(comparison: Comparison) -> str:
    """Runs without an origin, in words."""
    steps, is_same = comparison.steps, comparison.result == SAME
    if not steps:
        return "equal: all marks have the same values" if is_same else "equal up to rounding: all marks"
    compared = f"{len(steps)} step{'s' if len(steps) > 1 else ''} ({steps[0].step} to {steps[-1].step})"
    if is_same:
        return f"equal: all {sum(step.same for step in steps):,} results have the same bits in {compared}"
    rounded = sum(step.rounding + step.different for step in steps)
    total = sum(step.same + step.rounding + step.different for step in steps)
    return f"equal up to rounding: {rounded:,} of {total:,} results differ by no more, in {compared}"


def _origins(comparison: Comparison, a: str, b: str) -> Iterator[str]:
    first = comparison.origins[0]
    yield f"different: {_title(first)}"
    if comparison.since and comparison.since < first.step - 1:
        yield f"  it begins between step {comparison.since} and step {first.step}; sketch each of them to find it"
    yield from _describe(first, a, b)
    alike = [origin for origin in comparison.origins[1:] if _group(origin) == _group(first)]
    if alike:
        names = ", ".join(origin.operation.module for origin in alike[:MOST_ALIKE])
        yield f"  the same for {names}{f' and {len(alike) - MOST_ALIKE} more' if len(alike) > MOST_ALIKE else ''}"
    others = [origin for origin in comparison.origins[1:] if _group(origin) != _group(first)]
    if others:
        yield f"  other origins in step {first.step}: {len(others)}"
        for origin in others[:MOST_ORIGINS]:
            yield f"    {origin.operation.name} in {_place(origin)}: {_apart(origin.results)} ({origin.kind})"
    phases = Counter(victim.operation.phase for victim in comparison.victims)
    if phases:
        behind = ", ".join(f"{count} {phase}" for phase, count in phases.items())
        yield f"  behind it, {sum(phases.values())} operations of this step get other inputs: {behind}"
    yield f"  {_ADVICE[first.kind]}"


def _group(origin: Difference) -> tuple[str, str, str]:
    return origin.operation.phase, origin.operation.name, origin.kind


def _title(origin: Difference) -> str:
    return f"{_TITLES[origin.kind]}, in step {origin.step}"


def _describe(origin: Difference, a: str, b: str) -> Iterator[str]:
    operation, width = origin.operation, max(map(len, (a, b, "results")))
    yield f"  {'where':{width}}  {_place(origin)}, {_WHERE.get(operation.phase, f'in the {operation.phase}')}"
    for label, own, others in ((a, origin.a, origin.others_a), (b, origin.b, origin.others_b)):
        yield f"  {label:{width}}  {_operations(own, others)}"
    if origin.values is None:
        return
    if operation.phase not in (BEFORE, GRADIENT, UPDATE):
        equal = "the same bits" if origin.inputs == 0 else f"equal inputs ({_apart(origin.inputs)})"
        yield f"  {'inputs':{width}}  {equal}"
    yield f"  {'results':{width}}  {_apart(origin.results)}"
    for label, sketch in zip((a, b), origin.values, strict=True):
        yield f"  {label:{width}}  {_tensor(sketch)}"


def _place(origin: Difference) -> str:
    operation = origin.operation
    name = operation.module or "the loop"
    return f"{name} ({operation.name})" if operation.phase in (BEFORE, BACKWARD) else name


def _operations(own: Operation | None, others: Sequence[Operation]) -> str:
    shown = list(others) or ([own] if own is not None else [])
    if not shown:
        return "nothing"
    texts = [f"{each.name}({each.settings})" if each.settings else each.name for each in shown[:MOST_OPERATIONS]]
    more = f" and {len(shown) - len(texts)} more" if len(shown) > len(texts) else ""
    site = next((each.site for each in shown if each.site), "")
    return f"{', '.join(texts)}{more}{f' at {site}' if site else ''}"


def _apart(distance: float) -> str:
    if distance == 0:
        return "the same bits"
    if math.isinf(distance):
        return "another shape, or numbers that are not finite"
    return f"{distance:.2g} apart (relative)" if distance < 0.001 else f"{distance:.2%} apart"


def _tensor(sketch: Sketch) -> str:
    shape = "x".join(map(str, sketch.shape)) or "a number"
    elements = ", ".join(f"{each:.6g}" for each in sketch.elements)
    return f"{sketch.dtype}, {shape}, norm {sketch.norm:.6g}, elements {elements}"


# -- data ------------------------------------------------------------------------------------------------------------


def data(comparison: Comparison, a: str, b: str) -> dict[str, Any]:
    """The comparison as JSON data."""
    return {
        "a": a,
        "b": b,
        "result": comparison.result,
        "since": comparison.since,
        "steps": [
            {"step": step.step, "same": step.same, "rounding": step.rounding, "different": step.different}
            for step in comparison.steps
        ],
        "origins": [_difference(origin) for origin in comparison.origins],
        "victims": dict(Counter(victim.operation.phase for victim in comparison.victims)),
        "renamed": comparison.renamed,
        "incomplete": list(comparison.incomplete),
        "marks": mark_data(comparison.marks),
    }


def _difference(origin: Difference) -> dict[str, Any]:
    return {
        "step": origin.step,
        "kind": origin.kind,
        "phase": origin.operation.phase,
        "module": origin.operation.module,
        "operation": origin.operation.name,
        "inputs": _number(origin.inputs),
        "results": _number(origin.results),
        "a": _run(origin.a, origin.others_a, origin.values and origin.values[0]),
        "b": _run(origin.b, origin.others_b, origin.values and origin.values[1]),
    }


def _run(own: Operation | None, others: Sequence[Operation], sketch: Sketch | None) -> dict[str, Any]:
    shown = list(others) or ([own] if own is not None else [])
    return {
        "operations": [{"name": each.name, "settings": each.settings, "site": each.site} for each in shown],
        "dtype": sketch.dtype if sketch else None,
        "shape": list(sketch.shape) if sketch else None,
        "norm": _number(sketch.norm) if sketch else None,
    }


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
