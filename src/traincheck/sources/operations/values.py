"""Numbers the values of a step: what a tensor, or some elements of a memory, hold at one time.

A tensor that an operation writes gets a new value. Tensors that show the same elements in another form (`t`, `view`,
`expand`) have one value.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.multiprocessing.reductions import StorageWeakRef

from traincheck.sources.operations.sketches import sketches
from traincheck.sources.tensors.reading import PLAIN
from traincheck.sources.tensors.storages import version_of
from traincheck.vocab.operations import Sketch


class _Known(NamedTuple):
    """The value of a tensor, or of some elements of a memory. `weak` keeps the key from being used again.

    `versions` are those that it may have: torch counts a write after the operation.
    """

    value: int
    versions: tuple[int | None, ...]
    weak: Any

    def is_of(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor, which has the key of this entry, has the value still."""
        return not self.weak.expired() and version_of(tensor) in self.versions


class ValueTable:
    """The values of one step, with their sketches. Call its methods inside `hidden_from_modes()`.

    `last` are sketches of the step before, by fingerprint: most of its parameters are still the same.
    """

    def __init__(self, last: dict[int, Sketch]) -> None:
        self.sketches: list[Sketch] = []
        self.by_fingerprint: dict[int, Sketch] = {}
        self._forms: list[tuple[Any, ...]] = []  # of the tensor of each sketch
        self._known = ChainMap(self.by_fingerprint, last)
        self._tensors: dict[int, _Known] = {}
        self._memory: dict[tuple[Any, ...], _Known] = {}  # by the elements

    def add(self, tensors: Sequence[torch.Tensor], *, written: bool = False) -> tuple[int, ...]:
        """The numbers of new values, which these tensors hold from now on; `written` if an operation wrote them."""
        made = sketches(tensors, self._known)
        self.by_fingerprint.update((each.fingerprint, each) for each in made if each.fingerprint is not None)
        return tuple(self._add(tensor, sketch, written) for tensor, sketch in zip(tensors, made, strict=True))

    def _add(self, tensor: torch.Tensor, sketch: Sketch, written: bool) -> int:
        number = len(self.sketches)
        self.sketches.append(sketch)
        self._forms.append(_form(tensor))
        version = version_of(tensor)
        versions = (version, version + 1) if written and version is not None else (version,)
        self._tensors[tensor._cdata] = _Known(number, versions, torch._C._WeakTensorRef(tensor))
        elements = _elements(tensor)
        if elements:
            self._memory[elements] = _Known(number, versions, StorageWeakRef(local_part(tensor).untyped_storage()))
        return number

    def find(self, tensor: torch.Tensor) -> int | None:
        """The number of the value of a tensor, if it is known."""
        own, memory = self._tensors.get(tensor._cdata), self._memory.get(_elements(tensor))
        if own is not None and own.is_of(tensor):
            # A write through `.data` counts versions by itself.
            is_newer = memory is not None and memory.value > own.value and not memory.weak.expired()
            return memory.value if memory is not None and is_newer else own.value
        return memory.value if memory is not None and memory.is_of(tensor) else None

    def has_form(self, value: int, tensor: torch.Tensor) -> bool:
        """Whether a tensor shows the elements of its value in the order in which they were sketched."""
        return self._forms[value] == _form(tensor)

    def forget(self, tensors: Iterable[torch.Tensor]) -> None:
        """What these tensors hold is not known any more."""
        for tensor in tensors:
            self._tensors.pop(tensor._cdata, None)
            self._memory.pop(_elements(tensor), None)

    def shows_known_elements(self, tensor: torch.Tensor) -> bool:
        """Whether a new tensor shows elements that have a value (torch counts the versions of a view later)."""
        known = self._memory.get(_elements(tensor))
        return known is not None and not known.weak.expired()

    def is_unset(self, value: int) -> bool:
        """Whether a value is memory that nothing was written to."""
        sketch = self.sketches[value]
        return sketch.size > 0 and not sketch.packed_projections


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor whose memory is shown: of a DTensor, the part of this rank."""
    return tensor if type(tensor) in PLAIN else getattr(tensor, "_local_tensor", tensor)


def _form(tensor: torch.Tensor) -> tuple[Any, ...]:
    tensor = local_part(tensor)
    is_strided = type(tensor) in PLAIN and tensor.layout is torch.strided
    return (tuple(tensor.shape), tensor.stride()) if is_strided else ()


def _elements(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Which elements of which memory a tensor shows, in whatever order; empty if that is not known."""
    tensor = local_part(tensor)
    if type(tensor) not in PLAIN or tensor.layout is not torch.strided or is_functorch_wrapped_tensor(tensor):
        return ()
    dims: list[list[int]] = []
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True), reverse=True):
        if size == 1 or stride == 0:
            continue
        if dims and dims[-1][0] == stride * size:
            dims[-1] = [stride, dims[-1][1] * size]
        else:
            dims.append([stride, size])
    layout = tuple(number for dim in dims for number in dim)
    return (tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.dtype, *layout)
