"""Keeps all elements of what one module takes and returns in one step, next to the sketches."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from traincheck.sources.operations.sketches import elements
from traincheck.sources.tensors.reading import local_tensor
from traincheck.vocab.operations import MAX_WHOLE_ELEMENTS, MAX_WHOLE_TOGETHER, Sketch, WholeValue


class WholeValues:
    """Passes the values of a module in a step to `keep`, each once.

    `request` is MODULE@STEP. The module may also be a parameter or a buffer, and is empty for operations outside of
    modules. Of values with too many elements, and of those behind the limit for all together, only the shape is kept.
    """

    def __init__(self, request: str, keep: Callable[[WholeValue], object]) -> None:
        self._module, _, step = request.rpartition("@")
        self._step = int(step)
        self._keep = keep
        self._kept: set[int] = set()
        self._left = MAX_WHOLE_TOGETHER

    def wants(self, step: int, module: str) -> bool:
        """Whether values of this module, or variable, are kept in this step."""
        if step != self._step:
            return False
        return module == self._module or (bool(self._module) and module.startswith(f"{self._module}."))

    def add(self, tensors: Iterable[torch.Tensor], sketches: Iterable[Sketch]) -> None:
        """Keep values, each with its sketch. Waits for an accelerator. Call inside `hidden_from_modes()`."""
        for tensor, sketch in zip(tensors, sketches, strict=False):
            fingerprint, dense = sketch.fingerprint, local_tensor(tensor)
            if fingerprint is None or fingerprint in self._kept or dense is None:
                continue
            self._kept.add(fingerprint)
            fits = dense.numel() <= min(MAX_WHOLE_ELEMENTS, self._left)
            self._left -= dense.numel() if fits else 0
            packed = elements(tensor) if fits else b""
            self._keep(WholeValue(self._step, fingerprint, sketch.dtype, tuple(dense.shape), packed))
