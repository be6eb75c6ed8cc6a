"""Storages: what the memory of a tensor is called, so that two tensors over the same memory are told as such.

Note [Names of memory]
Memory of a parameter has the parameter's name, also where a view of it is seen; other memory is `~n`, the n-th of its
window. Addresses are used again as soon as memory is freed, many times in a step, so an address alone would make one of
two. We hold a weak reference to each storage of the open window: that keeps the small record which stands for it (and
with it its address), but not the memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count, filterfalse

import torch

from traincheck.sources.modules.variables import Catalog
from traincheck.sources.recording.recorder import Recorder
from traincheck.vocab.events import SETUP

MOST_STORAGES = 50_000
"""Records held in one window: some ten megabytes. Beyond it they are let go, and memory seen again has a new name."""

OTHER = "~"


class Storages:
    """Names the memory of tensors, window by window. `names` are those told so far, by the address of the record."""

    def __init__(self, catalog: Catalog, recorder: Recorder) -> None:
        self._catalog = catalog
        self._recorder = recorder
        self._window = -1
        self.names: dict[int, str] = {}
        self._unfilled: set[int] = set()
        self._numbers: Iterator[int] = count(1)
        recorder.after_gap("storages", self.forget)

    def name(self, tensor: torch.Tensor, memory: torch.UntypedStorage | None) -> str:
        """What the memory of `tensor`, which has no name so far, is called; empty for a tensor without one (sparse, a
        wrapper)."""
        variable = self._catalog.find(tensor)
        if variable is not None:
            return variable.name
        if memory is None:
            return ""
        if len(self.names) >= MOST_STORAGES:
            self._let_go(self.names)
        found = self.names[memory._weak_ref()] = f"{OTHER}{next(self._numbers)}"
        return found

    def not_filled(self, tensors: Iterable[torch.Tensor]) -> None:
        """Note that nobody has written to the memory of these tensors."""
        self._unfilled.update(map(_record_of, tensors))

    def filled(self, tensor: torch.Tensor) -> bool:
        """Whether the values of `tensor` mean something, so far as this window tells."""
        return not self._unfilled or _record_of(tensor) not in self._unfilled or bool(version_of(tensor))

    # -- windows ---------------------------------------------------------------------------------------------------

    def renew(self) -> None:
        """Begin a window.

        A window that was cut at an earlier place has calls already: the numbers told in them stay what they are.
        """
        self._window = self._recorder.window
        used = {tensor.storage for tensor in self._recorder.told_of_tensors()}
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
                self._unfilled.discard(address)
                if address not in named or named[address][0] != name:  # most memory of variables keeps its name
                    gone.append(address)
        self._let_go(gone)
        self._numbers = _numbers_beside(used)
        for address, (name, memory) in named.items():
            if address and address not in self.names:
                self.names[memory._weak_ref()] = name

    def late_names(self, stage: str) -> dict[str, str]:
        """Names of variables for memory that was seen in this window before its variable was known.

        During set-up a model is filled before anybody asks for its name, so it is looked for at the end.
        """
        if not self.names or self._recorder.window != self._window:
            return {}
        if stage == SETUP:
            self._catalog.refresh_modules()
        found = {}
        with torch._C.DisableTorchFunction():
            for variable, tensor in self._catalog.living():
                name = self.names.get(_record_of(tensor), "")
                if name.startswith(OTHER):
                    found[name] = variable.name
        return found

    def forget(self) -> None:
        """Let go of all records."""
        self._let_go(self.names)
        self._unfilled.clear()

    def _let_go(self, addresses: Iterable[int]) -> None:
        for address in list(addresses):
            self._unfilled.discard(address)
            if self.names.pop(address, None) is not None:
                torch.UntypedStorage._free_weak_ref(address)


def _record_of(tensor: torch.Tensor) -> int:
    """The address of the record of the storage of `tensor`, 0 where it has none."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (RuntimeError, NotImplementedError):
        return 0


def version_of(tensor: torch.Tensor) -> int | None:
    """How often the memory of `tensor` was written to, None where nobody counts."""
    try:
        return None if tensor.is_inference() else tensor._version
    except (RuntimeError, NotImplementedError):
        return None


def _numbers_beside(used: set[str]) -> Iterator[int]:
    """Numbers from one on, but those that are in use."""
    taken = {int(name[1:]) for name in used if name.startswith(OTHER)}
    return filterfalse(taken.__contains__, count(1))
