"""Writes a comparison of two runs, as text and as data."""

from __future__ import annotations

import math
import re
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from traincheck.comparison.configuration import COMMIT, SOURCE, SWITCH, ConfigurationDifference
from traincheck.comparison.difference import (
    ANOTHER,
    CODE,
    DATA,
    GRADIENTS,
    INITIALISATION,
    NUMBERS,
    RANDOM,
    ROUNDED,
    SAME,
    Difference,
)
from traincheck.comparison.element_differences import ElementDifferences
from traincheck.comparison.mark_report import mark_data, mark_lines, mark_title
from traincheck.comparison.ranks import PartsOfRanks
from traincheck.comparison.run_comparison import Comparison
from traincheck.comparison.spread import (
    Loss,
    ModuleReached,
    Spread,
    StepDistances,
    first_different,
    modules_reached,
)
from traincheck.vocab.operations import ACCUMULATED, AFTER, BACKWARD, BEFORE, GRADIENT, INPUT, UPDATE, Operation, Sketch

MOST_ORIGINS, MOST_ALIKE, MOST_OPERATIONS, MOST_NAMES = 5, 3, 6, 4
MOST_MODULES, MOST_SETTINGS = 16, 60
WIDTH, LONGEST = 110, 60
"""Characters of a line, and of a value of the configuration."""

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


def lines(
    comparison: Comparison,
    a: str,
    b: str,
    configuration: Sequence[ConfigurationDifference] = (),
    losses: Sequence[Loss] = (),
    elements: ElementDifferences | None = None,
) -> Iterator[str]:
    """The comparison for people. `losses` are those up to the first that differs, and `elements` are those of the
    result of the first origin."""
    yield headline(comparison)
    if configuration:
        texts = [difference_text(each, a, b) for each in configuration]
        yield from _wrapped(f"also different: {', '.join(texts)}", 3)
    if comparison.repetitions:
        yield f"  {noise_text(comparison)}"
    if comparison.origins:
        yield from _origins(comparison, a, b, losses, elements)
    yield from mark_lines(comparison.marks, a, b, is_alone=not comparison.origins)
    if not comparison.steps:
        yield "  not compared: operations, as the runs have no step in common, or no module"
    names = list(comparison.renamed.items())
    for new, old in names[:MOST_NAMES]:
        yield f"  {new} of {b} was compared with {old} of {a}"
    if len(names) > MOST_NAMES:
        yield f"  and {len(names) - MOST_NAMES} other names (--json has all)"
    for match in comparison.by_hand:
        count = len(match.shown)
        yield f"  by hand: {match.text} ({count} name{'s' * (count != 1)} of {b})"
    for label, only in ((a, comparison.only_a), (b, comparison.only_b)):
        yield from _wrapped(f"only {label} has: {', '.join(only)}" if only else "", 2)
    for reason in comparison.incomplete:
        yield f"  not compared: a part of a step, as {reason}"


def headline(comparison: Comparison) -> str:
    """The result in one line."""
    if comparison.origins:
        return f"different: {title(comparison.origins[0])}"
    if comparison.marks.first is not None:
        return f"different: {mark_title(comparison.marks.first)}"
    steps, is_same = comparison.steps, comparison.result == SAME
    if not steps:
        return "equal: all marks have the same values" if is_same else "equal up to rounding: all marks"
    compared = f"{len(steps)} step{'s' if len(steps) > 1 else ''} ({steps[0].step} to {steps[-1].step})"
    if is_same:
        return f"equal: all {sum(step.same for step in steps):,} results have the same bits in {compared}"
    rounded = sum(step.rounding + step.different for step in steps)
    total = sum(step.same + step.rounding + step.different for step in steps)
    return f"equal up to rounding: {rounded:,} of {total:,} results differ by no more, in {compared}"


def noise_text(comparison: Comparison) -> str:
    """How far the repetitions of the first run are from it."""
    count = comparison.repetitions
    repeated = f"noise: {count} repetition{'s' if count > 1 else ''} of the first run"
    noisiest = comparison.noisiest
    if noisiest is None:
        return f"{repeated}, with the same bits"
    operation = noisiest.operation
    place = f"{operation.name} in {operation.module or 'the loop'}, in the {operation.phase} of step {noisiest.step}"
    return f"{repeated}, up to {apart_text(noisiest.distance)}: {place}"


