"""Recognizes the samples that models have trained on, so that a pass over data without a loader shows.

A program may slice its tensors by itself, in an order of its own. Then no loader says where a pass ends. But the rows
of the batches come again: each row of a model's input is a sample, and its digest is kept until samples come again.

Note [Rows that are no samples]
Other rows come again as well: sequences of few tokens, a replay memory, time steps. A batch of which a part came before
says that, so nothing is recognized any more. The same holds if a batch has equal rows. Inputs on accelerators are not
read, because their digests would have to be fetched in each step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import torch

from traincheck.sources.data.row_digests import RowDigests
from traincheck.sources.modules.construction import PerModule
from traincheck.sources.recording.recorder import Recorder
from traincheck.sources.tensors.reading import hidden_from_modes

MAX_SAMPLES, MAX_BATCHES = 100_000, 4096
"""Samples and batches that are kept (some 10 MB). Programs with larger passes have a loader as a rule."""

MAX_TENSORS = 8
"""Tensors of a call that are read. A graph may have thousands."""

NEARLY_ALL = 15 / 16
"""Share of the samples of a step that must come again. The pass before may have left out the remainder of the data. If
data grow between passes (active learning), a larger share is new."""

UNCLEAR = 1 / 4, 3 / 4
"""A batch of which such a share came before is neither new, nor does it come again."""

FEWEST_SAMPLES, FEWEST_BATCHES = 8, 2
"""Samples that must come again, and batches of a pass: fewer may be equal by chance, or the whole data at once."""

LAST_REPETITIONS = 64
"""Batches that come again before digests are dropped: the micro-batches of a step. Later passes say nothing new."""


class _Batch(NamedTuple):
    """The number of rows of a batch, and for each row that came before, the batch in which it came first."""

    rows: int
    origins: Sequence[int]


class TrainedSamples:
    """The samples of each batch that a model trained on; `batches` counts them.

    All methods but `read` are called inside `hidden_from_modes()`.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.batches = 0
        self._read: list[_Batch] = []
        self._first: dict[int, int] = {}  # by digest: the batch
        self._repetitions = 0
        self._digests = RowDigests()
        self._models: PerModule[int] = PerModule()  # the batch in which each first trained: addresses come again
        self.is_over = False

    def end(self) -> None:
        """Recognize no sample from now on."""
        self.is_over = True
        self._first.clear()
        self._read.clear()

    def read(self, model: torch.nn.Module, args: Sequence[Any], keywords: Mapping[str, Any]) -> None:
        """Read the input of a call with which a model learns."""
        if self._recorder.steps.fetches or torch.jit.is_tracing():
            self.end()  # a loader says where passes end
            return
        number = self.batches
        if model not in self._models:
            self._models.put(model, number)
        first = self._models.get(model)
        with hidden_from_modes():
            digests = [hash((digest, first)) for digest in self._digests.of([*_tensors((*args, *keywords.values()))])]
        self.batches += 1
        origins = [self._first[digest] for digest in digests if digest in self._first]
        self._read.append(_Batch(len(digests), origins))
        share = len(origins) / len(digests) if digests else 0.5
        self._repetitions += share >= UNCLEAR[1]
        is_clear = len({*digests}) >= NEARLY_ALL * len(digests) and not UNCLEAR[0] < share < UNCLEAR[1]
        if not is_clear or self._repetitions > LAST_REPETITIONS or self.batches > MAX_BATCHES:
            self.end()
            return
        for digest in digests:
            self._first.setdefault(digest, number)
        if len(self._first) > MAX_SAMPLES:
            self.end()

    def came_again(self, begin: int, end: int) -> bool:
        """Whether the batches from `begin` to `end` were new, and all batches since then consist of their samples."""
        former, later = self._read[begin:end], self._read[end:]
        if (
            self.is_over
            or len(former) < FEWEST_BATCHES
            or any(len(batch.origins) >= UNCLEAR[1] * batch.rows for batch in former)
        ):
            return False
        rows = sum(batch.rows for batch in later)
        again = sum(begin <= origin < end for batch in later for origin in batch.origins)
        return again >= FEWEST_SAMPLES and again >= NEARLY_ALL * rows


def _tensors(values: Sequence[Any]) -> Iterator[torch.Tensor]:
    """Yield the tensors among arguments."""
    return islice((value for value in values if isinstance(value, torch.Tensor)), MAX_TENSORS)
