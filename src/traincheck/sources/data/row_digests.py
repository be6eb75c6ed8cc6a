"""Digests of the rows of a batch, by which its samples are recognized when they come again."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch

from traincheck.sources.tensors.deferred_values import is_on_host
from traincheck.sources.tensors.reading import as_integers, local_tensor

MAX_COLUMNS = 64
"""Elements of each row that are read, spread over the row: they tell samples apart."""

MAX_ELEMENTS = 4_000_000
"""Larger inputs cost too much if they must be copied to read their rows."""


class RowDigests:
    """Computes digests. Tensors on accelerators have none, because they would have to be fetched in each step."""

    def __init__(self) -> None:
        self._factors: torch.Tensor | None = None

    def of(self, tensors: Sequence[torch.Tensor]) -> list[int]:
        """A digest for each row of the tensors; none if they cannot be read. Called inside `hidden_from_modes()`."""
        try:
            return self._of(tensors)
        except (RuntimeError, NotImplementedError):  # tensors of other layouts have no shape
            return []

    def _of(self, tensors: Sequence[torch.Tensor]) -> list[int]:
        rows = [tensor.shape[0] for tensor in tensors if tensor.dim()][:1]
        total: torch.Tensor | None = None
        for tensor in tensors:
            if not tensor.dim() or tensor.shape[0] != rows[0] or not tensor.numel():
                continue  # a setting, a mask for all rows
            dense = local_tensor(tensor)
            if dense is None or not is_on_host(dense) or (dense.numel() > MAX_ELEMENTS and not dense.is_contiguous()):
                return []
            columns = dense.detach().reshape(dense.shape[0], -1)
            step = -(-columns.shape[1] // MAX_COLUMNS)
            bits = as_integers(columns[:, ::step]).reshape(columns.shape[0], -1).to(torch.int64)
            part = (bits * self._multipliers()[: bits.shape[1]]).sum(dim=1)
            total = part if total is None else total * 31 + part
        return [] if total is None else [int(digest) for digest in total.tolist()]

    def _multipliers(self) -> torch.Tensor:
        """Odd numbers that weigh the elements of a row, complex ones as two."""
        if self._factors is None:
            numbers = random.Random(0)  # none of the program is drawn
            odd = [numbers.getrandbits(63) | 1 for _ in range(2 * MAX_COLUMNS)]
            self._factors = torch.tensor(odd, dtype=torch.int64, device="cpu")
        return self._factors
