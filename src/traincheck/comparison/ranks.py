"""Joins the operations of several ranks, so that a run of many ranks is compared with a run of one or of other many.

Note [Values of several ranks]
The ranks of a job execute the same operations. A value is whole on each rank (then all ranks hold the same), or each
rank holds a part of it. (Parts may be equal by chance, such as numbers of tokens.) Where a tensor knows its placement
(DTensor), the sketches of the parts add up to that of the whole. Otherwise the shapes decide when the value is
compared: parts as large as the other run's value are summands of it, or of its mean; parts that are as large together
are shards. The order of shards is unknown, so their sum and norm are compared alone. Parameters and their gradients
are whole, or shards: a gradient that is only a term of the right one is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from traincheck.comparison.alignment import aligned
from traincheck.vocab.operations import INPUT, Sketch, StepOperations, packed


class PartsOfRanks(Sketch, frozen=True):
    """The parts of a value on several ranks. As a sketch, it is that of the first rank."""

    parts: tuple[Sketch, ...] = ()

    @property
    def is_replicated(self) -> bool:
        """Whether all ranks hold the same bits."""
        return self.fingerprint is not None and all(part.fingerprint == self.fingerprint for part in self.parts)

    @property
    def is_unknown(self) -> bool:
        """Whether no rank knows anything of the values."""
        return not any(part.packed_projections or part.norm or part.total for part in self.parts)

    def forms(self, size: int, *, summands: bool) -> list[Sketch]:
        """What the parts may be together, if the whole has so many elements."""
        count = len(self.parts)
        is_whole = self.is_replicated or self.is_unknown
        possible = [self.parts[0]] if is_whole and self.size == size else []
        if summands and all(part.size == size and part.packed_projections for part in self.parts):
            possible += [_sum(self.parts, factor) for factor in (1.0, 1.0 / count)]
            possible += [self._norm] if size == 1 else []
        elif sum(part.size for part in self.parts) == size:
            possible += [concatenated(self.parts, factor) for factor in ((1.0, 1.0 / count) if summands else (1.0,))]
        return possible

    @property
    def _norm(self) -> Sketch:
        """The norm of all parts together, if the values are norms of the parts."""
        root = math.hypot(*(part.total for part in self.parts))
        return Sketch(self.dtype, self.shape, None, root, root)


def forms(sketch: Sketch, size: int, *, summands: bool) -> list[Sketch]:
    """The sketches of a value, if it has so many elements.

    What several ranks hold may be shards of it, or terms with `summands`.
    """
    if isinstance(sketch, PartsOfRanks):
        return sketch.forms(size, summands=summands)
    return [sketch] if sketch.size == size else []


def sizes(sketch: Sketch) -> set[int]:
    """How many elements a value may have."""
    if isinstance(sketch, PartsOfRanks):
        return {sketch.size, sum(part.size for part in sketch.parts)}
    return {sketch.size}


def joined(steps: Sequence[StepOperations]) -> StepOperations:
    """One step of several ranks as one. Operations that some ranks lack are those of the first rank alone."""
    first, *others = steps
    parts: list[list[Sketch]] = [[value] for value in first.values]
    batches = {each.outputs[0] for each in first.operations if each.name == INPUT}
    for other in others:
        taken = set(batches)  # an input is what the same operation takes on the other rank
        for i, j in aligned(first.operations, other.operations):
            own, its = first.operations[i], other.operations[j]
            if own.name == INPUT:
                continue
            values = [*zip(own.outputs, its.outputs, strict=False)]
            for pair in zip(own.inputs, its.inputs, strict=False):
                if pair[0] in taken:
                    taken.remove(pair[0])
                    values.append(pair)
            for number, its_number in values:
                parts[number].append(other.values[its_number])
    values_of_all = tuple(join(several) if len(several) == len(steps) else several[0] for several in parts)
    incomplete = next((step.incomplete for step in steps if step.incomplete), "")
    return StepOperations(first.step, values_of_all, first.operations, incomplete)


def join(parts: Sequence[Sketch]) -> Sketch:
    """What several ranks hold of a value, as one sketch."""
    first = parts[0]
    if any(part.share for part in parts):
        return _sum(parts, 1.0, partial=any(part.partial for part in parts), shares=[part.share for part in parts])
    return PartsOfRanks(**{field: getattr(first, field) for field in Sketch.__struct_fields__}, parts=tuple(parts))


def _sum(
    parts: Sequence[Sketch], factor: float, *, partial: bool = True, shares: Sequence[float] | None = None
) -> Sketch:
    """The sum of parts of equal shape, each counted with its share."""
    counted = list(zip(parts, shares or [1.0] * len(parts), strict=True))
    length = max(len(part.projections) for part in parts)
    projections = [
        factor * sum(share * part.projections[k] for part, share in counted if part.packed_projections)
        for k in range(length)
    ]
    if partial:
        norm = math.sqrt(sum(each * each for each in projections) / max(length, 1))
    else:
        norm = factor * math.sqrt(sum(share * part.norm**2 for part, share in counted))
    total = factor * sum(share * part.total for part, share in counted)
    first = parts[0]
    return Sketch(
        first.dtype, first.shape, None, total, norm, packed(projections), first.packed_elements, partial=partial
    )


def concatenated(parts: Sequence[Sketch], factor: float = 1.0) -> Sketch:
    """The concatenation of parts in unknown order, each multiplied by a factor: only its size, sum and norm."""
    total = factor * sum(part.total for part in parts)
    norm = factor * math.sqrt(sum(part.norm**2 for part in parts))
    return Sketch(parts[0].dtype, (sum(part.size for part in parts),), None, total, norm)
