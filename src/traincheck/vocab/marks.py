"""Marks: values to which a program gives a name with `traincheck.mark`, for comparison with another program."""

from __future__ import annotations

import msgspec

from traincheck.vocab.operations import Sketch

MAX_MARKS = 10_000
"""Marks that a process records. A program that marks ten values records a thousand steps."""

MAX_VALUES = 4096
"""Values of at most so many elements are recorded whole, in single precision (16 kB): a log-probability for each token
of a batch, say. Larger ones have a sketch alone."""

GRADIENT_SUFFIX = ".grad"
"""The gradient of the mark `name` is the mark `name.grad`."""


class Mark(msgspec.Struct, frozen=True, array_like=True):
    """A marked value.

    It is the `occurrence`-th value with this name in its process, counted from 1. `step` is the training step, 0
    outside training. `precision` is the coarsest floating point type of this mark, of the marks before it, and of the
    models that the process has called. `packed_values` are all elements (see `packed`), empty for large values.
    """

    name: str
    occurrence: int
    step: int
    site: str
    precision: str
    sketch: Sketch
    packed_values: bytes = b""
