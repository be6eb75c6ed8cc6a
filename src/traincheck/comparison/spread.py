"""How a difference spreads: from module to module in the step with its origin, and from step to step behind it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from traincheck.comparison.aligned_operations import AlignedOperation, aligned_operations, results_of
from traincheck.comparison.alignment import Rename, aligned, is_of_variable
from traincheck.comparison.difference import ORIGIN, ROUNDED, VICTIM
from traincheck.comparison.distance import distance, rounding
from traincheck.comparison.ranks import forms
from traincheck.comparison.run_comparison import CommonStep, Comparison
from traincheck.vocab.operations import (
    AFTER,
    BACKWARD,
    FORWARD,
    INPUT,
    ROOTS,
    UPDATE,
    Operation,
    Sketch,
    StepOperations,
)

MAX_STEPS, LEAST_STEPS, MAX_OPERATIONS = 48, 5, 100_000
"""Limits for the steps whose distances are compared, and for their operations together, which take some seconds."""

STEPS_OF_LOSS = 100
"""Steps behind the origins in which the text looks for another loss."""

LOOP = "the loop"
"""Stands for the module of operations outside all modules."""


@dataclass(frozen=True)
class ModuleReached:
    """A module, and its first operation with other results in the step with the origins.

    `distance` is that of the first operation, `largest` the largest of the module in this step. `is_origin` means that
    the first operation is an origin.
    """

    module: str
    phase: str
    operation: str
    distance: float
    largest: float
    is_origin: bool


@dataclass(frozen=True)
class StepDistances:
    """How far two runs are apart in a step: numbers of operations, and relative distances.

    `parameters` is the distance of all parameters together after the update, and `largest` is that of the parameter
    `farthest`; they are None and empty without an update. `modules` are the largest distances of forward results, by
    module.
    """

    step: int
    same: int
    rounding: int
    different: int
    parameters: float | None
    largest: float | None
    farthest: str
    modules: Mapping[str, float]


@dataclass(frozen=True)
class Loss:
    """The loss of a step in both runs: the number with which its first backward begins."""

    step: int
    a: float
    b: float
    distance: float


@dataclass(frozen=True)
class Spread:
    """How a difference spreads: over modules in the step with the origins, over steps, and to the losses.

    `common` is the number of common steps, of which `steps` may be a selection.
    """

    common: int
    modules: tuple[ModuleReached, ...]
    steps: tuple[StepDistances, ...]
    losses: tuple[Loss, ...]


def module_of(name: str, *, of_variable: bool = False) -> str:
    """The module of a path at the level at which a spread is shown.

    These are two levels below the outermost module, but at most to the first number: `blocks.0` for
    `GPT.blocks.0.attention.q`, `transformer.h.0` for `GPT2.transformer.h.0.mlp`.
    """
    parts = name.split(".")
    if of_variable:
        parts = parts[:-1]
    if len(parts) < 2:
        return parts[0] if parts and parts[0] else LOOP
    inner = parts[1:]
    end = next((index + 1 for index, part in enumerate(inner) if part.isdecimal()), 2)
    return ".".join(inner[:end])


def module_of_operation(operation: Operation) -> str:
    """The module of an operation, or of the variable that it names, see `module_of`."""
    if operation.name == INPUT:
        return LOOP
    return module_of(operation.module, of_variable=is_of_variable(operation))


def modules_reached(comparison: Comparison) -> tuple[ModuleReached, ...]:
    """The modules with other results in the step with the origins, in the order in which a difference reaches them."""
    if comparison.first is None:
        return ()
    rows = [row for row in aligned_operations(comparison.first, comparison.origins) if row.verdict in (ORIGIN, VICTIM)]
    by_module: dict[str, list[AlignedOperation]] = {}
    for row in rows:
        by_module.setdefault(module_of_operation(row.operation), []).append(row)
    return tuple(_reached(module, own) for module, own in by_module.items())


def _reached(module: str, rows: Sequence[AlignedOperation]) -> ModuleReached:
    first = rows[0]
    largest = max(row.distance for row in rows)
    return ModuleReached(
        module, first.operation.phase, first.operation.name, first.distance, largest, first.verdict == ORIGIN
    )


def spread_of(comparison: Comparison, steps: Iterable[CommonStep]) -> Spread:
    """The spread of a difference. `steps` are the common steps of the runs in their order, those behind the origins
    included; one is held at a time.

    Of many steps, the distances are computed for some at equal intervals, and always for the step with the origins and
    the one before it.
    """
    counts = {step.step: (step.same, step.rounding, step.different) for step in comparison.steps}
    always = {step.step for step in comparison.steps[-2:]} if comparison.origins else set()
    rows: list[StepDistances] = []
    losses: list[Loss] = []
    common, every, most = 0, 1, MAX_STEPS
    last: CommonStep | None = None
    for common, last in enumerate(steps, 1):
        own, other, rename, _ = last
        losses += _losses(own, other)
        most = min(most, max(MAX_OPERATIONS // max(len(own.operations), 1), LEAST_STEPS))
        if common % every == 0 or own.step in always:
            rows.append(_distances(own, other, rename, counts.get(own.step)))
        if len(rows) > most:
            every *= 2
            rows = [row for index, row in enumerate(rows) if index % 2 == 0 or row.step in always]
    if last is not None and rows[-1].step != last.own.step:
        rows.append(_distances(last.own, last.other, last.rename, counts.get(last.own.step)))
    return Spread(common, modules_reached(comparison), tuple(rows), tuple(losses))


def first_losses(comparison: Comparison, steps: Iterable[CommonStep]) -> tuple[Loss, ...]:
    """The losses up to the first that differs by more than rounding, at most `STEPS_OF_LOSS` behind the origins."""
    losses: list[Loss] = []
    last = comparison.steps[-1].step + STEPS_OF_LOSS
    for own, other, _, _ in steps:
        if own.step > last or any(loss.distance > ROUNDED for loss in losses):
            break
        losses += _losses(own, other)
    return tuple(losses)


def _distances(
    own: StepOperations, other: StepOperations, rename: Rename, counts: tuple[int, int, int] | None
) -> StepDistances:
    """Compare only the results of operations: behind an origin, inputs differ anyway."""
    same = rounded = different = 0
    modules: dict[str, float] = {}
    updated: dict[str, tuple[float, float]] = {}
    for i, j in aligned(own.operations, other.operations, rename):
        a, b = own.operations[i], other.operations[j]
        results = [own.values[each] for each in results_of(a)], [other.values[each] for each in results_of(b)]
        summands = a.phase in (FORWARD, BACKWARD) or a.name == INPUT
        if len(results[0]) == len(results[1]):
            apart = max((distance(x, y, summands=summands) for x, y in zip(*results, strict=True)), default=0.0)
        else:
            apart = math.inf
        if apart == 0:
            same += 1
        elif apart <= ROUNDED or apart <= rounding(results[0], [own.values[each] for each in a.inputs]):
            rounded += 1
        else:
            different += 1
        if a.phase == FORWARD and apart > 0:
            module = module_of_operation(a)
            modules[module] = max(modules.get(module, 0.0), apart)
        elif a.phase in (UPDATE, AFTER) and results[0]:
            updated[a.module] = apart, results[0][0].norm
    counted = counts or (same, rounded, different)
    if not updated:
        return StepDistances(own.step, *counted, None, None, "", modules)
    farthest = max(updated, key=lambda name: updated[name])
    return StepDistances(own.step, *counted, _together(updated.values()), updated[farthest][0], farthest, modules)


def _together(parts: Iterable[tuple[float, float]]) -> float:
    """The relative distance of several tensors as one, from the distance and the norm of each."""
    pairs = [(apart, norm) for apart, norm in parts if norm > 0]
    whole = math.sqrt(sum(norm * norm for _, norm in pairs))
    return math.sqrt(sum((apart * norm) ** 2 for apart, norm in pairs)) / whole if whole else 0.0


def _losses(own: StepOperations, other: StepOperations) -> list[Loss]:
    """The losses of a step, if both runs have one."""
    a, b = _loss(own), _loss(other)
    if a is None or b is None:
        return []
    pairs = ((x, y) for x in forms(a, 1, summands=True) for y in forms(b, 1, summands=True))
    nearest = min(pairs, key=lambda pair: abs(pair[0].total - pair[1].total), default=(a, b))
    own_loss, other_loss = (each.elements[0] if each in (a, b) else each.total for each in nearest)
    return [Loss(own.step, own_loss, other_loss, distance(a, b))]


def first_different(rows: Sequence[Loss]) -> Loss | None:
    """The first loss that differs by more than rounding, or else the first that differs at all."""
    apart = [row for row in rows if row.distance > 0 or math.isnan(row.distance)]
    return next((row for row in apart if row.distance > ROUNDED), apart[0] if apart else None)


def _loss(step: StepOperations) -> Sketch | None:
    """The first loss of the first backward of a step, if it is a number."""
    root = next((each for each in step.operations if each.name == ROOTS and each.inputs), None)
    loss = step.values[root.inputs[0]] if root is not None else None
    return loss if loss is not None and loss.size == 1 and loss.elements else None
