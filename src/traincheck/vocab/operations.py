"""What a run computed in a step, for comparison with another run: operations, and a sketch of each of their results.

A sketch is much smaller than its tensor, and shows how far two tensors are apart. Operations refer to values by number,
so a reader can separate an operation that computed another result from one that received other inputs.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping

import msgspec

BEFORE, FORWARD, BACKWARD, GRADIENT, UPDATE, AFTER = PHASES = (
    "before",
    "forward",
    "backward",
    "gradient",
    "update",
    "after",
)
"""The phases of a step. *Before* are the values that a step begins with: parameters, buffers, and the batch. *Gradient*
are the gradients that an optimizer gets, after reduction and clipping. *Update* are the parameters that it wrote.
*After* are the other parameters and buffers at the end of the step."""

ROOTS = "backward"
"""Name of an operation where a backward begins. Its inputs are the losses, and it has no outputs."""

ACCUMULATED = "accumulated gradient"
"""Name of an operation of the backward: the gradient of a parameter after it. Its inputs are what backwards added."""

STATE = "state"
"""Name of operations of the phase *after*. Such an operation has the value as its input if another
operation wrote it, else as its output."""

SUM = "sum of gradients"
"""Name of an operation of the backward whose inputs are not recorded: where several gradients meet, and where a
backward begins."""

PARAMETER, BUFFER, INPUT = "parameter", "buffer", "input"
"""Names of operations of the phase *before*, which have no inputs."""


def packed(numbers: Iterable[float]) -> bytes:
    """The numbers in single precision, as bytes (little endian on all machines that torch supports)."""
    return array("f", numbers).tobytes()


def _unpacked(data: bytes) -> tuple[float, ...]:
    numbers = array("f")
    numbers.frombytes(data)
    return tuple(numbers)


class Sketch(msgspec.Struct, frozen=True, array_like=True):
    """A summary of a tensor.

    `fingerprint` is a hash of its bits, None if its memory could not be read. `total` and `norm` are its sum and
    2-norm. The totals of shards add up to that of the whole tensor, and so do the squares of the norms. The projections
    are inner products with fixed random signs, which depend on the position of an element alone: the mean square of
    their differences is an estimate of the squared distance of two tensors of equal shape. Projections and elements
    are packed, see `packed`.

    A rank may hold a part of a tensor whose placement is known (DTensor). Then `shape` and positions are those of the
    whole tensor, and the sketch counts in the sum over all ranks with `share` (0 otherwise). A `partial` tensor is one
    of several summands.
    """

    dtype: str
    shape: tuple[int, ...]
    fingerprint: int | None = None
    total: float = 0.0
    norm: float = 0.0
    packed_projections: bytes = b""
    packed_elements: bytes = b""
    share: float = 0.0
    partial: bool = False

    @property
    def projections(self) -> tuple[float, ...]:
        """The projections."""
        return _unpacked(self.packed_projections)

    @property
    def elements(self) -> tuple[float, ...]:
        """The first and the middle element, and the last or the one before it."""
        return _unpacked(self.packed_elements)

    @property
    def size(self) -> int:
        """The number of elements."""
        size = 1
        for length in self.shape:
            size *= length
        return size


MAX_WHOLE_ELEMENTS, MAX_WHOLE_TOGETHER = 1 << 20, 1 << 24
"""Elements of a value that is kept whole (4 MB), and of all such values of a process together (64 MB)."""


class WholeValue(msgspec.Struct, frozen=True, array_like=True):
    """All elements of a value of a step, in single precision and packed, see `packed`; none if there are too many.

    `fingerprint` is that of its sketch. The shape is that of the part on this rank.
    """

    step: int
    fingerprint: int
    dtype: str
    shape: tuple[int, ...]
    packed_values: bytes = b""


class Operation(msgspec.Struct, frozen=True, array_like=True):
    """An operation of a step.

    `name` is that of the operation in torch (`mm`, `MmBackward0`), or what a value is. `module` is the path of the
    innermost module around it, or the name of the variable. `settings` are its arguments other than tensors. `inputs`
    and `outputs` are numbers of values. A `random` operation draws numbers.
    """

    phase: str
    name: str
    module: str = ""
    site: str = ""
    settings: str = ""
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    random: bool = False


class StepOperations(msgspec.Struct, frozen=True, array_like=True):
    """The operations of one step of one process, in their order."""

    step: int
    values: tuple[Sketch, ...]
    operations: tuple[Operation, ...]
    incomplete: str = ""


def renamed_roots(a: Iterable[str], b: Iterable[str]) -> dict[str, str]:
    """The outermost modules in the names `b` by their names in `a`, where each run has as many that the
    other lacks."""
    own, other = _roots(a), _roots(b)
    only_own = [root for root in own if root not in other]
    only_other = [root for root in other if root not in own]
    return dict(zip(only_other, only_own, strict=True)) if len(only_own) == len(only_other) else {}


def _roots(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(name.partition(".")[0] for name in names if name))


def other_name(name: str, roots: Mapping[str, str]) -> str:
    """The name in the other run, by `renamed_roots`."""
    root, dot, rest = name.partition(".")
    return f"{roots.get(root, root)}{dot}{rest}"
