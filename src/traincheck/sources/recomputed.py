"""Recomputed: what an execution of a call, or of an update, gave, as fingerprints that can be compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from traincheck.sources.bits import same_bits
from traincheck.sources.tensors import fingerprints, unseen
from traincheck.vocab.computations import BACKWARD, FORWARD, UPDATE


class CannotRepeat(Exception):
    """A call cannot be executed again, with the reason why not."""


class Prints:
    """Fingerprints by name, in the order in which they came. Of tensors on an accelerator copies are held until they
    are asked for, for one transfer."""

    def __init__(self) -> None:
        self._found: dict[str, int | None] = {}
        self._waiting: dict[str, torch.Tensor] = {}

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Take a tensor in; what comes again under a name has a number."""
        count, told = 1, name
        while told in self._found:
            count += 1
            told = f"{name} (call {count})"
        with unseen():
            self._found[told] = None
            if tensor.device.type == "cpu":
                self._found[told] = fingerprints([tensor])[0]
            else:
                self._waiting[told] = tensor.detach().clone()

    def put(self, told: Mapping[str, int | None]) -> None:
        """Take over fingerprints that were taken elsewhere."""
        self._found.update(told)

    def all(self) -> dict[str, int | None]:
        """The fingerprints."""
        if self._waiting:
            with unseen():
                self._found.update(zip(self._waiting, fingerprints(list(self._waiting.values())), strict=True))
            self._waiting.clear()
        return self._found


class Held:
    """Tensors by name, as they are: of what is there anyway it is cheaper to compare bits than fingerprints. What comes
    from another process is known by fingerprints only, and then all is."""

    def __init__(self) -> None:
        self._tensors: dict[str, torch.Tensor] = {}
        self._told: dict[str, int | None] | None = None

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Hold a tensor, which nobody is to write to as long as it is compared."""
        self._tensors[name] = tensor

    def put(self, told: Mapping[str, int | None]) -> None:
        """Take over fingerprints that were taken elsewhere."""
        self._told = dict(told)

    def all(self) -> dict[str, int | None]:
        """The fingerprints."""
        if self._told is None:
            with unseen():
                self._told = dict(zip(self._tensors, fingerprints(list(self._tensors.values())), strict=True))
        return self._told

    def first_unlike(self, other: Held) -> str | None:
        """The name of the first that has other bits, of those that both have."""
        if self._tensors and other._tensors:
            with unseen():
                pairs = ((name, one, other._tensors.get(name)) for name, one in self._tensors.items())
                return next((name for name, one, two in pairs if two is not None and not same_bits(one, two)), None)
        return _first_unlike(self.all(), other.all())


def _first_unlike(mine: Mapping[str, int | None], theirs: Mapping[str, int | None]) -> str | None:
    return next((name for name, value in mine.items() if name in theirs and theirs[name] != value), None)


class Executed:
    """What an execution gave: of modules in the forward, of parameters in the backward and in the update."""

    def __init__(self) -> None:
        self.results, self.gradients, self.updates = Prints(), Held(), Held()

    @classmethod
    def told(cls, results: Mapping[str, int | None], gradients: Mapping[str, int | None]) -> Executed:
        """One that took place in another process, by its fingerprints."""
        found = cls()
        found.results.put(results)
        found.gradients.put(gradients)
        return found

    def prints(self) -> dict[str, dict[str, int | None]]:
        """Fingerprints to tell another process of: what `told` is given."""
        return {"results": dict(self.results.all()), "gradients": dict(self.gradients.all())}

    def first_difference(self, other: Executed) -> tuple[str, str] | None:
        """The part in which two executions differ first, and the name of what does; None where they are the same."""
        found = _first_unlike(self.results.all(), other.results.all())
        if found is not None:
            return FORWARD, found
        found = self.gradients.first_unlike(other.gradients)
        if found is not None:
            return BACKWARD, found
        found = self.updates.first_unlike(other.updates)
        return None if found is None else (UPDATE, found)


class Handed(NamedTuple):
    """A call as it is handed to another rank: what it was given, and fingerprints of what it gave. It holds nothing
    but tensors, texts, numbers and containers of these."""

    given: Any
    streams: dict[str, torch.Tensor]
    buffers: list[torch.Tensor]
    output_grads: list[torch.Tensor | None]
    one_backward: bool
    parameters: list[int | None]
    results: dict[str, int | None]
    gradients: dict[str, int | None]

    def executed(self) -> Executed:
        """What it gave where it came from."""
        return Executed.told(self.results, self.gradients)
