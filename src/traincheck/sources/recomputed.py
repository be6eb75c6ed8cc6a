"""Recomputed: what an execution of a call, or of an update, gave, as fingerprints that can be compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from traincheck.sources.tensors import fingerprints, unseen


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


class Executed:
    """What an execution gave: of modules in the forward, of parameters in the backward and in the update."""

    def __init__(self) -> None:
        self.results, self.gradients, self.updates = Prints(), Prints(), Prints()

    def first_difference(self, other: Executed) -> tuple[str, str] | None:
        """The part in which two executions differ first, and the name of what does; None where they are the same."""
        for part, mine, theirs in (
            ("forward", self.results.all(), other.results.all()),
            ("backward", self.gradients.all(), other.gradients.all()),
            ("update", self.updates.all(), other.updates.all()),
        ):
            for name, value in mine.items():
                if name in theirs and theirs[name] != value:
                    return part, name
        return None


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
        found = Executed()
        found.results.put(self.results)
        found.gradients.put(self.gradients)
        return found
