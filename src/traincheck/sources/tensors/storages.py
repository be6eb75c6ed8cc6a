"""Names the memory of tensors, so that two tensors over the same memory share a name.

Note [Names of memory]
Memory of a parameter has the parameter's name, also when it is seen through a view. Other memory is `~n`, the n-th of
its window. Addresses are reused as soon as memory is freed, many times in a step, so an address alone cannot identify
memory. TrainCheck therefore holds a weak reference to each storage of the open window. The reference keeps the small
storage record and its address, but not the memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count, filterfalse

import torch

from traincheck.sources.modules.variables import VariableCatalog
from traincheck.sources.recording.recorder import Recorder
from traincheck.vocab.events import SETUP

MAX_STORAGES = 50_000
"""Maximum number of records held in one window, about ten megabytes. Beyond it they are released, and known memory gets
new names."""

UNNAMED = "~"


class Storages:
    """Names the memory of tensors in each window. `names` maps the address of a storage record to the name given so
    far."""

    def __init__(self, catalog: VariableCatalog, recorder: Recorder) -> None:
        self._catalog = catalog
        self._recorder = recorder
        self._window = -1
        self.names: dict[int, str] = {}
        self._uninitialized: set[int] = set()
        self._numbers: Iterator[int] = count(1)
        recorder.after_gap("storages", self.forget)

    def name(self, tensor: torch.Tensor, memory: torch.UntypedStorage | None) -> str:
        """Name the memory of `tensor`, which has no name so far. A tensor without memory (sparse, a wrapper) gets an
        empty name."""
        variable = self._catalog.find(tensor)
        if variable is not None:
            return variable.name
        if memory is None:
            return ""
        if len(self.names) >= MAX_STORAGES:
            self._release(self.names)
        assigned = self.names[memory._weak_ref()] = f"{UNNAMED}{next(self._numbers)}"
        return assigned

    def mark_uninitialized(self, tensors: Iterable[torch.Tensor]) -> None:
        """Note that the program has not written to the memory of these tensors."""
        self._uninitialized.update(map(_storage_key, tensors))

    def is_initialized(self, tensor: torch.Tensor) -> bool:
        """Whether the values of `tensor` are meaningful, as far as this window shows."""
        return not self._uninitialized or _storage_key(tensor) not in self._uninitialized or bool(version_of(tensor))

    # -- windows ---------------------------------------------------------------------------------------------------

    def begin_window(self) -> None:
        """Begin a window.

        A window that was cut at an earlier position already has calls. Names used in them stay.
        """
        self._window = self._recorder.window_index
        used = {tensor.storage for tensor in self._recorder.tensor_summaries()}
        named: dict[int, tuple[str, torch.UntypedStorage]] = {}
        for variable, tensor in self._catalog.living():
            try:
                memory = tensor.untyped_storage()
            except (RuntimeError, NotImplementedError):
                continue
            named.setdefault(memory._cdata, (variable.name, memory))
        gone = []
        for address, name in list(self.names.items()):
            if name not in used:
                self._uninitialized.discard(address)
                if address not in named or named[address][0] != name:  # memory of a variable mostly keeps its name
                    gone.append(address)
        self._release(gone)
        self._numbers = _unused_numbers(used)
        for address, (name, memory) in named.items():
            if address and address not in self.names:
                self.names[memory._weak_ref()] = name

    def late_names(self, stage: str) -> dict[str, str]:
        """Return names of variables for memory that was seen in this window before its variable was known.

        During set-up, programs initialize a model before any event needs its name. So TrainCheck finds the name at the
        end.
        """
        if not self.names or self._recorder.window_index != self._window:
            return {}
        if stage == SETUP:
            self._catalog.refresh_modules()
        renamed = {}
        with torch._C.DisableTorchFunction():
            for variable, tensor in self._catalog.living():
                name = self.names.get(_storage_key(tensor), "")
                if name.startswith(UNNAMED):
                    renamed[name] = variable.name
        return renamed

    def forget(self) -> None:
        """Release all records."""
        self._release(self.names)
        self._uninitialized.clear()

    def _release(self, addresses: Iterable[int]) -> None:
        for address in list(addresses):
            self._uninitialized.discard(address)
            if self.names.pop(address, None) is not None:
                torch.UntypedStorage._free_weak_ref(address)


def _storage_key(tensor: torch.Tensor) -> int:
    """The address of the storage record of `tensor`, 0 if it has none."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (RuntimeError, NotImplementedError):
        return 0


def version_of(tensor: torch.Tensor) -> int | None:
    """How often the memory of `tensor` was written to; None if torch does not count."""
    try:
        return None if tensor.is_inference() else tensor._version
    except (RuntimeError, NotImplementedError):
        return None


def _unused_numbers(used: set[str]) -> Iterator[int]:
    """Ascending numbers from 1, without those in use."""
    taken = {int(name[1:]) for name in used if name.startswith(UNNAMED)}
    return filterfalse(taken.__contains__, count(1))