def difference_text(difference: ConfigurationDifference, a: str, b: str) -> str:
    """A difference of the configuration: `torch 2.4.0 / 2.13.0`, `--fused (only after)`."""
    name, values = difference.name, (difference.a, difference.b)
    is_file = difference.kind == SOURCE and name != COMMIT
    if None not in values:
        own, other = (textwrap.shorten(str(value), LONGEST, placeholder=" ...") for value in values)
        return f"{name} (other contents)" if is_file else f"{name} {own} / {other}"
    value = textwrap.shorten(str(difference.a or difference.b), LONGEST, placeholder=" ...")
    shown = name if is_file or value == SWITCH else f"{name} {value}"
    return f"{shown} (only {a if difference.b is None else b})"


def _wrapped(text: str, most: int) -> list[str]:
    """The text in at most so many indented lines."""
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent="  ",
        subsequent_indent="    ",
        max_lines=most,
        placeholder=" ... (--json has all)",
        break_on_hyphens=False,
    )


def _origins(
    comparison: Comparison, a: str, b: str, losses: Sequence[Loss], elements: ElementDifferences | None
) -> Iterator[str]:
    first = comparison.origins[0]
    if comparison.since and comparison.since < first.step - 1:
        yield f"  it begins between step {comparison.since} and step {first.step}; sketch each of them to find it"
    yield from _describe(first, a, b, elements)
    alike = [origin for origin in comparison.origins[1:] if _group(origin) == _group(first)]
    if alike:
        names = ", ".join(origin.operation.module for origin in alike[:MOST_ALIKE])
        yield f"  the same for {names}{f' and {len(alike) - MOST_ALIKE} more' if len(alike) > MOST_ALIKE else ''}"
    others = [origin for origin in comparison.origins[1:] if _group(origin) != _group(first)]
    if others:
        yield f"  other origins in step {first.step}: {len(others)}"
        for origin in others[:MOST_ORIGINS]:
            yield f"    {origin.operation.name} in {_place(origin)}: {apart_text(origin.results)} ({origin.kind})"
    phases = Counter(victim.operation.phase for victim in comparison.victims)
    if phases:
        behind = ", ".join(f"{count} {phase}" for phase, count in phases.items())
        yield f"  behind it, {sum(phases.values())} operations of this step get other inputs: {behind}"
    reached = modules_reached(comparison)
    yield from _wrapped(f"spread: {spread_text(reached)}" if reached else "", 4)
    yield from _wrapped(loss_text(losses), 1)
    yield f"  {advice(first)}"
    if elements is None:
        yield from _wrapped(whole_values_advice(first, a, b), 2)


def advice(origin: Difference) -> str:
    """What to compare or to do about an origin."""
    if origin.kind == NUMBERS and len({_parts(value) for value in origin.values or ()}) > 1:
        return "Compare which parts of the batch the ranks or micro-batches combine here, and in which order."
    return _ADVICE[origin.kind]


def element_texts(elements: ElementDifferences) -> tuple[str, ...]:
    """Which elements of a result differ, and what they have in common."""
    if elements.reason:
        return (f"not compared: {elements.reason}",)
    if not elements.differing:
        return (f"all {elements.size:,} differ by rounding at most",)
    own, other = elements.pair
    index = ", ".join(map(str, elements.index))
    largest = f"the largest difference is {elements.largest:.6g} at ({index}): {own:.6g} and {other:.6g}"
    return (f"{elements.differing:,} of {elements.size:,} differ; {largest}", *elements.patterns)


def whole_values_advice(origin: Difference, a: str, b: str) -> str:
    """How to record all elements of the result of an origin; empty if it has no results that can be compared."""
    if origin.values is None or origin.a is None or origin.b is None or math.isinf(origin.results):
        return ""
    if origin.operation.name == INPUT or origin.operation.name == ACCUMULATED:
        return ""
    options = [f'--record "operations:{_RANK.sub("", each.module)}@{origin.step}"' for each in (origin.a, origin.b)]
    if options[0] == options[1]:
        return f"To see which elements differ, record both runs with {options[0]}."
    return f"To see which elements differ, record {a} with {options[0]} and {b} with {options[1]}."


_RANK = re.compile(r"\[rank \d+\]")
"""What `join_stages` adds to a name."""


def _parts(value: Sketch) -> int:
    """In how many different parts a value was computed."""
    return len(value.parts) if isinstance(value, PartsOfRanks) and not value.is_replicated else 1


