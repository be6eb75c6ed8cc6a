"""Recognizes that the workers of a data loader read the same samples: nobody has divided an iterable data set.

Note [Which worker made a batch]
A loader takes batches from its workers in turns. If each worker reads all data, all make the same number of batches, so
this holds to the end of a pass. The k-th batch is then attributed to worker k modulo their number. Workers that read
the same samples in one order show after two rounds, and workers with an order each at the end of a pass. Workers that
share the data have no sample in common, in whatever way batches are attributed.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from traincheck.sources.data.row_digests import RowDigests
from traincheck.sources.tensors.reading import hidden_from_modes

MAX_SAMPLES = 100_000
"""Samples that are remembered; a longer pass is not judged."""

FEWEST_SAMPLES, FEWEST_ROUNDS = 8, 2
"""Different samples of each worker, and batches: fewer may be equal by chance."""

MOSTLY = 15 / 16
"""Share of the samples of a worker that must be different: one that draws with replacement has the same ones again."""


class WorkerSamples:
    """The samples of one pass, by the worker that read them."""

    def __init__(self, workers: int, site: str) -> None:
        self.site = site
        self.batches = 0
        self._digests = RowDigests()
        self._of_worker: list[set[int]] = [set() for _ in range(workers)]
        self._rows = [0] * workers

    def add(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Note the next batch. Return False if the pass cannot be judged, as after a batch that cannot be read."""
        worker = self.batches % len(self._rows)
        self.batches += 1
        with hidden_from_modes():
            digests = self._digests.of(tensors)
        self._of_worker[worker].update(digests)
        self._rows[worker] += len(digests)
        return bool(digests) and sum(self._rows) <= MAX_SAMPLES

    def found(self, *, is_over: bool) -> str:
        """What is wrong with the samples so far, empty without an error. Rounds are compared in growing distances."""
        rounds, left = divmod(self.batches, len(self._rows))
        is_due = is_over or rounds & (rounds - 1) == 0
        if left or rounds < FEWEST_ROUNDS or not is_due:
            return ""
        first = self._of_worker[0]
        are_different = len(first) >= max(FEWEST_SAMPLES, MOSTLY * self._rows[0])
        if not are_different or any(other != first for other in self._of_worker[1:]):
            return ""
        when = "in this pass" if is_over else "so far"
        return f"each of its {len(self._rows)} workers has read the same {len(first)} samples {when}"
