"""What several ranks hold of a value is compared with the whole value."""

from __future__ import annotations

import math

import pytest
import torch

from traincheck.comparison.distance import distance
from traincheck.comparison.ranks import joined
from traincheck.sources.operations import placements, sketches
from traincheck.sources.operations.placements import Placement
from traincheck.sources.tensors.reading import hidden_from_modes
from traincheck.vocab.operations import FORWARD, GRADIENT, Operation, Sketch, StepOperations

WHOLE = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))


def sketch(tensor: torch.Tensor) -> Sketch:
    with hidden_from_modes():
        (made,) = sketches.sketches([tensor.contiguous()])
    return made


def of_ranks(*parts: Sketch, phase: str = FORWARD) -> Sketch:
    """The value of an operation that the ranks executed together."""
    steps = [StepOperations(1, (part,), (Operation(phase, "mm", "Net", outputs=(0,)),)) for part in parts]
    return joined(steps).values[0]


def placed(tensor: torch.Tensor, placement: Placement, monkeypatch: pytest.MonkeyPatch) -> Sketch:
    """The sketch of a part with a known placement."""
    monkeypatch.setattr(sketches, "placement_of", lambda tensor, local: placement)
    made = sketch(tensor)
    monkeypatch.setattr(sketches, "placement_of", placements.placement_of)
    return Sketch(made.dtype, placement.whole, *(getattr(made, name) for name in made.__struct_fields__[2:]))


def test_replicated_values_are_whole() -> None:
    assert distance(of_ranks(sketch(WHOLE), sketch(WHOLE)), sketch(WHOLE)) == 0.0
    assert distance(of_ranks(sketch(WHOLE), sketch(WHOLE)), sketch(2 * WHOLE), summands=False) > 0.1


@pytest.mark.parametrize("dim", [0, 1])
def test_shards_of_unknown_order_are_compared_by_sum_and_norm(dim: int) -> None:
    value = of_ranks(*map(sketch, WHOLE.chunk(2, dim)))
    assert distance(value, sketch(WHOLE)) < 1e-6
    assert distance(value, sketch(1.01 * WHOLE)) > 1e-3


def test_summands_and_means() -> None:
    noise = torch.randn(6, 8, generator=torch.Generator().manual_seed(1))
    summands = of_ranks(sketch(WHOLE - noise), sketch(noise))
    assert distance(summands, sketch(WHOLE)) < 1e-5
    mean = of_ranks(sketch(WHOLE - noise), sketch(WHOLE + noise))
    assert distance(mean, sketch(WHOLE)) < 1e-5
    assert distance(summands, sketch(WHOLE), summands=False) > 0.1, "a gradient has to be whole"


def test_one_missing_shard_is_seen() -> None:
    first, _ = WHOLE.chunk(2)
    assert distance(of_ranks(sketch(first), sketch(first)), sketch(WHOLE)) > 0.01


@pytest.mark.parametrize("dim", [0, 1])
def test_placed_shards_add_up_to_the_whole(dim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = []
    for index, part in enumerate(WHOLE.chunk(2, dim)):
        offset = (3 * index, 0) if dim == 0 else (0, 4 * index)
        parts.append(placed(part, Placement((6, 8), tuple(part.shape), offset, 1.0, False), monkeypatch))
    value, swapped = of_ranks(*parts), WHOLE.roll(WHOLE.shape[dim] // 2, dim)
    assert distance(value, sketch(WHOLE)) < 1e-5
    assert distance(value, sketch(swapped)) > 0.1, "the order of the shards counts"
    assert value.norm == pytest.approx(float(WHOLE.norm()))


def test_placed_summands_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = torch.randn(6, 8, generator=torch.Generator().manual_seed(1))
    partial = Placement((6, 8), (6, 8), (0, 0), 1.0, True)
    value = of_ranks(*(placed(part, partial, monkeypatch) for part in (WHOLE - noise, noise)))
    assert distance(value, sketch(WHOLE)) < 1e-5


def test_two_jobs_with_other_layouts_are_compared() -> None:
    shards, replicated = of_ranks(*map(sketch, WHOLE.chunk(2))), of_ranks(sketch(WHOLE), sketch(WHOLE))
    assert distance(shards, replicated) < 1e-6
    assert distance(shards, of_ranks(*map(sketch, WHOLE.chunk(3)))) < 1e-6
    assert math.isinf(distance(shards, of_ranks(sketch(torch.ones(5)), sketch(torch.zeros(5)))))


def test_an_operation_that_a_rank_lacks_is_that_of_the_first_rank() -> None:
    both = Operation(GRADIENT, "gradient", "Net.weight", outputs=(0,))
    alone = Operation(FORWARD, "print", "Net", outputs=(1,))
    first = StepOperations(1, (sketch(WHOLE), sketch(WHOLE)), (both, alone))
    step = joined([first, StepOperations(1, (sketch(WHOLE),), (both,), "it is compiled")])
    assert step.operations == first.operations and type(step.values[1]) is Sketch
    assert step.incomplete == "it is compiled"