def spread_text(modules: Sequence[ModuleReached]) -> str:
    """The modules in the order in which a difference reaches them, by phase."""
    parts = []
    for phase, group in groupby(modules[:MOST_MODULES], key=lambda module: module.phase):
        parts.append(f"{phase} {', '.join(f'{each.module} ({percent(each.distance)})' for each in group)}")
    more = f"; and {len(modules) - MOST_MODULES} more modules" if len(modules) > MOST_MODULES else ""
    return f"{'; '.join(parts)}{more}"


def loss_text(rows: Sequence[Loss]) -> str:
    """In which step the losses first differ, and by how much; empty if no loss is known."""
    if not rows:
        return ""
    first = first_different(rows)
    if first is None:
        return f"loss: the same bits in {len(rows)} step{'s' if len(rows) > 1 else ''}"
    how = "by rounding " if first.distance <= ROUNDED else ""
    return f"loss: differs {how}from step {first.step} on, {first.a:.6g} / {first.b:.6g} ({percent(first.distance)})"


def percent(distance: float) -> str:
    """A relative distance in percent."""
    if not math.isfinite(distance):
        return "another shape, or not finite"
    return f"{distance:.0%}" if distance >= 1 else f"{100 * distance:.2g}%"


def _group(origin: Difference) -> tuple[str, str, str]:
    return origin.operation.phase, origin.operation.name, origin.kind


def title(origin: Difference) -> str:
    """What the kind of an origin means, and its step."""
    return f"{_TITLES[origin.kind]}, in step {origin.step}"


def _describe(origin: Difference, a: str, b: str, elements: ElementDifferences | None) -> Iterator[str]:
    operation, width = origin.operation, max(map(len, (a, b, "results" if elements is None else "elements")))
    yield f"  {'where':{width}}  {where(origin)}"
    for label, own, others, partner in (
        (a, origin.a, origin.others_a, origin.b),
        (b, origin.b, origin.others_b, origin.a),
    ):
        yield f"  {label:{width}}  {operations_text(own, others, partner)}"
    if origin.values is None:
        return
    if operation.phase not in (BEFORE, GRADIENT, UPDATE):
        yield f"  {'inputs':{width}}  {inputs_text(origin)}"
    yield f"  {'results':{width}}  {results_text(origin)}"
    for label, sketch in zip((a, b), origin.values, strict=True):
        yield f"  {label:{width}}  {tensor_text(sketch)}"
    for number, text in enumerate(element_texts(elements) if elements is not None else ()):
        yield f"  {'' if number else 'elements':{width}}  {text}"


def where(origin: Difference) -> str:
    """The module or the variable of an origin, and the part of the step."""
    phase = origin.operation.phase
    return f"{_place(origin)}, {_WHERE.get(phase, f'in the {phase}')}"


def _place(origin: Difference) -> str:
    operation = origin.operation
    name = operation.module or "the loop"
    return f"{name} ({operation.name})" if operation.phase in (BEFORE, BACKWARD) else name


def operations_text(own: Operation | None, others: Sequence[Operation], partner: Operation | None = None) -> str:
    """The operations of an origin in one run, with settings and line of code. `partner` is that of the other run."""
    shown = list(others) or ([own] if own is not None else [])
    if not shown:
        return "nothing"
    texts = [_call(each, partner if each is own else None) for each in shown[:MOST_OPERATIONS]]
    more = f" and {len(shown) - len(texts)} more" if len(shown) > len(texts) else ""
    site = next((each.site for each in shown if each.site), "")
    return f"{', '.join(texts)}{more}{f' at {site}' if site else ''}"


def _call(operation: Operation, partner: Operation | None) -> str:
    settings = "".join(text for text, _ in settings_parts(operation, partner))
    return f"{operation.name}({settings})" if settings else operation.name


def settings_parts(operation: Operation, partner: Operation | None) -> list[tuple[str, bool]]:
    """The settings of an operation in parts, and whether a part is not among the settings of its partner.

    Long settings are shortened to the parts that differ.
    """
    words = operation.settings.split(", ") if operation.settings else []
    others = set(partner.settings.split(", ")) if partner is not None else set(words)
    differ = [word for word in words if word not in others]
    if len(operation.settings) > MOST_SETTINGS and differ:
        return [(", ".join(differ), True), (", ...", False)]
    if len(operation.settings) > MOST_SETTINGS:
        return [(f"{operation.settings[:MOST_SETTINGS]} ...", False)]
    parts: list[tuple[str, bool]] = []
    for word in words:
        parts += [(", ", False)] if parts else []
        parts.append((word, word not in others))
    return parts


def apart_text(distance: float) -> str:
    """A distance in words."""
    if distance == 0:
        return "the same bits"
    if math.isinf(distance):
        return "another shape, or numbers that are not finite"
    return f"{distance:.2g} apart (relative)" if distance < 0.001 else f"{distance:.2%} apart"


def inputs_text(origin: Difference) -> str:
    """How far the inputs of an origin are apart."""
    if origin.inputs == 0:
        return "the same bits"
    kind = "another value, which both runs have" if origin.inputs > ANOTHER else "equal inputs"
    return f"{kind} ({apart_text(origin.inputs)})"


def results_text(origin: Difference) -> str:
    """How far the results of an origin are apart."""
    parts = [each for each in origin.values or () if isinstance(each, PartsOfRanks) and not each.is_replicated]
    if math.isinf(origin.results) and origin.kind == GRADIENTS and parts:
        return "the ranks have different gradients, which were not reduced"
    return apart_text(origin.results)


def tensor_text(sketch: Sketch) -> str:
    """A sketched tensor in words."""
    shape = "x".join(map(str, sketch.shape)) or "a number"
    elements = ", ".join(f"{each:.6g}" for each in sketch.elements)
    return f"{sketch.dtype}, {shape}, norm {sketch.norm:.6g}, elements {elements}"


# -- data ------------------------------------------------------------------------------------------------------------


def data(
    comparison: Comparison,
    a: str,
    b: str,
    configuration: Sequence[ConfigurationDifference] = (),
    spread: Spread | None = None,
    elements: ElementDifferences | None = None,
) -> dict[str, Any]:
    """The comparison as JSON data. Distances that are infinite or unknown are None."""
    return {
        "a": a,
        "b": b,
        "result": comparison.result,
        "configuration": [{"kind": each.kind, "name": each.name, "a": each.a, "b": each.b} for each in configuration],
        "since": comparison.since,
        "steps": [
            {"step": step.step, "same": step.same, "rounding": step.rounding, "different": step.different}
            for step in comparison.steps
        ],
        "origins": [_difference(origin) for origin in comparison.origins],
        "elements": None if elements is None else _elements(elements),
        "victims": dict(Counter(victim.operation.phase for victim in comparison.victims)),
        "spread": None if spread is None else _spread(spread),
        "renamed": comparison.renamed,
        "map": {match.text: match.shown for match in comparison.by_hand},
        "only": {"a": list(comparison.only_a), "b": list(comparison.only_b)},
        "incomplete": list(comparison.incomplete),
        "marks": mark_data(comparison.marks),
        "noise": _noise(comparison),
    }


def _elements(elements: ElementDifferences) -> dict[str, Any]:
    return {
        "size": elements.size,
        "differing": elements.differing,
        "largest": _number(elements.largest),
        "index": list(elements.index),
        "pair": [_number(each) for each in elements.pair],
        "patterns": list(elements.patterns),
        "reason": elements.reason,
    }


def _noise(comparison: Comparison) -> dict[str, Any] | None:
    if not comparison.repetitions:
        return None
    noisiest = comparison.noisiest
    largest = None
    if noisiest is not None:
        phase, name, module, _ = noisiest.operation
        largest = {
            "step": noisiest.step,
            "phase": phase,
            "module": module,
            "operation": name,
            "distance": _number(noisiest.distance),
        }
    return {"repetitions": comparison.repetitions, "largest": largest}


def _spread(spread: Spread) -> dict[str, Any]:
    return {
        "modules": [_module(each) for each in spread.modules],
        "steps": [_step(each) for each in spread.steps],
        "losses": [
            {"step": each.step, "a": _number(each.a), "b": _number(each.b), "distance": _number(each.distance)}
            for each in spread.losses
        ],
    }


def _module(reached: ModuleReached) -> dict[str, Any]:
    return {
        "module": reached.module,
        "phase": reached.phase,
        "operation": reached.operation,
        "distance": _number(reached.distance),
        "largest": _number(reached.largest),
        "origin": reached.is_origin,
    }


def _step(distances: StepDistances) -> dict[str, Any]:
    return {
        "step": distances.step,
        "same": distances.same,
        "rounding": distances.rounding,
        "different": distances.different,
        "parameters": _number(distances.parameters),
        "largest": _number(distances.largest),
        "farthest": distances.farthest,
        "modules": {module: _number(apart) for module, apart in distances.modules.items()},
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


def _number(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
